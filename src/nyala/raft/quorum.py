"""Quorum arithmetic: votes, and the highest number that a majority has reached.

Rules: functions from values to values. A set of no voters can decide nothing.
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
    """Return how many of `voters` are more than half of them."""
    return voters // 2 + 1


def reached(values: Sequence[int]) -> int:
    """Return the highest number that a majority is at or above; one value per voter.

    With match indexes this is the commit rule's first half (dissertation 3.6.2: the caller still checks
    the term), with rounds or hybrid times the read index's.
    """
    if not values:
        return 0
    return sorted(values)[len(values) - majority(len(values))]


def tally(voters: Sequence[ServerUuid], votes: Mapping[ServerUuid, bool]) -> Tally:
    """Return where an election stands; votes of servers that are not voters are not counted."""
    granted = sum(1 for v in voters if votes.get(v) is True)
    refused = sum(1 for v in voters if votes.get(v) is False)
    needed = majority(len(voters))
    if granted >= needed:
        return Tally.WON
    return Tally.LOST if refused > len(voters) - needed else Tally.PENDING


def contains(voters: Sequence[ServerUuid], present: Container[ServerUuid]) -> bool:
    """Return whether `present` holds a majority of `voters`."""
    return bool(voters) and sum(1 for v in voters if v in present) >= majority(len(voters))
