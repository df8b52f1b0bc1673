"""Witnesses in repair: a log that votes at once instead of a lost voter, and gets the data later. Pure.

    a witness joins, gets a log, then a vote       one more voter than before
    the lost voter gives up its vote               any one may be lost again; nothing was copied yet
    the witness gets the data, and may then lead   as many replicas as there should be
    the lost member is removed                     or is back before that: then the witness is removed

Witnesses added by operators are treated alike: a vote, and no replica. Nothing here removes a voter with
data from the group.
"""

from collections.abc import Sequence

from nyala.master.catalog.group_state import (
    Add,
    ConfigChange,
    Copy,
    GroupState,
    MakeWitness,
    Modify,
    Remove,
    ReplicaState,
    TargetServers,
)


def needs(tablet: GroupState) -> list[Copy | MakeWitness]:
    """Return the copies and logs that witnesses need."""
    fresh = [MakeWitness(s.uuid) for s in tablet.witnesses if not s.holds and not s.voter]
    filled = [Copy(s.uuid) for s in tablet.witnesses if s.voter and s.promote and s.log_only]
    return [*fresh, *filled]


def change(
    tablet: GroupState, leaving: Sequence[ReplicaState], missing: int, servers: TargetServers
) -> ConfigChange | None:
    """Return the due change of members that concerns a witness, if any.

    Args:
        tablet: state of its group.
        leaving: voters with data that have failed, or are to be replaced.
        missing: number of missing voters with data.
        servers: choice of servers for new replicas and witnesses.
    """
    demoted = [s for s in tablet.members if not s.voter and s.replace]
    if missing <= 0:
        return _remove_unneeded(tablet, demoted)
    for member in demoted:
        if member.healthy and member.holds and len(tablet.joining) < missing:
            return _modify(member, "it is back", promote=True, replace=False)
    lost = [g for g in leaving if g.failed]
    return _promote_witness(tablet, lost, demoted, missing, servers) or _filled(
        tablet, missing, servers
    )


def _remove_unneeded(tablet: GroupState, demoted: Sequence[ReplicaState]) -> ConfigChange | None:
    """Remove members without a vote, and witnesses, once others have the data."""
    for member in demoted:
        return Remove(member.uuid, "another one has its place")
    for member in tablet.witnesses:
        if not member.voter or tablet.majority_without(member):
            return Remove(member.uuid, "a witness is not needed any more")
    return None


def _promote_witness(
    tablet: GroupState,
    lost: Sequence[ReplicaState],
    demoted: Sequence[ReplicaState],
    missing: int,
    servers: TargetServers,
) -> ConfigChange | None:
    """Give the vote of a lost voter to a witness."""
    for member in tablet.witnesses:
        if not member.voter and member.healthy and member.holds:
            return _modify(member, "it has a log", voter=True)
    voting = sum(s.voter and s.healthy for s in tablet.witnesses)
    if lost and voting > len(demoted) and tablet.majority_without(lost[0]):
        return _modify(lost[0], "a witness votes in its place", voter=False, replace=True)
    room = len(tablet.witnesses) + len(tablet.joining) < missing
    if lost and room and tablet.witness_first:
        server = servers.witness()
        return None if server is None else Add(server, witness=True)
    return None


def _filled(tablet: GroupState, missing: int, servers: TargetServers) -> ConfigChange | None:
    """Give the data to a witness that votes; it may lead once it has them."""
    for member in tablet.witnesses:
        if not member.voter or not member.healthy:
            continue
        if member.promote and member.holds and not member.log_only:
            return _modify(member, "it has the data", electable=True, promote=False)
        room = len(tablet.joining) < missing
        if not member.promote and room and servers.may_fill(member.uuid):
            return _modify(member, "it is to get the data", promote=True)
    return None


def _modify(member: ReplicaState, why: str, **more: bool) -> Modify:
    now = {
        "voter": member.voter,
        "promote": member.promote,
        "replace": member.replace,
        "electable": member.electable,
    }
    return Modify(member.uuid, why=why, **{**now, **more})
