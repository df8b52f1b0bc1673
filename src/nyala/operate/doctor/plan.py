"""The plan of a recovery: a pure function of the facts, of the servers declared lost, and of new masters.

It keeps nothing between two runs: a step that was performed is not in the plan that is made afterwards.
"""

from collections.abc import Iterable, Sequence

from nyala.common import addresses
from nyala.common.texts.counted import counted
from nyala.operate.doctor.facts import ClusterFacts, Declared, MasterFacts, TServerFacts
from nyala.operate.doctor.steps import AddMaster, RecoveryStep, RemoveMaster, risk_of
from nyala.operate.doctor.tablet_steps import of_orphan, of_tablet, voters_of
from nyala.operate.survivors import ServerEndpoint, has_majority


def make_plan(facts: ClusterFacts, declared: Declared) -> list[RecoveryStep]:
    """Return the steps, in the order in which they are to be performed; none: nothing is to be done.

    Args:
        facts: the cluster.
        declared: statements of the operator.
    """
    if not facts.leader:
        return _without_leader(facts, declared)
    tservers = [s for t in facts.tservers for s in _of_tserver(t, facts, declared)]
    tablets = [s for t in facts.tablets if (s := of_tablet(t, facts, declared))]
    orphans = [of_orphan(tablet, one) for tablet, one in facts.orphans]
    more = _more_tservers(facts, declared)
    return [*_of_masters(facts, declared), *tservers, *tablets, *more, *orphans]


def remarks(facts: ClusterFacts, declared: Declared) -> list[str]:
    """Return why servers that were declared lost have no effect, one text for each.

    Args:
        facts: the cluster.
        declared: statements of the operator.
    """
    servers: list[MasterFacts | TServerFacts] = [*facts.masters, *facts.tservers]
    voters = [v for t in facts.tablets for v in voters_of(t)]
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
    if master.untrusted:
        return _new_certificate(f"master {place.address}", "master", master)
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
        if master.untrusted:
            steps.append(_new_certificate(f"master {master.place.address}", "master", master))
            continue
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
    if server.untrusted:
        yield _new_certificate(name, "tserver", server)
    elif server.starting:
        yield RecoveryStep(
            f"wait-{place.uuid}",
            f"{name} answers, and does not list its replicas: it is still opening them, is overloaded, or "
            f"refuses this user{_because(server.problem)}",
            "wait, and run nyala doctor again; nyala cluster ksck shows when it serves",
        )
    elif not server.answers and (server.alive or not declared.is_lost(place, server.other)):
        without = sum(
            any(v.uuid == place.uuid for v in voters_of(t)) and not has_majority(t.found)
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
            f"{counted(len(server.failed), 'FAILED replica')} on {name}, for instance that of "
            f"{tablet}: {error}",
            f"check its disk (nyala remote_replica check {place.address}); the masters replace a replica "
            "whose group has a majority: on another tablet server, or here after member_failed_after_ms",
        )


def _new_certificate(name: str, role: str, server: MasterFacts | TServerFacts) -> RecoveryStep:
    """Return the step for a server that runs, and whose certificate is not accepted.

    Args:
        name: of the server, for the finding.
        role: "master" or "tserver".
        server: its facts.
    """
    place = server.place
    uuid, (host, _) = place.uuid or "UUID", addresses.parse(place.address)
    return RecoveryStep(
        f"certify-{place.uuid or place.address}",
        f"{name} runs, and its certificate is not accepted: {server.untrusted}. No data are lost",
        f"nyala cert server --dir AUTHORITY --name {role}-{uuid} --host {host} --out NEW, where the "
        "authority's folder is; then, on its machine, put NEW/server.crt and NEW/server.key in place of the "
        "files of --cert and --key, or both, one after the other, into certs/server.pem in its directory. It "
        "takes them without a restart. If the clock of one of the machines is wrong, set that right instead",
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
        f"{name} does not answer{_because(server.problem)}; {counted(without, 'tablet')} of which it is a "
        f"voter {'has' if without == 1 else 'have'} no majority",
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
            f"{counted(answer, 'tablet server answers', 'tablet servers answer')}, and there are tables with "
            f"{counted(facts.wanted, 'replica')}",
            "start tablet servers with empty directories (nyala tserver run); the masters add replicas there",
        )
    ]
