"""The control plane of a tablet server: orders from masters, and what it says of itself.

Orders are idempotent and fenced: a master that was deposed is refused by (catalog incarnation, term).
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from nyala.common.errors import (
    AlreadyPresent,
    CasFailed,
    InvalidArgument,
    NyalaError,
    Unavailable,
)
from nyala.common.ids import OpId, TableId, TabletId
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.raft.membership import initial
from nyala.replica.host import ReplicaHost
from nyala.replica.identity import Identity
from nyala.replica.state_machine import StateMachine
from nyala.replica.status import State
from nyala.tablet.manifest import TabletInfo
from nyala.tablet.tablet import Tablet
from nyala.tserver.holds import Holds
from nyala.tserver.tablets import Tablets
from nyala.wire import convert, methods, status
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Fence:
    """The newest leader master that this server knows of: of one catalog incarnation, the highest term."""

    incarnation: str = ""
    term: int = 0

    def learn(self, incarnation: str, term: int) -> None:
        """Take what a leader master says in a heartbeat response."""
        if incarnation and incarnation != self.incarnation:
            self.incarnation, self.term = incarnation, term
        elif incarnation:
            self.term = max(self.term, term)

    def check(self, order: pb.Fence) -> None:
        """Refuse an order of anybody but the leader master known, or a newer one of its catalog.

        Raises:
            Unavailable: no leader master has answered a heartbeat yet; the order comes again.
            CasFailed: it was sent in an older term, for another catalog, or names neither.
        """
        if not self.incarnation:
            raise Unavailable("this server has not heard from a leader master yet; order again")
        if order.catalog_incarnation != self.incarnation:
            raise CasFailed(
                "the order does not come from the catalog that this server belongs to",
                {"expected": self.incarnation, "found": order.catalog_incarnation},
            )
        if order.term < self.term:
            raise CasFailed(
                f"the order comes from a master that led in term {order.term}; term {self.term} is known",
                {"expected": str(self.term), "found": str(order.term)},
            )
        self.term = max(self.term, order.term)


class TabletService:
    """Handlers of `TabletAdmin`. On the loop only."""

    def __init__(
        self, env: Env, identity: Identity, host: ReplicaHost, tablets: Tablets, holds: Holds, fence: Fence
    ) -> None:  # fmt: skip
        self._env = env
        self._identity = identity
        self._host = host
        self._tablets = tablets
        self._holds = holds
        self._fence = fence

    def handlers(self) -> Handlers:
        """Return what this service answers."""
        return {
            methods.CREATE_TABLET: self.create_tablet,
            methods.DELETE_TABLET: self.delete_tablet,
            methods.LIST_TABLETS: self.list_tablets,
            methods.HOLD_HISTORY: self.hold_history,
        }

    def _addressed(self, destination: str) -> None:
        if destination != self._identity.uuid:
            raise InvalidArgument(
                f"the order is for server {destination}; this is {self._identity.uuid}. Another server "
                "had this address before"
            )

    async def _to_its_end(self, work: Coroutine[Any, Any, object]) -> None:
        """Carry an order out whatever becomes of its sender, whose deadline may pass meanwhile.

        Left halfway, its files would still be worked on in a lane while the next order begins anew.
        """

        async def guarded() -> Exception | None:
            try:
                await work
            except (NyalaError, OSError) as err:
                return err
            return None

        failed = await asyncio.shield(self._env.tasks.spawn(guarded(), "tablet order"))
        if isinstance(failed, Exception):
            raise failed

    async def create_tablet(self, request: pb.CreateTabletRequest) -> pb.CreateTabletResponse:
        """Make a replica; durable on return. The same order again changes nothing."""
        self._addressed(request.destination_uuid)
        self._fence.check(request.fence)
        info = TabletInfo(
            TabletId(request.tablet_id),
            TableId(request.table_id),
            request.table_name,
            convert.schema_from_proto(request.schema),
            convert.partition_schema_from_proto(request.partition_schema),
            convert.partition_from_proto(request.partition),
            dict(request.options),
        )
        config = initial(convert.member_from_proto(m) for m in request.members)

        def create(directory: str) -> StateMachine:
            return Tablet.create(self._env.files, directory, info)

        try:
            await self._to_its_end(self._host.create_replica(info.tablet_id, config, create))
        except AlreadyPresent:
            replica = self._host.find(info.tablet_id)
            if replica is None or replica.state is State.TOMBSTONED:
                raise
        return pb.CreateTabletResponse()

    async def delete_tablet(self, request: pb.DeleteTabletRequest) -> pb.DeleteTabletResponse:
        """Delete a replica's data, keeping its vote; durable on return. Not here: nothing to do.

        Raises:
            CasFailed: `compare_config` was asked for and the committed configuration is another one.
        """
        self._addressed(request.destination_uuid)
        self._fence.check(request.fence)
        replica = self._host.find(TabletId(request.tablet_id))
        if replica is None or replica.state is State.TOMBSTONED:
            return pb.DeleteTabletResponse()
        committed = replica.status().committed_config.id
        expected = OpId(request.config_term, request.config_index)
        if request.compare_config and committed != expected:
            raise CasFailed(
                f"tablet {request.tablet_id} has the configuration of {committed}, not of {expected}",
                {"expected": str(expected), "found": str(committed)},
            )
        log.info("deleting tablet %s: %s", request.tablet_id, request.reason)
        await self._to_its_end(self._host.delete_replica(TabletId(request.tablet_id)))
        return pb.DeleteTabletResponse()

    async def list_tablets(self, request: pb.ListTabletsRequest) -> pb.ListTabletsResponse:
        """Describe the replicas named, or all."""
        found = self._tablets.statuses(list(request.tablet_ids))
        for tablet in found:
            for name, hold, left_ms in self._holds.of(TabletId(tablet.report.tablet_id)):
                tablet.holds.add(name=name, at=hold.at, left_ms=left_ms)
        return pb.ListTabletsResponse(tablets=found)

    async def hold_history(self, request: pb.HoldHistoryRequest) -> pb.HoldHistoryResponse:
        """Keep a time of some tablets readable here, or let it go; each tablet has its own outcome."""
        answer = pb.HoldHistoryResponse()
        for tablet_id in request.tablet_ids:
            result = answer.results.add(tablet_id=tablet_id)
            try:
                if request.ttl_ms:
                    horizon = self._tablets.get(tablet_id).tablet.horizon
                    self._holds.hold(
                        TabletId(tablet_id), request.name, request.at, request.ttl_ms, horizon
                    )
                else:
                    self._holds.release(TabletId(tablet_id), request.name)
            except NyalaError as err:
                result.error.CopyFrom(status.to_proto(err))
        return answer
