"""Tablets of this server by id: the replica and its store."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from nyala.admin import replica_report
from nyala.common.alteration import check_successor
from nyala.common.errors import InvalidArgument, Unavailable
from nyala.common.ids import TabletId
from nyala.replica.host import ReplicaHost
from nyala.replica.member.session_header import CLIENT_ID_BYTES
from nyala.replica.replica import Replica
from nyala.replica.status import State
from nyala.replica.witness import Witness
from nyala.tablet.files.columns import compression_of
from nyala.tablet.files.ops import SchemaOp, decode_result, encode_schema
from nyala.tablet.tablet import Tablet
from nyala.tserver.health import PeerHealth
from nyala.tserver.history_holds import HistoryHolds
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class HostedTablet:
    """A tablet that can be read and written on this server."""

    replica: Replica
    tablet: Tablet


class Tablets:
    """Look-up and status of tablets. Used on the event loop only.

    Args:
        host: owns the replicas.
        health: health of the members of groups that are led here.
        holds: history holds.
    """

    def __init__(self, host: ReplicaHost, health: PeerHealth, holds: HistoryHolds) -> None:
        self.host = host
        self._health = health
        self._holds = holds

    def get(self, tablet_id: str) -> HostedTablet:
        """Return a running tablet.

        Raises:
            Unavailable: there is no replica here, or it failed, or is being opened; the client looks it up
                again.
        """
        replica = self.host.find(TabletId(tablet_id))
        if replica is None or replica.state is State.TOMBSTONED:
            raise Unavailable(
                f"tablet {tablet_id} has no replica on this server; look up its locations again"
            )
        machine = replica.machine
        if isinstance(machine, Witness):
            raise Unavailable(
                f"the replica of tablet {tablet_id} on this server is a witness and has no data; "
                "use another replica"
            )
        assert isinstance(machine, Tablet), f"{tablet_id} replicates a {type(machine).__name__}"
        return HostedTablet(replica, machine)

    async def alter(self, tablet_id: str, op: SchemaOp, timeout_ms: int) -> int:
        """Alter a tablet that this server leads; replicated on return.

        An operation that was applied, or one of an older version, changes nothing.

        Args:
            tablet_id: id of the tablet.
            op: the new definition.
            timeout_ms: deadline, from now.

        Returns:
            The current version of the tablet's schema.

        Raises:
            InvalidArgument: the schema or options cannot follow the tablet's.
            Retryable, OutcomeUnknown: as `Replica.write`; the operation may be sent again.
        """
        hosted = self.get(tablet_id)
        now = hosted.tablet.info.schema
        if op.schema.version <= now.version:
            return now.version
        check_successor(now, op.schema)
        compression_of(op.options)
        payload = encode_schema(op)
        sender = hashlib.blake2b(payload, digest_size=CLIENT_ID_BYTES).digest()
        outcome = await hosted.replica.write(
            payload, client_id=sender, sequence=1, first_outstanding=1, timeout_ms=timeout_ms
        )
        for error in decode_result(outcome.result)[1]:
            raise InvalidArgument(error.message)
        return hosted.tablet.info.schema.version

    def reports(self, only: Sequence[TabletId] | None) -> list[pb.TabletReport]:
        """Return the reports to masters of the named replicas, or of all."""
        found = self.host.all() if only is None else [self.host.find(t) for t in only]
        return [self._reported(r) for r in found if r is not None]

    def _reported(self, replica: Replica) -> pb.TabletReport:
        report = replica_report.report(replica)
        report.health.extend(self._health.of(replica))
        if report.retired_at:  # it is retained for its history only
            report.held_ms = self._holds.left_ms(replica.group, report.retired_at)
        return report

    def statuses(self, only: Sequence[str]) -> list[pb.TabletStatus]:
        """Return the full status of the named replicas, or of all.

        Raises:
            NotFound: a named replica is not on this server.
        """
        if not only:
            return [self._described(r) for r in self.host.all()]
        return [self._described(self.host.get(TabletId(t))) for t in only]

    def _described(self, replica: Replica) -> pb.TabletStatus:
        status = replica_report.status(replica)
        status.report.health.extend(self._health.of(replica))
        return status
