"""Compaction: several disk rowsets become one, and history below a horizon goes.

The simplest correct one: pick rowsets of similar size, sort them into one. It moves the manifest's
files but not its cut, so that what ended since the last flush stays in memory, and in the log.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nyala.tablet import rewrite
from nyala.tablet.diskrowset import DiskRowSet
from nyala.tablet.manifest import Manifest
from nyala.tablet.store import Store

MIN_ROWSETS = 4
"""So many rowsets of similar size are merged."""
SIMILAR = 4
"""A rowset joins a merge if it has at most this many times the rows of all smaller ones together."""
GARBAGE = 0.25
"""A rowset is rewritten alone once this part of it is history below the horizon."""


def choose(
    disks: Sequence[DiskRowSet], horizon: int | None, cut_stamp: int, *, force: bool
) -> list[DiskRowSet]:
    """Return the rowsets worth merging now, in the manifest's order; none: nothing to do.

    Args:
        disks: all of them.
        horizon: history below may go; None: all history stays.
        cut_stamp: of the manifest.
        force: merge all if that changes anything.
    """
    garbage = {d.entry.number: _garbage(d, horizon, cut_stamp) for d in disks}
    if force:
        return list(disks) if len(disks) > 1 or any(garbage.values()) else []
    by_size = sorted(disks, key=lambda d: (d.rows, d.entry.number))
    picked: list[DiskRowSet] = []
    total = 0
    for disk in by_size:
        if picked and disk.rows > SIMILAR * total:
            if len(picked) >= MIN_ROWSETS:
                break
            picked, total = [], 0
        picked.append(disk)
        total += disk.rows
    numbers = {d.entry.number for d in picked} if len(picked) >= MIN_ROWSETS else set()
    return [
        d for d in disks if d.entry.number in numbers or garbage[d.entry.number] > GARBAGE * d.rows
    ]


def _garbage(disk: DiskRowSet, horizon: int | None, cut_stamp: int) -> int:
    if horizon is None or not disk.marks.ended.rows:
        return 0
    ends = disk.marks.ends
    return int(np.count_nonzero((ends != 0) & (ends <= np.uint64(min(horizon, cut_stamp)))))


class Compaction:
    """One compaction: fixed in lane APPLY, built in lane COMPUTE, installed in lane APPLY.

    Args:
        place: where to write.
        store: of the tablet.
        current: the manifest now.
        chosen: the rowsets to merge.
        horizon: history below goes; None: all history stays.
        number: gives the numbers of new files.
    """

    def __init__(
        self,
        place: rewrite.Place,
        store: Store,
        current: Manifest,
        chosen: Sequence[DiskRowSet],
        horizon: int | None,
        number: Callable[[], int],
    ) -> None:
        self._place = place
        self._store = store
        self._current = current
        self._inputs = [rewrite.Input.of(d, current.cut.stamp) for d in chosen]
        self._horizon = horizon
        self._numbers = (number(), number())
        self._next_file = number()

    def build(self) -> rewrite.Built:
        """Write the merged rowset and make it durable. Lane COMPUTE.

        Raises:
            OSError: nothing has changed.
        """
        current = self._current
        merged = [i.rowset.entry.number for i in self._inputs if isinstance(i.rowset, DiskRowSet)]
        position = [e.number for e in current.rowsets].index(merged[0])
        left = tuple(e for e in current.rowsets if e.number not in merged)
        below = 0 if self._horizon is None else self._horizon
        dropped = any((i.ended[1] <= np.uint64(below)).any() for i in self._inputs)
        horizon = max(current.horizon, below) if dropped else current.horizon
        base = replace(current, rowsets=left, horizon=horizon, next_file=self._next_file)
        return rewrite.build(
            self._place, base, self._numbers, self._inputs, drop_below=below, position=position
        )

    def install(self, built: rewrite.Built) -> None:
        """Switch to the new files. Lane APPLY."""
        rewrite.switch(self._place, self._store, built)
