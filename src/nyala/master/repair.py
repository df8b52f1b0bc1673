"""What a tablet's group needs next so that it has its full number of healthy replicas. Pure.

Add before remove (3-4-3): who is lost keeps its place until another one has all the data and its vote. One
change of members at a time, decided anew from the committed configuration and its leader's word on it, so
that whoever leads the masters next goes on where the last one was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from nyala.common.ids import ServerUuid


class Health(Enum):
    """What is known of a member."""

    FINE = "FINE"
    SILENT = "SILENT"
    """It does not answer, and may come back: nothing is decided on it."""
    FAILED = "FAILED"
    """It is to be replaced."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One member of a committed configuration.

    Attributes:
        uuid: its server.
        voter: counts in elections and commits.
        promote: a non-voter that is to become a voter.
        replace: a voter that is to be replaced.
        health: what is known of it.
        holds: whether it has a replica, as its server reports.
        load: how many replicas its server has.
        location: what its server may lose together with others.
    """

    uuid: ServerUuid
    voter: bool = True
    promote: bool = False
    replace: bool = False
    health: Health = Health.FINE
    holds: bool = True
    load: int = 0
    location: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """One tablet as catalog and reports show it.

    Attributes:
        leader: the member that takes orders.
        replicas: how many voters there should be.
        seats: the members.
    """

    leader: ServerUuid
    replicas: int
    seats: tuple[Seat, ...]

    @property
    def whole(self) -> bool:
        """Whether there is nothing to do: as many voters as there should be, and nobody else, all fine."""
        return len(self.seats) == self.replicas and all(
            s.voter and s.health is Health.FINE and not s.replace for s in self.seats
        )


@dataclass(frozen=True, slots=True)
class Add:
    """A non-voter that is to be promoted joins; `instead` of whom, where it replaces somebody."""

    server: ServerUuid


@dataclass(frozen=True, slots=True)
class Remove:
    """A member leaves."""

    server: ServerUuid
    why: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A member without a replica is given the leader's."""

    server: ServerUuid


Step = Add | Remove | Copy


def next_steps(
    tablet: Situation, choose: Callable[[ServerUuid | None], ServerUuid | None]
) -> list[Step]:
    """Return what is to be done now: at most one change of members, and copies to those that wait for one.

    Args:
        tablet: as it is.
        choose: a server for a new replica, in the place of a member if one is named; None: not now.
    """
    if tablet.whole:
        return []
    voters = [s for s in tablet.seats if s.voter]
    fine = [v for v in voters if v.health is Health.FINE]
    if 2 * len(fine) <= len(voters):
        return []  # nothing can be committed; what is left of it is for people to decide
    change = _change(tablet, choose)
    gone = change.server if isinstance(change, Remove) else None
    waiting = [s for s in _coming(tablet) if not s.holds and s.uuid != gone]
    return [*([] if change is None else [change]), *(Copy(s.uuid) for s in waiting)]


def _change(
    tablet: Situation, choose: Callable[[ServerUuid | None], ServerUuid | None]
) -> Add | Remove | None:
    voters, coming = [s for s in tablet.seats if s.voter], _coming(tablet)
    going = [v for v in voters if v.health is Health.FAILED or v.replace]
    lasting = [v for v in voters if v not in going]
    missing = tablet.replicas - len(lasting)
    for seat in coming:
        if seat.health is Health.FAILED:
            return Remove(seat.uuid, "it was to become a replica, and has failed")
    if len(coming) > max(0, missing):
        last = min(coming, key=lambda s: (s.holds, s.uuid))
        return Remove(last.uuid, "it is needed no more")
    if going or len(lasting) > tablet.replicas:
        leaver = _leaver(tablet, going, lasting)
        if leaver is not None:
            return leaver
    if len(coming) < missing:
        instead = going[len(coming)].uuid if len(coming) < len(going) else None
        server = choose(instead)
        return None if server is None else Add(server)
    return None


def _coming(tablet: Situation) -> list[Seat]:
    return [s for s in tablet.seats if not s.voter and s.promote]


def _leaver(tablet: Situation, going: Sequence[Seat], lasting: Sequence[Seat]) -> Remove | None:
    """Return the voter that can be spared: enough fine ones stay, and they are a majority of what stays."""
    steady = [v for v in lasting if v.health is Health.FINE]
    if going and len(steady) >= tablet.replicas:
        seat = min(going, key=lambda s: (s.health is not Health.FAILED, s.uuid == tablet.leader))
        why = "it has failed" if seat.health is Health.FAILED else "it was to be replaced"
    elif not going and len(steady) > tablet.replicas:
        others = [s for s in steady if s.uuid != tablet.leader] or steady
        seat = max(others, key=lambda s: (_crowded(s, lasting), s.load, s.uuid))
        why = f"there are {len(lasting)} replicas where {tablet.replicas} are wanted"
    else:
        return None
    stays = [s for s in (*going, *lasting) if s is not seat]
    fine = [s for s in stays if s.health is Health.FINE]
    return Remove(seat.uuid, why) if 2 * len(fine) > len(stays) else None


def _crowded(seat: Seat, seats: Sequence[Seat]) -> bool:
    """Whether another replica stands in the same location."""
    return bool(seat.location) and sum(s.location == seat.location for s in seats) > 1
