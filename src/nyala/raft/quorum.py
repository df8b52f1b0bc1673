"""Quorum arithmetic: votes, and the highest index that a majority has reached.

An empty set of voters decides nothing.
"""

from collections.abc import Container, Mapping, Sequence
from enum import Enum

from nyala.common.ids import ServerUuid


class Tally(Enum):
    """State of an election."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """Return the size of a majority."""
    return voters // 2 + 1


def reached(values: Sequence[int]) -> int:
    """Return the highest value that a majority has reached; one value per voter.

    With match indexes this is the first half of the commit rule (dissertation 3.6.2; the caller checks the
    term).
    """
    if not values:
        return 0
    return sorted(values)[len(values) - majority(len(values))]


def tally(voters: Sequence[ServerUuid], votes: Mapping[ServerUuid, bool]) -> Tally:
    """Return the state of an election; only votes of voters are counted."""
    granted = sum(1 for v in voters if votes.get(v) is True)
    refused = sum(1 for v in voters if votes.get(v) is False)
    needed = majority(len(voters))
    if granted >= needed:
        return Tally.WON
    return Tally.LOST if refused > len(voters) - needed else Tally.PENDING


def contains(voters: Sequence[ServerUuid], present: Container[ServerUuid]) -> bool:
    """Return whether `present` contains a majority of `voters`."""
    return bool(voters) and sum(1 for v in voters if v in present) >= majority(len(voters))
