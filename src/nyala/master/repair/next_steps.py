"""Next steps of repair towards the full number of healthy replicas of a tablet. Pure.

A replica is added before one is removed (3-4-3): a lost member stays until another one has all data and a
vote. If no other server can get a replica, a member that cannot recover is removed first, and its own server
gets the new replica. One change of members at a time, decided from the committed configuration and its
leader's report, so the next leader of the masters continues where the last one stopped.
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

IN_PLACE = "it cannot recover, and only its own server can get the new replica"
"""Reason for the removal of a member that is replaced in place."""


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
    removed = change.server if isinstance(change, Remove) else None
    copies = [Copy(s.uuid) for s in tablet.joining if not s.holds]
    wanted = [*copies, *witness_steps.needs(tablet)]
    return [*([] if change is None else [change]), *(s for s in wanted if s.server != removed)]


def _change(tablet: GroupState, servers: TargetServers) -> ConfigChange | None:
    data_voters = [s for s in tablet.members if s.is_data_voter]
    leaving = [v for v in data_voters if v.failed or v.replace]
    staying = [v for v in data_voters if v not in leaving]
    missing, joining = tablet.replicas - len(staying), tablet.joining
    for member in tablet.members:
        failed = member.failed and (member.promote or not member.electable)
        if failed and not member.is_data_voter and tablet.majority_without(member):
            what = "a witness" if member.voter else "to become a replica"
            return Remove(member.uuid, f"it was {what}, and has failed")
    if len(joining) > max(0, missing):
        last = min(joining, key=lambda s: (s.holds, s.uuid))
        return Remove(last.uuid, "it is not needed any more")
    leaver = _removable(tablet, leaving, staying)
    if leaver is not None:
        return leaver
    with_witness = witness_steps.change(tablet, leaving, missing, servers)
    if with_witness is not None:
        return with_witness
    if len(joining) + len(tablet.witnesses) < missing:
        instead = leaving[len(joining)].uuid if len(joining) < len(leaving) else None
        server = servers.replica(instead)
        demoted = [s for s in tablet.members if not s.voter and s.replace]
        return _replaced_in_place([*leaving, *demoted], servers) if server is None else Add(server)
    return None


def _replaced_in_place(
    leaving: Sequence[ReplicaState], servers: TargetServers
) -> ConfigChange | None:
    """Return the removal of a member that cannot recover, if only its own server can get the new replica.

    The healthy voters are a majority of all voters (see `next_steps`), and this one is not among them, so
    the group tolerates as many failures without it as with it. A voter that is to leave its server stays; a
    member whose vote a witness has got does not.

    Args:
        leaving: voters that have failed, or are to be replaced, and members that gave up their vote.
        servers: choice of servers.
    """
    for member in leaving:
        unrecoverable = member.health is ReplicaHealth.UNRECOVERABLE
        if (
            unrecoverable
            and not (member.voter and member.replace)
            and servers.in_place(member.uuid)
        ):
            return Remove(member.uuid, IN_PLACE, in_place=True)
    return None


def _removable(
    tablet: GroupState, leaving: Sequence[ReplicaState], staying: Sequence[ReplicaState]
) -> Remove | None:
    """Return the removal of a voter with data, if enough healthy ones and a majority remain."""
    healthy = [v for v in staying if v.healthy]
    if leaving and len(healthy) >= tablet.replicas:
        member = min(leaving, key=lambda s: (not s.failed, s.uuid == tablet.leader))
        why = "it has failed" if member.failed else "it was to be replaced"
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
