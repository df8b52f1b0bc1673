"""Aggregated lifetimes of a rowset's versions, by which a reader at a time skips rowsets.

A rowset of history only, or one written after the time of a read, costs a reader nothing; if no version had
ended by then, no version is checked.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Stamps = npt.NDArray[np.uint64]
NEVER = (1 << 64) - 1


@dataclass(slots=True)  # not frozen: that takes four times as long, for each rowset of each write
class Ended:
    """Aggregates of the ended versions of a rowset at some moment. Immutable.

    Attributes:
        rows: how many.
        first: least of their stamps; `NEVER` if there are none.
        last: greatest of their stamps; 0 if there are none.
    """

    rows: int = 0
    first: int = NEVER
    last: int = 0

    def more(self, stamps: Stamps) -> "Ended":
        """Return this with versions that end at these stamps."""
        if not len(stamps):
            return self
        first, last = int(stamps[0]), int(stamps[-1])
        if len(stamps) > 1:
            first, last = int(stamps.min()), int(stamps.max())
        return self.with_more(len(stamps), first, last)

    def with_more(self, rows: int, first: int, last: int) -> "Ended":
        """Return these lifetimes with more versions, which end from `first` to `last`.

        Args:
            rows: number of further versions.
            first: least end stamp among them.
            last: greatest end stamp among them.
        """
        return Ended(
            self.rows + rows,
            first
            if first < self.first
            else self.first,  # a call of `min` takes as long as all this
            last if last > self.last else self.last,
        )

    @staticmethod
    def of(ends: Stamps) -> "Ended":
        """Return what had ended of versions that end at these stamps, 0 for live ones."""
        return Ended().more(ends[ends != 0])


@dataclass(slots=True)
class Lifetimes:
    """Aggregated lifetimes of a rowset's versions. Immutable.

    Attributes:
        rows: how many versions.
        first_ins: least stamp at which one began.
        last_ins: greatest.
        ended: number of these versions that have ended; more may end later, above every time that is read.
    """

    rows: int
    first_ins: int
    last_ins: int
    ended: Ended = field(default_factory=Ended)

    def none_at(self, at: int) -> bool:
        """Return whether certainly no version is visible at a time."""
        all_ended = self.ended.rows == self.rows and self.ended.last <= at
        return self.first_ins > at or all_ended

    def all_at(self, at: int) -> bool:
        """Return whether certainly every version is visible at a time."""
        return self.last_ins <= at < self.ended.first

    def count_at(self, at: int) -> int | None:
        """Return the number of versions visible at a time; None: the aggregates do not determine it."""
        if self.none_at(at):
            return 0
        if self.last_ins > at:
            return None
        if at < self.ended.first:
            return self.rows
        return self.rows - self.ended.rows if self.ended.last <= at else None
