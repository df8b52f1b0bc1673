"""Control plane of a tablet server: orders of masters, and status of its replicas.

Orders are idempotent, and checked by `admin/fencing.py`.
"""

from collections.abc import Callable

from nyala.admin.fencing import OrderFence
from nyala.common.errors import AlreadyPresent, NyalaError
from nyala.common.ids import TabletId
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.machines import registry
from nyala.raft.membership import initial
from nyala.replica.host import ReplicaHost
from nyala.replica.state_machine import StateMachine
from nyala.replica.status import State
from nyala.security.identity import user_name
from nyala.tserver.history_holds import HistoryHolds
from nyala.tserver.tablets import Tablets
from nyala.wire import convert, methods, status
from nyala.wire.proto import nyala_pb2 as pb

ALTER_TIMEOUT_MS = 5_000
"""Deadline of the replication, in milliseconds; masters repeat an order without a response."""


class TabletService:
    """Handlers of `TabletAdmin`. Used on the event loop only."""

    def __init__(
        self, env: Env, host: ReplicaHost, tablets: Tablets, holds: HistoryHolds, orders: OrderFence,
        altered: Callable[[TabletId], None],
    ) -> None:  # fmt: skip
        self._env = env
        self._host = host
        self._tablets = tablets
        self._holds = holds
        self._orders = orders
        self._altered = altered

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {
            methods.CREATE_TABLET: self.create_tablet,
            methods.ALTER_TABLET: self.alter_tablet,
            methods.LIST_TABLETS: self.list_tablets,
            methods.HOLD_HISTORY: self.hold_history,
        }

    async def create_tablet(self, request: pb.CreateTabletRequest) -> pb.CreateTabletResponse:
        """Create a replica; durable on return. Idempotent."""
        self._orders.check(request)
        await self._host.stamp_above(request.floor)
        tablet_id = TabletId(request.tablet_id)
        kind = registry.kind_of(request.kind)
        config = initial(convert.member_from_proto(m) for m in request.members)

        def create(directory: str) -> StateMachine:
            return kind.create(self._env.files, directory, request)

        try:
            await self._orders.run_to_completion(
                self._host.create_replica(tablet_id, config, create)
            )
        except AlreadyPresent:
            replica = self._host.find(tablet_id)
            if replica is None or replica.state is State.TOMBSTONED:
                raise
        return pb.CreateTabletResponse()

    async def alter_tablet(self, request: pb.AlterTabletRequest) -> pb.AlterTabletResponse:
        """Alter a tablet that this server leads to its table's definition; replicated on return.

        Raises:
            InvalidArgument: the schema cannot follow the tablet's.
            Retryable, OutcomeUnknown: repeat the order, which is idempotent.
        """
        self._orders.check(request)
        version = await self._tablets.alter(request, ALTER_TIMEOUT_MS)
        self._altered(TabletId(request.tablet_id))
        return pb.AlterTabletResponse(schema_version=version, hybrid_time=self._host.time)

    async def list_tablets(self, request: pb.ListTabletsRequest) -> pb.ListTabletsResponse:
        """Return the status of the named replicas, or of all."""
        found = self._tablets.statuses(list(request.tablet_ids), definitions=request.definitions)
        for tablet in found:
            for name, hold, left_ms in self._holds.of(TabletId(tablet.report.tablet_id)):
                tablet.holds.add(name=name, at=hold.at, left_ms=left_ms)
        return pb.ListTabletsResponse(tablets=found, problems=self._host.problems())

    async def hold_history(self, request: pb.HoldHistoryRequest) -> pb.HoldHistoryResponse:
        """Add or release history holds of some tablets; each tablet has its own result."""
        answer = pb.HoldHistoryResponse()
        for tablet_id in request.tablet_ids:
            result = answer.results.add(tablet_id=tablet_id)
            try:
                if request.ttl_ms:
                    tablet = self._tablets.get(tablet_id).tablet
                    self._holds.hold(
                        TabletId(tablet_id),
                        request.name,
                        request.at,
                        request.ttl_ms,
                        tablet.horizon,
                        user_name(),
                    )
                    if tablet.info.retired_at:  # masters delete it when there are no holds
                        self._altered(TabletId(tablet_id))
                else:
                    self._holds.release(TabletId(tablet_id), request.name, user_name())
            except NyalaError as err:
                result.error.CopyFrom(status.to_proto(err))
        return answer
