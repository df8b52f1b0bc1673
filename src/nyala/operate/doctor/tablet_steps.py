"""Steps for tablets that have no majority, and for replicas whose tablet has no record in the catalog."""

from collections.abc import Sequence
from dataclasses import replace

from nyala.common.ids import ServerUuid
from nyala.operate.doctor.facts import ClusterFacts, Declared, TabletFacts
from nyala.operate.doctor.steps import (
    DataAtRisk,
    DeleteOrphan,
    RecoverTablet,
    RecoveryStep,
    ReplaceLostTablet,
    risk_of,
)
from nyala.operate.survivors import ServerEndpoint, Survivor, has_majority
from nyala.raft.quorum import majority


def of_tablet(tablet: TabletFacts, facts: ClusterFacts, declared: Declared) -> RecoveryStep | None:
    """Return the step for one tablet; None: it has a majority.

    A server that answers and does not list its replicas, or sends heartbeats to the leader master, is not
    lost whatever was declared.

    Args:
        tablet: the tablet.
        facts: the cluster.
        declared: statements of the operator.
    """
    if has_majority(tablet.found):
        return None
    known = {t.place.uuid: t for t in facts.tservers}
    silent = [v for v in voters_of(tablet) if not (v.uuid in known and known[v.uuid].answers)]
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


def voters_of(tablet: TabletFacts) -> list[ServerEndpoint]:
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


def of_orphan(tablet: str, one: Survivor) -> RecoveryStep:
    """Return the step for a replica whose tablet has no record in the catalog."""
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
