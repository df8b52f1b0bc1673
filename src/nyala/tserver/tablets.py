"""Tablets of this server by id: the replica and its store."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from nyala.admin import replica_report
from nyala.common.errors import InvalidArgument, Unavailable
from nyala.common.ids import TabletId
from nyala.journal.journal import JournalMachine
from nyala.machines import registry
from nyala.replica.host import ReplicaHost
from nyala.replica.member.session_header import CLIENT_ID_BYTES
from nyala.replica.replica import Replica
from nyala.replica.status import State
from nyala.replica.witness import Witness
from nyala.tablet.tablet import Tablet
from nyala.tserver.health import PeerHealth
from nyala.tserver.history_holds import HistoryHolds
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class HostedTablet:
    """A tablet that can be read and written on this server."""

    replica: Replica
    tablet: Tablet


@dataclass(frozen=True, slots=True)
class HostedJournal:
    """One journal that can be written to and read from here."""

    replica: Replica
    journal: JournalMachine


@dataclass(frozen=True, slots=True)
class Hosted:
    """One tablet that runs here, of a table or a journal."""

    replica: Replica
    machine: Tablet | JournalMachine


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
        """Return a tablet of a table that runs here.

        Raises:
            Unavailable: no replica of it here (any more), or it failed, or is being opened: the client
                looks it up again.
            InvalidArgument: it is no tablet of a table.
        """
        hosted = self.hosted(tablet_id)
        if not isinstance(hosted.machine, Tablet):
            raise _wrong_kind(hosted.machine, "a table")
        return HostedTablet(hosted.replica, hosted.machine)

    def journal(self, tablet_id: str) -> HostedJournal:
        """Return a journal that runs here.

        Raises:
            Unavailable: as `get`.
            InvalidArgument: it is no journal.
        """
        hosted = self.hosted(tablet_id)
        if not isinstance(hosted.machine, JournalMachine):
            raise _wrong_kind(hosted.machine, "a journal")
        return HostedJournal(hosted.replica, hosted.machine)

    def hosted(self, tablet_id: str) -> Hosted:
        """Return a tablet that runs here, whatever its kind.

        Raises:
            Unavailable: as `get`.
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
        assert isinstance(machine, Tablet | JournalMachine), (
            f"{tablet_id}: {type(machine).__name__}"
        )
        return Hosted(replica, machine)

    def journals(self) -> list[JournalMachine]:
        """Return all journals that run here."""
        running = (r.machine for r in self.host.all() if r.state is State.RUNNING)
        return [machine for machine in running if isinstance(machine, JournalMachine)]

    async def alter(self, order: pb.AlterTabletRequest, timeout_ms: int) -> int:
        """Alter a tablet that is led from here; replicated on return.

        The same order again, or one of an older version, changes nothing.

        Args:
            order: the new definition.
            timeout_ms: deadline, from now.

        Returns:
            The version of the tablet's definition now.

        Raises:
            InvalidArgument: no such definition can follow the tablet's.
            Retryable, OutcomeUnknown: as `Replica.write`; the operation may be sent again.
        """
        hosted = self.hosted(order.tablet_id)
        kind = registry.kind_of_machine(hosted.machine)
        payload = kind.definition(hosted.machine, order)
        if payload is not None:
            sender = hashlib.blake2b(payload, digest_size=CLIENT_ID_BYTES).digest()
            outcome = await hosted.replica.write(
                payload, client_id=sender, sequence=1, first_outstanding=1, timeout_ms=timeout_ms
            )
            kind.check_result(outcome.result)
        info = kind.describe(hosted.machine)
        assert info is not None, hosted.machine
        return info.version

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


def _wrong_kind(machine: Tablet | JournalMachine, wanted: str) -> InvalidArgument:
    info = registry.describe(machine)
    assert info is not None, machine
    kind = registry.kind_of(info.kind).name
    return InvalidArgument(
        f"tablet {info.tablet_id} belongs to the {kind} {info.name!r}, and the request is for {wanted}; "
        f"open it as a {kind}"
    )
