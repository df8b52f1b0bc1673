"""Reconciliation of the replicas of one tablet. Pure.

Replicas of a group may lag behind each other. The definition is that of the highest schema version, the
configuration that of the highest op id, the leader that of the highest term.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.common.partitioning.partition import TabletPartition
from nyala.master.rebuild.evidence import LEADER, OPENING, TOMBSTONES, WORKS, Findings, ServerAnswer
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class FoundReplica:
    """A replica, and the server that has it."""

    server: pb.ServerInfoResponse
    status: pb.TabletStatus

    @property
    def config(self) -> OpId:
        """Op id of its committed configuration."""
        consensus = self.status.report.consensus
        return OpId(consensus.config_term, consensus.config_index)

    def __str__(self) -> str:
        return f"{self.server.uuid} at {self.server.address}"


@dataclass(frozen=True, slots=True)
class FoundTablet:
    """One tablet, as its replicas show it.

    Attributes:
        id: of the tablet.
        table: id of its table.
        partition: its part of the table.
        definition: of its table, as of the last alteration that a replica has applied.
        consensus: newest configuration, and leader.
        retired_at: hybrid time at which its range was dropped; 0: it was not.
        rows: number of rows or entries of the most advanced replica.
        applied: hybrid time up to which that replica has applied its log.
        working: number of voters whose replica works.
        ended: commit times of transactions that it has applied.
        decided: commit times that its leader was sent, of transactions that it has not applied yet.
        prepared: transactions that are prepared, and were not applied.
        settled: its leader answered, and has applied every entry of earlier leaders.
    """

    id: TabletId
    table: str
    partition: TabletPartition
    definition: pb.TabletDefinition
    consensus: pb.ConsensusState
    retired_at: int
    rows: int
    applied: int
    working: int
    ended: dict[bytes, int] = field(default_factory=dict)
    decided: dict[bytes, int] = field(default_factory=dict)
    prepared: frozenset[bytes] = frozenset()
    settled: bool = False

    @property
    def version(self) -> int:
        """Version of its definition."""
        return self.definition.spec.schema.version

    @property
    def voters(self) -> int:
        """Number of voters of its configuration."""
        return sum(m.voter for m in self.consensus.members)

    @property
    def retired_by(self) -> int:
        """Version of the table's ranges that dropped its range; 0: none did."""
        return next((r.version for r in self.definition.ranges if r.at == self.retired_at > 0), 0)

    def __str__(self) -> str:
        return f"tablet {self.id} ({self.rows} rows, applied up to {self.applied})"


def found_tablets(answers: Sequence[ServerAnswer], findings: Findings) -> list[FoundTablet]:
    """Return the tablets of which a replica knows the definition, by id.

    Args:
        answers: of all servers.
        findings: gets what the replicas contradict, and what cannot be read.
    """
    replicas: dict[str, list[FoundReplica]] = {}
    for answer in answers:
        opening = 0
        for status in answer.tablets:
            state = status.report.state
            opening += state in OPENING
            if state not in TOMBSTONES and state not in OPENING:
                replicas.setdefault(status.report.tablet_id, []).append(
                    FoundReplica(answer.info, status)
                )
        if opening:
            findings.refused.append(
                f"{answer.info.uuid} at {answer.info.address} still opens {opening} of its replicas; repeat "
                "the command when it has opened them all"
            )
    given = {a.info.uuid for a in answers}
    made = (_reconciled(t, found, given, findings) for t, found in sorted(replicas.items()))
    return [tablet for tablet in made if tablet is not None]


