"""Next steps of repair towards the full number of healthy replicas of a tablet. Pure.

A replica is added before one is removed (3-4-3): a lost member stays until another one has all data and a
vote. One change of members at a time, decided from the committed configuration and its leader's report, so
the next leader of the masters continues where the last one stopped.
"""

from collections.abc import Sequence

from nyala.master.catalog.group_state import (
    Add,
    ConfigChange,
    Copy,
    GroupState,
    Remove,
    RepairStep,
    ReplicaHealth,
    ReplicaState,
    TargetServers,
)
from nyala.master.repair import witness_steps


def next_steps(tablet: GroupState, servers: TargetServers) -> list[RepairStep]:
    """Return the steps due now: at most one change of members, and the copies that members without data need.

    Args:
        tablet: state of its group.
        servers: choice of servers for new replicas and witnesses.
    """
    if tablet.fully_replicated:
        return []
    voters = [s for s in tablet.members if s.voter]
    if 2 * sum(v.healthy for v in voters) <= len(voters):
        return []  # nothing can be committed: operators have to decide
    change = _change(tablet, servers)
    gone = change.server if isinstance(change, Remove) else None
    copies = [Copy(s.uuid) for s in tablet.joining if not s.holds]
    wanted = [*copies, *witness_steps.needs(tablet)]
    return [*([] if change is None else [change]), *(s for s in wanted if s.server != gone)]


def _change(tablet: GroupState, servers: TargetServers) -> ConfigChange | None:
    full = [s for s in tablet.members if s.full]
    leaving = [v for v in full if v.health is ReplicaHealth.FAILED or v.replace]
    staying = [v for v in full if v not in leaving]
    missing, joining = tablet.replicas - len(staying), tablet.joining
    for member in tablet.members:
        failed = member.health is ReplicaHealth.FAILED and (member.promote or not member.electable)
        if failed and not member.full and tablet.majority_without(member):
            what = "a witness" if member.voter else "to become a replica"
            return Remove(member.uuid, f"it was {what}, and has failed")
    if len(joining) > max(0, missing):
        last = min(joining, key=lambda s: (s.holds, s.uuid))
        return Remove(last.uuid, "it is needed no more")
    leaver = _removable(tablet, leaving, staying)
    if leaver is not None:
        return leaver
    with_witness = witness_steps.change(tablet, leaving, missing, servers)
    if with_witness is not None:
        return with_witness
    if len(joining) + len(tablet.witnesses) < missing:
        instead = leaving[len(joining)].uuid if len(joining) < len(leaving) else None
        server = servers.replica(instead)
        return None if server is None else Add(server)
    return None


def _removable(
    tablet: GroupState, leaving: Sequence[ReplicaState], staying: Sequence[ReplicaState]
) -> Remove | None:
    """Return the removal of a voter with data, if enough healthy ones and a majority remain."""
    healthy = [v for v in staying if v.healthy]
    if leaving and len(healthy) >= tablet.replicas:
        member = min(
            leaving, key=lambda s: (s.health is not ReplicaHealth.FAILED, s.uuid == tablet.leader)
        )
        why = "it has failed" if member.health is ReplicaHealth.FAILED else "it was to be replaced"
    elif not leaving and len(healthy) > tablet.replicas:
        others = [s for s in healthy if s.uuid != tablet.leader] or healthy
        member = max(others, key=lambda s: (_shares_location(s, staying), s.load, s.uuid))
        why = f"there are {len(staying)} replicas where {tablet.replicas} are wanted"
    else:
        return None
    return Remove(member.uuid, why) if tablet.majority_without(member) else None


def _shares_location(member: ReplicaState, members: Sequence[ReplicaState]) -> bool:
    """Return whether another replica is in the same location."""
    return bool(member.location) and sum(s.location == member.location for s in members) > 1
