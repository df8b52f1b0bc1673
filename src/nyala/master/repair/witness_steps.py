"""Witnesses in repair: a log that votes at once, in the place of who is lost, and gets the data later. Pure.

    a witness joins, gets a log, then a vote       one more voter than before
    who is lost gives up its vote                  any one may be lost again; nothing was copied yet
    the witness gets the data, and may then lead   as many replicas as there should be
    who is lost leaves                             or is back before that: then the witness leaves

Witnesses that people made are treated alike: a vote, and no replica. Nothing is decided here that takes a
voter with data from the group.
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
    ReplicaHealth,
    ReplicaState,
    TargetServers,
)


def needs(tablet: GroupState) -> list[Copy | MakeWitness]:
    """Return what witnesses lack: the log, or the data if they are to have it."""
    fresh = [MakeWitness(s.uuid) for s in tablet.witnesses if not s.holds and not s.voter]
    filled = [Copy(s.uuid) for s in tablet.witnesses if s.voter and s.promote and s.log_only]
    return [*fresh, *filled]


def change(
    tablet: GroupState, going: Sequence[ReplicaState], missing: int, servers: TargetServers
) -> ConfigChange | None:
    """Return the change of members that has to do with a witness, if one is due.

    Args:
        tablet: as it is.
        going: voters with data that have failed, or are to be replaced.
        missing: how many voters with data there are too few.
        servers: who can take what.
    """
    parked = [s for s in tablet.seats if not s.voter and s.replace]
    if missing <= 0:
        return _needless(tablet, parked)
    for seat in parked:
        if seat.fine and seat.holds and len(tablet.coming) < missing:
            return _made(seat, "it is back", promote=True, replace=False)
    lost = [g for g in going if g.health is ReplicaHealth.FAILED]
    return _standing_in(tablet, lost, parked, missing, servers) or _filled(tablet, missing, servers)


def _needless(tablet: GroupState, parked: Sequence[ReplicaState]) -> ConfigChange | None:
    """Who gave up its vote goes when others have its data, and so do witnesses."""
    for seat in parked:
        return Remove(seat.uuid, "another one has its place")
    for seat in tablet.witnesses:
        if not seat.voter or tablet.spares(seat):
            return Remove(seat.uuid, "a witness is needed no more")
    return None


def _standing_in(
    tablet: GroupState,
    lost: Sequence[ReplicaState],
    parked: Sequence[ReplicaState],
    missing: int,
    servers: TargetServers,
) -> ConfigChange | None:
    """A witness gets the vote of who is lost."""
    for seat in tablet.witnesses:
        if not seat.voter and seat.fine and seat.holds:
            return _made(seat, "it has a log", voter=True)
    voting = sum(s.voter and s.fine for s in tablet.witnesses)
    if lost and voting > len(parked) and tablet.spares(lost[0]):
        return _made(lost[0], "a witness votes in its place", voter=False, replace=True)
    room = len(tablet.witnesses) + len(tablet.coming) < missing
    if lost and room and tablet.witness_first:
        server = servers.witness()
        return None if server is None else Add(server, witness=True)
    return None


def _filled(tablet: GroupState, missing: int, servers: TargetServers) -> ConfigChange | None:
    """A witness that votes is given the data, and may lead when it has them."""
    for seat in tablet.witnesses:
        if not seat.voter or not seat.fine:
            continue
        if seat.promote and seat.holds and not seat.log_only:
            return _made(seat, "it has the data", electable=True, promote=False)
        room = len(tablet.coming) < missing
        if not seat.promote and room and servers.may_fill(seat.uuid):
            return _made(seat, "it is to get the data", promote=True)
    return None


def _made(seat: ReplicaState, why: str, **more: bool) -> Modify:
    now = {
        "voter": seat.voter,
        "promote": seat.promote,
        "replace": seat.replace,
        "electable": seat.electable,
    }
    return Modify(seat.uuid, why=why, **{**now, **more})
