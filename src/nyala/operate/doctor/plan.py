"""The plan of a recovery: a pure function of the facts, of the servers declared lost, and of new masters.

It keeps nothing between two runs: a step that was performed is not in the plan that is made afterwards.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nyala.common.ids import ServerUuid
from nyala.operate.doctor.facts import ClusterFacts, MasterFacts, TabletFacts, TServerFacts
from nyala.operate.doctor.steps import (
    AddMaster,
    DataAtRisk,
    DeleteOrphan,
    RecoverTablet,
    RecoveryStep,
    RemoveMaster,
    ReplaceLostTablet,
    risk_of,
)
from nyala.operate.survivors import ServerEndpoint, Survivor, has_majority
from nyala.raft.quorum import majority


@dataclass(frozen=True, slots=True)
class Declared:
    """Statements of the operator.

    Attributes:
        lost: uuids or addresses of servers whose data are lost for good.
        new_masters: addresses of new masters, which run.
    """

    lost: frozenset[str] = frozenset()
    new_masters: tuple[str, ...] = ()

    def is_lost(self, place: ServerEndpoint, other: str = "") -> bool:
        """Return whether a server was declared lost.

        Args:
            place: uuid and address of the server; one of them is empty if it is not known.
            other: uuid of another server that answers at its address, which then names neither of the two;
                empty: none.
        """
        by_address = place.address and not other and place.address in self.lost
        return bool(by_address or (place.uuid and place.uuid in self.lost))


def make_plan(facts: ClusterFacts, declared: Declared) -> list[RecoveryStep]:
    """Return the steps, in the order in which they are to be performed; none: nothing is to be done.

    Args:
        facts: the cluster.
        declared: statements of the operator.
    """
    if not facts.leader:
        return _without_leader(facts, declared)
    tservers = [s for t in facts.tservers for s in _of_tserver(t, facts, declared)]
    tablets = [s for t in facts.tablets if (s := _of_tablet(t, facts, declared))]
    orphans = [_of_orphan(tablet, one) for tablet, one in facts.orphans]
    more = _more_tservers(facts, declared)
    return [*_of_masters(facts, declared), *tservers, *tablets, *more, *orphans]


def remarks(facts: ClusterFacts, declared: Declared) -> list[str]:
    """Return why servers that were declared lost have no effect, one text for each.

    Args:
        facts: the cluster.
        declared: statements of the operator.
    """
    servers: list[MasterFacts | TServerFacts] = [*facts.masters, *facts.tservers]
    voters = [v for t in facts.tablets for v in _voters(t)]
    known = {n for p in (*(s.place for s in servers), *voters) for n in (p.uuid, p.address)}
    texts = [
        f"--lost {name}: no server has this uuid or address; those that do not answer: "
        + (", ".join(s.place.address for s in servers if not s.answers) or "none")
        for name in sorted(declared.lost - known)
    ]
    for server in servers:
        place = server.place
        if server.answers and place.uuid in declared.lost:
            texts.append(f"--lost {place.uuid}: {place.address} answers, so it is not lost")
        if server.other and place.address in declared.lost:
            texts.append(
                f"--lost {place.address}: another server, {server.other}, answers there, so the address does "
                f"not say which one is lost; if it is the one before: --lost {place.uuid}"
            )
    return texts


# ---- masters ------------------------------------------------------------------------------------------


def _without_leader(facts: ClusterFacts, declared: Declared) -> list[RecoveryStep]:
    """Return the steps for masters that have no leader: the operator performs them."""
    left = [m for m in facts.masters if m.catalog is not None and m.catalog.healthy]
    steps = [
        _start_master(m)
        for m in facts.masters
        if not m.answers and not declared.is_lost(m.place, m.other)
    ]
    steps += [_wait_for_master(m) for m in facts.masters if m.answers and m.problem]
    if left:
        found = sorted((m.catalog for m in left if m.catalog), key=lambda s: s.last, reverse=True)
        if has_majority(found) or steps:
            return steps or [
                RecoveryStep("elect-master", "a majority of the masters answers, and none leads yet",
                     "wait, and run nyala doctor again; if it lasts, see the masters' logs"),
            ]  # fmt: skip
        best = found[0]
        command = (
            f"stop the master {best.place.address}, run nyala local_replica cmeta rewrite_raft_config "
            f"catalog {best.place.uuid} --dir ITS_DIRECTORY, start it, then nyala master add for each new one"
        )
        why = "the masters have lost their majority: no table can be created, and none changed"
        return [RecoveryStep("recover-catalog", why, command, risk=risk_of(best, found))]
    if steps:
        return steps
    failed = "".join(
        f"; master {m.place.address} is FAILED: {m.error}" for m in facts.masters if m.error
    )
    return [
        RecoveryStep(
            "rebuild-catalog",
            f"no master has a catalog that can be read{failed}",
            "nyala master unsafe_rebuild TSERVER_ADDRESS... --dir NEW_DIRECTORY --address HOST:PORT "
            "--peer-address HOST:PORT, with the addresses of all tablet servers",
        )
    ]


def _start_master(master: MasterFacts) -> RecoveryStep:
    place = master.place
    name_of_it = place.uuid if master.other else place.address
    return RecoveryStep(
        f"start-{place.uuid or place.address}",
        f"master {place.address} does not answer{_because(master.problem)}",
        f"start it with its directory; if its data are lost for good: nyala doctor --lost {name_of_it}",
    )


def _wait_for_master(master: MasterFacts) -> RecoveryStep:
    place = master.place
    return RecoveryStep(
        f"wait-{place.uuid or place.address}",
        f"master {place.address} answers, and does not show its catalog{_because(master.problem)}",
        "it may have the catalog: wait, or remove the reason, and run nyala doctor again",
    )


def _because(problem: str) -> str:
    return f" ({problem})" if problem else ""


def _of_masters(facts: ClusterFacts, declared: Declared) -> list[RecoveryStep]:
    """Return the steps for masters that are dead, FAILED, or too few."""
    steps: list[RecoveryStep] = []
    removed = 0
    for master in facts.masters:
        if master.answers and not master.error:
            steps += _of_reports(f"master {master.place.address}", master.place, master.reports)
            continue
        if not master.answers and not declared.is_lost(master.place, master.other):
            steps.append(_start_master(master))
            continue
        removed += 1
        steps.append(_remove_master(master))
    left = len(facts.masters) - removed
    known = {m.place.address for m in facts.masters if m.answers and not m.error}
    coming = [a for a in declared.new_masters if a not in known]
    for address in coming:
        steps.append(
            RecoveryStep(
                f"add-{address}",
                f"master {address} is new: it gets a copy of the catalog, and a vote",
                f"nyala master add {address}",
                AddMaster(address),
            )
        )
    if (left + len(coming)) % 2 == 0:
        steps.append(_new_master(left + len(coming)))
    return steps


def _remove_master(master: MasterFacts) -> RecoveryStep:
    name = master.place.uuid or master.place.address
    why = (
        f"is FAILED: {master.error}" if master.answers else "does not answer, and was declared lost"
    )
    return RecoveryStep(
        f"remove-{name}",
        f"master {master.place.address} {why}",
        f"nyala master remove {name}",
        RemoveMaster(name),
    )


def _new_master(masters: int) -> RecoveryStep:
    return RecoveryStep(
        "new-master",
        f"{masters} masters tolerate no more failures than {masters - 1}",
        "start a master with an empty directory (nyala master run --dir NEW_DIRECTORY --address HOST:PORT "
        "--peer-address HOST:PORT --master-addresses ALL_MASTERS), then: nyala doctor --new-master HOST:PORT",
    )


# ---- tablet servers -------------------------------------------------------------------------------------


def _of_tserver(
    server: TServerFacts, facts: ClusterFacts, declared: Declared
) -> Iterable[RecoveryStep]:
    """Yield the steps for one tablet server."""
    place = server.place
    name = f"tablet server {place.uuid} at {place.address}"
    if server.starting:
        yield RecoveryStep(
            f"wait-{place.uuid}",
            f"{name} answers, and does not list its replicas: it is still opening them, is overloaded, or "
            f"refuses this user{_because(server.problem)}",
            "wait, and run nyala doctor again; nyala cluster ksck shows when it serves",
        )
    elif not server.answers and (server.alive or not declared.is_lost(place, server.other)):
        without = sum(
            any(v.uuid == place.uuid for v in _voters(t)) and not has_majority(t.found)
            for t in facts.tablets
        )
        # If no tablet needs it: a new server has replaced it, or it was decommissioned.
        if without or not (server.other or server.retired):
            yield _start_tserver(server, name, without)
    if server.answers and not server.alive:
        yield RecoveryStep(
            f"report-{place.uuid}",
            f"{name} answers, and does not report to the leader master {facts.leader}; it reports to "
            f"{', '.join(server.masters) or 'none'}",
            "check the network from it to the masters, and its --master-addresses",
        )
    yield from _of_reports(name, place, server.reports)
    if server.failed:
        tablet, error = server.failed[0]
        yield RecoveryStep(
            f"check-{place.uuid}",
            f"{len(server.failed)} replicas on {name} are FAILED, for instance that of {tablet}: {error}",
            f"check its disk (nyala remote_replica check {place.address}); the masters replace a replica "
            "whose group has a majority: on another tablet server, or here after member_failed_after_ms",
        )


def _of_reports(name: str, place: ServerEndpoint, reports: Sequence[str]) -> Iterable[RecoveryStep]:
    """Yield a step for what a server reports of itself, for instance of its disk or its clock."""
    if reports:
        yield RecoveryStep(
            f"mend-{place.uuid}",
            f"{name} reports: {'; and '.join(reports)}",
            "do what the report says, on its machine; nyala cluster ksck shows when it is over",
        )


def _start_tserver(server: TServerFacts, name: str, without: int) -> RecoveryStep:
    place = server.place
    command = (
        "start it with its directory, if the other one has a wrong one, or one that was not mounted"
        if server.other
        else "start it with its directory"
    )
    name_of_it = place.uuid if server.other else place.address
    command += f"; if its data are lost for good: nyala doctor --lost {name_of_it}"
    if server.alive:
        command = (
            "the leader master has heard from it lately: check the network from here to it; or wait"
        )
    return RecoveryStep(
        f"start-{place.uuid}",
        f"{name} does not answer{_because(server.problem)}; {without} tablets of which it is a voter have "
        "no majority",
        command,
    )


def _more_tservers(facts: ClusterFacts, declared: Declared) -> list[RecoveryStep]:
    """Return the step for too few tablet servers; one that may return is started, not replaced."""
    answer = sum(t.answers for t in facts.tservers)
    return_too = sum(
        not (t.answers or t.other or t.retired)
        and (t.starting or t.alive or not declared.is_lost(t.place))
        for t in facts.tservers
    )
    if answer + return_too >= facts.wanted:
        return []
    return [
        RecoveryStep(
            "new-tserver",
            f"{answer} tablet servers answer, and there are tables with {facts.wanted} replicas",
            "start tablet servers with empty directories (nyala tserver run); the masters add replicas there",
        )
    ]


# ---- tablets --------------------------------------------------------------------------------------------


def _of_tablet(tablet: TabletFacts, facts: ClusterFacts, declared: Declared) -> RecoveryStep | None:
    """Return the step for one tablet; None: it has a majority.

    A server that answers and does not list its replicas, or sends heartbeats to the leader master, is not
    lost whatever was declared.
    """
    if has_majority(tablet.found):
        return None
    known = {t.place.uuid: t for t in facts.tservers}
    silent = [v for v in _voters(tablet) if not (v.uuid in known and known[v.uuid].answers)]
    running = [
        v for v in silent if v.uuid in known and (known[v.uuid].starting or known[v.uuid].alive)
    ]
    undeclared = []
    for voter in silent:
        place = known[voter.uuid].place if voter.uuid in known else voter
        other = _other_at(place, facts)
        if not declared.is_lost(place, other):
            undeclared.append(voter.uuid if other else voter.address or voter.uuid)
    step = _without_majority(tablet, tuple(undeclared))
    return replace(step, running=tuple(v.address or v.uuid for v in running))


def _other_at(place: ServerEndpoint, facts: ClusterFacts) -> str:
    """Return the uuid of another tablet server that runs at the address of this one; empty: none.

    A voter that has not reported since a rebuild of the catalog has no facts of its own.
    """
    there = (
        t.other or t.place.uuid
        for t in facts.tservers
        if t.place.address == place.address and (t.answers or t.starting or t.other)
    )
    return next((uuid for uuid in there if uuid != place.uuid), "")


def _voters(tablet: TabletFacts) -> list[ServerEndpoint]:
    """Return the voters of a tablet as the catalog, and every replica that answers, have them.

    The catalog may be older than the last change of members.
    """
    voters = {v.uuid: v for v in tablet.voters}
    for one in tablet.found:
        for member in (*one.committed.members, *one.active.members):
            if member.voter:
                voters.setdefault(member.uuid, ServerEndpoint(member.uuid, member.address))
    return list(voters.values())


def _without_majority(tablet: TabletFacts, undeclared: tuple[str, ...]) -> RecoveryStep:
    target = _target(tablet.found)
    if target is not None:
        return _recover(tablet, target, undeclared)
    failed = [s for s in tablet.found if s.state == "FAILED"]
    if failed:
        return _from_files(tablet, failed)
    whole = tablet.kind == "journal"  # the tablet is all of it: the order has to be forced
    force = " --force" if whole else ""
    return RecoveryStep(
        f"replace-{tablet.tablet}",
        f"{tablet.title}: no replica is left",
        f"nyala tablet unsafe_replace_tablet {tablet.tablet}{force}; restore it from a backup afterwards",
        None if whole else ReplaceLostTablet(tablet.tablet),
        DataAtRisk(tablet.found),
        undeclared,
        discards=True,
    )


def _target(found: Sequence[Survivor]) -> Survivor | None:
    """Return the most up-to-date replica that may lead: a voter with data. None: there is none."""
    return next(
        (
            s
            for s in found
            if s.healthy and s.table and s.committed.may_lead(ServerUuid(s.place.uuid))
        ),
        None,
    )


def _recover(tablet: TabletFacts, target: Survivor, undeclared: tuple[str, ...]) -> RecoveryStep:
    kept = [s.place.uuid for s in tablet.found if s.healthy]
    keep = tuple(str(m.uuid) for m in target.committed.members if m.uuid in kept)
    voters = target.committed.voters
    return RecoveryStep(
        f"recover-{tablet.tablet}",
        f"{tablet.title}: {sum(v in kept for v in voters)} of {len(voters)} "
        f"voters answer, a majority is {majority(len(voters))}: it can be neither written nor read",
        f"nyala tablet unsafe_change_config {tablet.tablet} {target.place.uuid} {' '.join(keep)}",
        RecoverTablet(tablet.tablet, target.place, keep),
        risk_of(target, tablet.found),
        undeclared,
    )


def _from_files(tablet: TabletFacts, failed: Sequence[Survivor]) -> RecoveryStep:
    best = failed[0]
    return RecoveryStep(
        f"files-{tablet.tablet}",
        f"{tablet.title}: all replicas that are left are FAILED: {best.error}",
        f"stop the tablet server {best.place.address}, run nyala local_replica unsafe_recover "
        f"{tablet.tablet} --dir ITS_DIRECTORY --dry-run, which prints what its files have; then without "
        "--dry-run, and start the server",
        risk=DataAtRisk(tuple(failed)),
    )


def _of_orphan(tablet: str, one: Survivor) -> RecoveryStep:
    return RecoveryStep(
        f"orphan-{tablet}-{one.place.uuid}",
        f"tablet server {one.place.address} has a replica of {tablet} (table {one.table or 'unknown'}), of "
        "which the catalog has no record: the server may belong to another cluster, or the catalog is older "
        "than the table",
        f"nyala remote_replica delete {one.place.uuid} {tablet} --force",
        DeleteOrphan(one.place.uuid, tablet),
        DataAtRisk((one,)),
        discards=True,
    )
