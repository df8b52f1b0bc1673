"""Tablets of this server by id: the replica and its store."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nyala.admin import replica_report
from nyala.common.errors import InvalidArgument, OutcomeUnknown, Unavailable
from nyala.common.ids import TabletId
from nyala.journal.journal import JournalMachine
from nyala.machines import registry
from nyala.machines.registry import DataMachine
from nyala.replica.host import ReplicaHost
from nyala.replica.member.session_header import CLIENT_ID_BYTES, NO_OWNER, SERVERS, owner_of
from nyala.replica.replica import Replica
from nyala.replica.status import State, WriteOutcome
from nyala.security.identity import CALLER, user_name
from nyala.security.tables.grants import TableRef
from nyala.tablet.tablet import Tablet
from nyala.tserver.health import PeerHealth
from nyala.tserver.history_holds import HistoryHolds
from nyala.wire.proto import nyala_pb2 as pb

DELETED = "DELETED"
"""State in the report of a replica that is not here any more, nor a tombstone of it."""


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
    machine: DataMachine


class OperationHeader(Protocol):
    """Part of a request that names the operation, for writes and for steps of journals alike.

    Attributes:
        tablet_id: tablet of the operation.
        client_id: 16 bytes.
        sequence: number of the operation, among those of its client on the tablet.
        first_outstanding: results of smaller numbers are not needed any more.
        timeout_ms: deadline, from now; 0: the server's.
        propagated_time: highest hybrid time that the client has seen.
        since: hybrid time before which the operation was not executed; 0: not known.
    """

    tablet_id: str
    client_id: bytes
    sequence: int
    first_outstanding: int
    timeout_ms: int
    propagated_time: int
    since: int


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
        tablet = registry.of_class(hosted.machine, Tablet)
        if tablet is None:
            raise _wrong_kind(hosted.machine, "a table")
        return HostedTablet(hosted.replica, tablet)

    def journal(self, tablet_id: str) -> HostedJournal:
        """Return a journal that runs here.

        Raises:
            Unavailable: as `get`.
            InvalidArgument: it is no journal.
        """
        hosted = self.hosted(tablet_id)
        journal = registry.of_class(hosted.machine, JournalMachine)
        if journal is None:
            raise _wrong_kind(hosted.machine, "a journal")
        return HostedJournal(hosted.replica, journal)

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
        machine = registry.with_data(replica.machine)
        if machine is None:
            raise Unavailable(
                f"the replica of tablet {tablet_id} on this server is a witness and has no data; "
                "use another replica"
            )
        return Hosted(replica, machine)

    def reference(self, tablet_id: str) -> TableRef:
        """Return the table or journal of a tablet that runs here, as grants know it.

        Raises:
            Unavailable: as `get`.
        """
        machine = self.hosted(tablet_id).machine
        if (tablet := registry.of_class(machine, Tablet)) is not None:
            info = tablet.info
            columns = {int(c.id): c.name for c in info.schema.columns}
            keys = frozenset(int(c.id) for c in info.schema.key_columns)
            return TableRef(info.table_id, info.table_name, columns, keys)
        journal = registry.of_class(machine, JournalMachine)
        assert journal is not None, machine
        return TableRef(journal.info.table_id, journal.info.name)

    def journals(self) -> list[JournalMachine]:
        """Return all journals that run here."""
        running = (r.machine for r in self.host.all() if r.state is State.RUNNING)
        found = (registry.of_class(machine, JournalMachine) for machine in running)
        return [journal for journal in found if journal is not None]

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
                payload, client_id=sender, sequence=1, first_outstanding=1, timeout_ms=timeout_ms,
                seen=order.above, owner=session_owner(),
            )  # fmt: skip
            kind.check_result(outcome.result)
        return kind.describe(hosted.machine).version

    def reports(self, only: Sequence[TabletId] | None) -> list[pb.TabletReport]:
        """Return the reports to masters of the named replicas, or of all; of deleted ones, that they are."""
        if only is None:
            return [self._reported(r) for r in self.host.all()]
        found = [(t, self.host.find(t)) for t in only]
        return [
            pb.TabletReport(tablet_id=t, state=DELETED) if r is None else self._reported(r)
            for t, r in found
        ]

    def _reported(self, replica: Replica) -> pb.TabletReport:
        report = replica_report.report(replica)
        report.health.extend(self._health.of(replica))
        if report.retired_at:  # it is retained for its history only
            report.held_ms = self._holds.left_ms(replica.group, report.retired_at)
        return report

    def statuses(self, only: Sequence[str], *, definitions: bool = False) -> list[pb.TabletStatus]:
        """Return the full status of the named replicas, or of all.

        Args:
            only: ids of tablets; none: all.
            definitions: also return what the replicas know of their tables.

        Raises:
            NotFound: a named replica is not on this server.
        """
        replicas = [self.host.get(TabletId(t)) for t in only] if only else self.host.all()
        return [self._described(r, definitions=definitions) for r in replicas]

    def _described(self, replica: Replica, *, definitions: bool) -> pb.TabletStatus:
        status = replica_report.status(replica)
        status.report.health.extend(self._health.of(replica))
        if definitions and (known := replica_report.definition(replica)) is not None:
            status.definition.CopyFrom(known)
        return status


ANSWER_MS = 200
"""Part of a caller's time that is left for the answer, at most, in milliseconds: its error has the cause."""


def session_owner() -> int:
    """Return the owner of the sessions of exactly-once writes that the present caller writes in."""
    if CALLER.get() is None:
        return NO_OWNER
    user = user_name()
    return owner_of(user) if user else SERVERS


async def replicate(
    replica: Replica,
    payload: bytes,
    header: OperationHeader,
    timeout_ms: int,
    *,
    staged: bool = False,
) -> WriteOutcome:
    """Replicate an operation under its client's sequence number.

    Args:
        replica: that leads.
        payload: the operation.
        header: names it.
        timeout_ms: deadline if the header has none, from now.
        staged: it is a STAGE; see `Replica.write`.

    Raises:
        OutcomeUnknown: a broken invariant failed the replica; the server continues.
        NyalaError: as `Replica.write`.
    """
    timeout_ms = header.timeout_ms or timeout_ms
    try:
        return await replica.write(
            payload,
            client_id=header.client_id,
            sequence=header.sequence,
            first_outstanding=header.first_outstanding,
            timeout_ms=timeout_ms - min(timeout_ms // 10, ANSWER_MS),
            seen=header.propagated_time,
            since=header.since,
            staged=staged,
            owner=session_owner(),
        )
    except AssertionError as err:
        raise OutcomeUnknown(f"tablet {header.tablet_id} failed: {err}") from err


def _wrong_kind(machine: DataMachine, wanted: str) -> InvalidArgument:
    kind = registry.kind_of_machine(machine)
    info = kind.describe(machine)
    return InvalidArgument(
        f"tablet {info.tablet_id} belongs to the {kind.name} {info.name!r}, and the request is for {wanted}; "
        f"use client.{kind.name}({info.name!r}), or the verbs of: nyala {kind.name}"
    )