def _reconciled(
    tablet: str, found: list[FoundReplica], given: set[str], findings: Findings
) -> FoundTablet | None:
    newest = max(found, key=lambda r: r.config)
    consensus = pb.ConsensusState()
    consensus.CopyFrom(newest.status.report.consensus)
    members = {m.uuid for m in consensus.members}
    _note_contradictions(tablet, found, newest, findings)
    if absent := sorted(members - given):
        where = {m.uuid: m.address for m in consensus.members}
        named = ", ".join(f"{u} at {where[u]}" for u in absent)
        findings.losses.append(
            f"tablet {tablet} has members on servers that were not asked or did not answer: {named}; a newer "
            "configuration, schema or leader that only they know is not seen"
        )
    known = [r for r in found if r.status.HasField("definition")]
    if not known:
        errors = "; ".join(f"{r}: {r.status.report.error or r.status.report.state}" for r in found)
        findings.losses.append(
            f"tablet {tablet} has no replica whose data can be read ({errors}), so its table is not known; "
            "repair one first (nyala local_replica unsafe_recover), or it is left out"
        )
        return None
    best = max(known, key=_progress)
    led = [r for r in found if r.status.report.consensus.leader]
    consensus.term = max(r.status.report.consensus.term for r in found)
    leader = max(led, key=lambda r: r.status.report.consensus.term, default=None)
    consensus.leader = ""
    if leader is not None and leader.status.report.consensus.leader in members:
        consensus.leader = leader.status.report.consensus.leader
        consensus.term = leader.status.report.consensus.term
    voters = {m.uuid for m in consensus.members if m.voter}
    working = sum(r.status.report.state == WORKS and r.server.uuid in voters for r in found)
    transactions = [t for r in known for t in r.status.definition.transactions]
    ended = {t.transaction: t.ended for t in transactions if t.ended}
    return FoundTablet(
        TabletId(tablet),
        best.status.report.table_id,
        convert.partition_from_proto(best.status.partition),
        best.status.definition,
        consensus,
        max(r.status.report.retired_at for r in known),
        best.status.rows,
        best.status.safe_time,
        working,
        ended,
        {t.transaction: t.decided for t in transactions if t.decided},
        frozenset(t.transaction for t in transactions if t.prepared) - ended.keys(),
        any(_is_settled(r.status, consensus.term) for r in known),
    )


def _is_settled(status: pb.TabletStatus, term: int) -> bool:
    """Return whether a replica leads in the newest term, and has applied an entry of it.

    Entries of earlier leaders come before that entry, and what it was sent itself is reported as decided:
    so no outcome of a transaction is left in its log that is not reported.
    """
    leads = status.report.role == LEADER and status.report.consensus.term == term
    return leads and status.applied_term == term


def _progress(replica: FoundReplica) -> tuple[int, int, int]:
    """Return the order of replicas by what they have applied: schema version, then op id."""
    status = replica.status
    version = status.definition.spec.schema.version
    return version, status.applied_term, status.applied_index


def _note_contradictions(
    tablet: str, found: list[FoundReplica], newest: FoundReplica, findings: Findings
) -> None:
    """Name what replicas of one group can never differ in."""
    for replica in found:
        report, other = replica.status.report, newest.status.report
        if replica.config == newest.config and [*report.consensus.members] != [
            *other.consensus.members
        ]:
            findings.refused.append(
                f"tablet {tablet}: {replica} and {newest} have different configurations of {newest.config}; "
                f"one of them was rewritten by hand: delete it there, or leave the tablet out with "
                f"--without {tablet}"
            )
    known = [r for r in found if r.status.HasField("definition")]
    first = known[0] if known else newest
    for replica in known[1:]:
        one, two = first.status, replica.status
        spec, other_spec = one.definition.spec, two.definition.spec
        same_version = spec.schema.version == other_spec.schema.version
        if (
            one.report.table_id != two.report.table_id
            or one.partition != two.partition
            or (same_version and spec != other_spec)
        ):
            findings.refused.append(
                f"tablet {tablet}: {first} and {replica} differ in its table, partition or schema of version "
                f"{spec.schema.version}; their logs have diverged: delete the replica that is wrong, or "
                f"leave the tablet out with --without {tablet}"
            )


def servers_of(tablet: FoundTablet) -> list[ServerUuid]:
    """Return the servers of a tablet's configuration.

    None of them is ordered to create a replica again: an empty one would vote without its earlier votes.
    """
    return [ServerUuid(m.uuid) for m in tablet.consensus.members]
