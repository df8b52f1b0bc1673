"""The catalog that is written for what was found on the tablet servers. Pure.

Everything that the lost masters had replicated and no tablet server has is named by the findings, or in
docs/operate/lost-masters.md.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.common.ids import ServerUuid
from nyala.env.clock import random_id
from nyala.master.catalog.plan import AccessChanges, CatalogPlan
from nyala.master.catalog.records.tables import TableState, TabletState
from nyala.master.ddl import create_table, kinds, table_spec
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.placement import Candidate, place
from nyala.master.leader import CATALOG_FORMAT
from nyala.master.rebuild.evidence import (
    Findings,
    RebuildChoices,
    ServerAnswer,
    highest_time,
    moment_us,
)
from nyala.master.rebuild.tables import FoundTable, found_table
from nyala.master.rebuild.tablets import FoundTablet, found_tablets, servers_of
from nyala.security.authority import MAX_DAYS
from nyala.security.revocation import DAY_US
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """A catalog to write, and what an operator has to know before.

    Attributes:
        cluster_id: of the cluster; empty: the servers do not agree.
        time: hybrid time above which the new masters assign times.
        catalog: rows of the catalog.
        tables: what was found, by name.
        findings: contradictions, losses and notes.
    """

    cluster_id: str
    time: int
    catalog: CatalogPlan
    tables: tuple[FoundTable, ...]
    findings: Findings


def plan(answers: Sequence[ServerAnswer], choices: RebuildChoices) -> RebuildPlan:
    """Return the catalog for what the tablet servers of a cluster have.

    Args:
        answers: of all servers, one at least.
        choices: of the operator.
    """
    findings = Findings()
    cluster_id = _cluster_of(answers, findings)
    time = highest_time(answers, choices.now_us)
    ahead_us = to_micros(time) - choices.now_us
    if ahead_us > choices.ahead_us:
        findings.refused.append(
            f"the times of the tablet servers are {ahead_us / 1e6:.1f} s ahead of this machine's clock: set "
            "it (NTP), or allow more with --set clock_max_ahead_ms=..."
        )
    tables = _tables(answers, choices, findings)
    records: list[cat.TableRecord] = []
    tablets: list[cat.TabletRecord] = []
    inputs = PlanInputs([a.info for a in answers], choices.rng, choices.now_us)
    placed = Counter(m for t in tables for f in t.every_tablet for m in servers_of(f))
    for table in tables:
        records.append(_table_record(table, choices, time))
        tablets += [_tablet_record(table, t, choices) for t in table.every_tablet]
        try:
            tablets += _empty_tablets(table, inputs, placed, time)
        except NyalaError as err:
            findings.refused.append(
                f"{table}: its missing tablets cannot be made again: {err.message}"
            )
    cluster = cat.ClusterRecord(
        cluster_id=cluster_id,
        catalog_incarnation=random_id(choices.rng),
        format_version=CATALOG_FORMAT,
        created_us=moment_us(time),
    )
    catalog = CatalogPlan(
        tuple(tablets),
        tuple(records),
        cluster=cluster,
        decisions=_decisions(tables, findings),
        marks=cat.DecisionMarks(removed=time, keys_removed=time),
        access=_access(answers, choices, time, findings),
    )
    return RebuildPlan(cluster_id, time, catalog, tables, findings)


def _access(
    answers: Sequence[ServerAnswer], choices: RebuildChoices, time: int, findings: Findings
) -> AccessChanges:
    """Return the revocations that the servers know of, each at its latest time, and a version of grants.

    Servers ignore a version of the grants below that which they have.

    Args:
        answers: of all servers.
        choices: have the present time.
        time: hybrid time above which the new masters assign times.
        findings: gets what is lost in each case.
    """
    known: dict[str, cat.RevocationRecord] = {}
    for answer in answers:
        for found in answer.revocations:
            if found.id not in known or found.revoked_us > known[found.id].revoked_us:
                known[found.id] = found
    findings.notes.append(
        "only the masters had users' accounts, join tokens, grants, keys of jobs and streams, comments, "
        "owners, and dropped tables with their names: they are lost (docs/operate/lost-masters.md). "
        f"{len(known)} revocations of certificates are kept, those that the tablet servers know of"
    )
    rules = cat.AccessRulesRecord(version=moment_us(time))
    until_us = choices.now_us + MAX_DAYS * DAY_US
    kept = [
        cat.RevocationRecord(
            id=r.id, revoked_us=r.revoked_us, until_us=until_us, revoked_by="master unsafe_rebuild"
        )
        for _, r in sorted(known.items())
    ]
    return AccessChanges(rules=rules, revocations=tuple(kept))


def _cluster_of(answers: Sequence[ServerAnswer], findings: Findings) -> str:
    of_cluster: dict[str, list[str]] = {}
    for answer in answers:
        of_cluster.setdefault(answer.info.cluster_id, []).append(answer.info.address)
    if len(of_cluster) == 1 and "" not in of_cluster:
        return next(iter(of_cluster))
    described = "; ".join(
        f"{', '.join(a)}: {c or 'none yet'}" for c, a in sorted(of_cluster.items())
    )
    findings.refused.append(
        f"the servers do not belong to one cluster ({described}); name the tablet servers of one cluster only"
    )
    return ""


def _tables(
    answers: Sequence[ServerAnswer], choices: RebuildChoices, findings: Findings
) -> tuple[FoundTable, ...]:
    """Return the tables and journals that there are, with distinct names, by name."""
    of_table: dict[str, list[FoundTablet]] = {}
    known: set[str] = set()
    kept = [
        ServerAnswer(a.info, [t for t in a.tablets if t.report.tablet_id not in choices.without])
        for a in answers
    ]
    known.update(t.report.tablet_id for a in answers for t in a.tablets)
    for tablet in found_tablets(kept, findings):
        known.add(tablet.table)
        if tablet.table not in choices.without:
            of_table.setdefault(tablet.table, []).append(tablet)
    found = [found_table(table, some, findings) for table, some in sorted(of_table.items())]
    tables = [table for table in found if table is not None]
    for table in tables:
        table.spec.name = choices.names.get(table.id, table.spec.name)
    for strange in sorted({*choices.without, *choices.names} - known):
        findings.refused.append(
            f"no server has a tablet, or a tablet of a table, with the id {strange}"
        )
    _check_names(tables, findings)
    return tuple(sorted(tables, key=lambda t: (t.spec.name, t.id)))


def _check_names(tables: Sequence[FoundTable], findings: Findings) -> None:
    of_name: dict[str, list[FoundTable]] = {}
    for table in tables:
        of_name.setdefault(table.spec.name, []).append(table)
        try:
            table_spec.check_name(table.spec.name, table.kind.name)
        except NyalaError as err:
            findings.refused.append(f"{table}: {err.message}")
    for name, same in of_name.items():
        if len(same) > 1:
            listed = "; ".join(
                f"{t} with {sum(f.rows for f in t.tablets)} rows, last written at "
                f"{max(f.applied for f in t.tablets)}"
                for t in same
            )
            findings.refused.append(
                f"{len(same)} of them are named {name!r}: {listed}. All but one were dropped, or renamed: "
                "leave one out with --without ID, or give it another name with --name ID=NAME"
            )


def _table_record(table: FoundTable, choices: RebuildChoices, time: int) -> cat.TableRecord:
    """Return the record of a table, which is being altered to the next version."""
    every = table.every_tablet
    record = cat.TableRecord(
        id=table.id,
        state=TableState.ALTERING.value,
        spec=table.spec,
        created_us=choices.now_us,
        fully_applied_schema=pb.Schema(version=table.applied),
        past_from=max(t.definition.columns_from for t in every),
    )
    if any(t.definition.columns_unknown for t in every):
        record.past_from = time
    if any(r.at for t in every for r in t.definition.ranges):
        # A dropped range that was purged had ended before: no read below may lack its rows silently.
        history_us = table_spec.history_of(table.spec, choices.history_s) * 1_000_000
        record.history_from = max(0, time - from_micros(history_us))
    return record


def _tablet_record(
    table: FoundTable, tablet: FoundTablet, choices: RebuildChoices
) -> cat.TabletRecord:
    record = cat.TabletRecord(
        id=tablet.id,
        table_id=table.id,
        state=TabletState.RUNNING.value,
        partition=convert.partition_to_proto(tablet.partition),
        consensus=tablet.consensus,
        reported_by=servers_of(tablet),
        created_us=choices.now_us,
        first_schema_version=table.spec.schema.version,
    )
    if tablet in table.dropped:
        record.state, record.dropped_at = TabletState.DROPPED.value, tablet.retired_at
    return record


def _empty_tablets(
    table: FoundTable, inputs: PlanInputs, placed: Counter[ServerUuid], time: int
) -> list[cat.TabletRecord]:
    """Return the records of new tablets for the partitions that no tablet has.

    Args:
        table: the table.
        inputs: servers and randomness.
        placed: number of replicas of each server.
        time: hybrid time above which a journal's stamps begin.

    Raises:
        InvalidArgument: the table has more replicas than there are servers.
    """
    if not table.missing:
        return []
    servers = [
        Candidate(ServerUuid(s.uuid), s.location, placed[ServerUuid(s.uuid)]) for s in inputs.live
    ]
    chosen = place(servers, len(table.missing), table.spec.replicas, inputs.rng)
    made = [
        create_table.new_tablet(table.id, part, on, inputs, table.spec.schema.version)
        for part, on in zip(table.missing, chosen, strict=True)
    ]
    for record in made:
        record.floor = kinds.rules_of(table.spec.kind).floor(time)
    return made


def _decisions(tables: Sequence[FoundTable], findings: Findings) -> tuple[cat.DecisionRecord, ...]:
    """Return the decisions of transactions that some tablets have applied, and others not yet.

    A transaction that no tablet has applied, and whose commit time no leader was sent, was not acknowledged:
    it is undone where it is prepared. That is certain only if each tablet has a leader that answered.
    """
    every = [t for table in tables for t in table.every_tablet]
    ended: dict[bytes, dict[str, int]] = {}
    waiting: dict[bytes, list[str]] = {}
    for tablet in every:
        for transaction, at in (*tablet.ended.items(), *tablet.decided.items()):
            ended.setdefault(transaction, {})[tablet.id] = at
        for transaction in tablet.prepared:
            waiting.setdefault(transaction, []).append(tablet.id)
    unsettled = [t.id for t in every if not t.settled]
    made: list[cat.DecisionRecord] = []
    for transaction, tablets in sorted(waiting.items()):
        times = ended.get(transaction, {})
        if not times and unsettled:
            findings.losses.append(
                f"transaction {transaction.hex()} is prepared in {', '.join(tablets)}, and whether another "
                f"tablet commits it is not known, since no leader of {', '.join(unsettled[:20])} answered "
                "that has applied its log: repeat the command when there is one; else it is undone, and a "
                "tablet with a decision in its log may apply its part later"
            )
        elif not times:
            findings.notes.append(
                f"transaction {transaction.hex()} is prepared in {', '.join(tablets)} and applied nowhere: "
                "it was not acknowledged as committed, and is undone"
            )
        elif len(set(times.values())) > 1:
            findings.refused.append(_different_times(transaction, times))
        else:
            made.append(
                cat.DecisionRecord(
                    transaction=transaction,
                    at=next(iter(times.values())),
                    tablet_ids=sorted({*tablets, *times}),
                )
            )
    return tuple(made)


def _different_times(transaction: bytes, times: Mapping[str, int]) -> str:
    named = ", ".join(f"{at} in {tablet}" for tablet, at in sorted(times.items()))
    return (
        f"transaction {transaction.hex()} has different commit times ({named}): leave the wrong tablet out "
        "with --without"
    )
