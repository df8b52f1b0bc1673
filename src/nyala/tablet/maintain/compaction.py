"""Compaction: rewrites several disk rowsets as one of live rows and one of history above a horizon.

It changes the manifest's files but not its flush point, so ends of versions since the last flush stay in
memory and in the log.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nyala.storage.disk_space import require_space
from nyala.tablet.files.diskrowset import DiskRowSet
from nyala.tablet.files.dropped_columns import readable
from nyala.tablet.files.manifest import Manifest
from nyala.tablet.maintain import rewrite
from nyala.tablet.write.store import Store

MIN_ROWSETS = 4
"""Least number of overlapping rowsets of similar size that are merged."""
SIMILAR = 2
"""A rowset joins a merge if it has at most this many times the rows of all smaller ones together."""
SMALL_ROWS = 65_536
"""Rowsets below this count as having every key, so that small ones do not accumulate."""
GARBAGE = 0.25
"""A rowset is rewritten alone once this part of it is history below the horizon."""
ENDED = 0.5
"""A rowset of live rows is rewritten alone once this part of it has ended."""


@dataclass(frozen=True, slots=True)
class Rowset:
    """Measures of one rowset for the choice of a compaction.

    Attributes:
        number: number of its files.
        rows: versions.
        ended: number of these versions that had ended at the manifest's flush point.
        garbage: number of these versions that ended below the horizon.
        least: least key.
        greatest: greatest key.
        file_bytes: size in bytes of its files.
    """

    number: int
    rows: int
    ended: int
    garbage: int
    least: bytes
    greatest: bytes
    file_bytes: int = 0

    @staticmethod
    def of(disk: DiskRowSet, horizon: int | None, flush_stamp: int) -> "Rowset":
        """Measure a rowset: exact in lane APPLY, in other lanes a recent state.

        Its versions are read only where more than `GARBAGE` of them ended, on both sides of the horizon.

        Args:
            disk: the rowset.
            horizon: history below this hybrid time may be dropped; None: none may.
            flush_stamp: time of the flush point.
        """
        below, end_stamps = min(horizon or 0, flush_stamp), disk.end_stamps
        all_ended = end_stamps.ended
        ended = all_ended.rows
        if all_ended.last > flush_stamp:
            ended -= sum(len(rows) for rows, _ in end_stamps.pending)
        garbage = ended if all_ended.rows and all_ended.last <= below else 0
        if not garbage and all_ended.first <= below and ended > GARBAGE * disk.rows:
            garbage = int(
                np.count_nonzero((end_stamps.ends != 0) & (end_stamps.ends <= np.uint64(below)))
            )
        entry = disk.entry
        return Rowset(entry.number, disk.rows, ended, garbage, *disk.key_range, disk.file_bytes)

    @property
    def is_history(self) -> bool:
        """Return whether no version is live."""
        return self.ended == self.rows

    def has(self, key: bytes) -> bool:
        """Return whether a key is in its range."""
        return self.rows < SMALL_ROWS or self.least <= key <= self.greatest


def choose(rowsets: Sequence[Rowset], *, force: bool) -> set[int]:
    """Return the numbers of the rowsets worth rewriting together now; none: nothing to do.

    First removable history, then live rowsets of which many versions have ended, then the keys that most
    rowsets contain. Each row is rewritten once for every growth of its rowset by about `MIN_ROWSETS`,
    whatever the number of flushes; and a key is in at most `MIN_ROWSETS` rowsets for each such growth.

    Args:
        rowsets: all of them.
        force: compact all if that changes anything.
    """
    live = [r for r in rowsets if not r.is_history]
    history = [r for r in rowsets if r.is_history]
    if force:
        mixed = any(r.garbage for r in rowsets) or any(r.ended for r in live)
        changes = mixed or len(live) > 1 or len(history) > 1
        return {r.number for r in rowsets} if changes else set()
    for group in (
        [r for r in rowsets if r.garbage > GARBAGE * r.rows],
        [r for r in live if r.ended > ENDED * r.rows],
    ):
        if group:
            return {r.number for r in group}
    best: list[Rowset] = []
    for kind in (live, history):
        for key in [r.least for r in kind]:
            found = _similar([r for r in kind if r.has(key)])
            best = found if len(found) > len(best) else best
    return {r.number for r in best}


def _similar(rowsets: Sequence[Rowset]) -> list[Rowset]:
    """Return the smallest ones that are of similar size, if they are enough."""
    picked: list[Rowset] = []
    total = 0
    for rowset in sorted(rowsets, key=lambda r: (r.rows, r.number)):
        if picked and rowset.rows > SIMILAR * total:
            if len(picked) >= MIN_ROWSETS:
                break
            picked, total = [], 0
        picked.append(rowset)
        total += rowset.rows
    return picked if len(picked) >= MIN_ROWSETS else []


def depth(rowsets: Sequence[Rowset]) -> int:
    """Return the maximum number of live rowsets that may contain one key, which a look-up searches."""
    live = [r for r in rowsets if not r.is_history]
    starts, ends = sorted(r.least for r in live), sorted(r.greatest for r in live)
    return max((n + 1 - bisect_left(ends, key) for n, key in enumerate(starts)), default=0)


def score(rowsets: Sequence[Rowset], chosen: Collection[int]) -> float:
    """Return the benefit of compacting the chosen rowsets, per MiB to write; 0: none.

    The benefit is the number of rowsets less to search for a key, and the fraction of the versions that is
    removed or separated from live rows; the whole of them counts as `MIN_ROWSETS`
    (docs/internals/maintenance.md).
    """
    merged = [r for r in rowsets if r.number in chosen]
    if not merged:
        return 0.0
    live = [r for r in merged if not r.is_history]
    fewer = max(len(live), len(merged) - len(live), 1) - 1
    idle = sum(r.garbage if r.is_history else r.ended for r in merged)
    worth = fewer + MIN_ROWSETS * idle / sum(r.rows for r in merged)
    return worth / (1 + sum(r.file_bytes for r in merged) / (1 << 20))


class Compaction:
    """One compaction: fixed in lane APPLY, built in lane COMPUTE, installed in lane APPLY.

    Args:
        place: where to write.
        store: store of the tablet.
        current: the manifest now.
        chosen: the rowsets to compact.
        horizon: history below it is removed; None: all history is kept.
        number: gives the numbers of new files.
        reserve_bytes: disk space to leave for the log and flushes.
    """

    def __init__(
        self,
        place: rewrite.FileTarget,
        store: Store,
        current: Manifest,
        chosen: Sequence[DiskRowSet],
        horizon: int | None,
        number: Callable[[], int],
        reserve_bytes: int = 0,
    ) -> None:
        self._place = place
        self._store = store
        self._current = current
        self._inputs = [rewrite.RewriteInput.of(d, current.cut_stamp) for d in chosen]
        self._horizon = horizon
        self._reserve_bytes = reserve_bytes
        self._numbers = (number(), number(), number(), number())
        self._next_file = number()

    def build(self) -> rewrite.Built:
        """Write the new rowsets and make them durable. Lane COMPUTE.

        Raises:
            OSError: nothing has changed; ENOSPC also before anything is written, if the result may not fit.
        """
        current = self._current
        self._check_space()
        merged = [i.rowset.entry.number for i in self._inputs if isinstance(i.rowset, DiskRowSet)]
        position = [e.number for e in current.rowsets].index(merged[0])
        left = tuple(e for e in current.rowsets if e.number not in merged)
        below = 0 if self._horizon is None else self._horizon
        dropped = any((i.ended[1] <= np.uint64(below)).any() for i in self._inputs)
        horizon = max(current.horizon, below) if dropped else current.horizon
        horizon = max(horizon, self._end_of_dropped(below))
        info = replace(current.info, dropped=readable(current.info.dropped, horizon))
        base = replace(current, info=info, rowsets=left, horizon=horizon, next_file=self._next_file)
        plan = rewrite.RewritePlan(
            below, split_history=True, position=position, numbers=self._numbers
        )
        return rewrite.build(self._place, base, self._inputs, plan)

    def _end_of_dropped(self, below: int) -> int:
        """Return the last time up to `below` at which a column was dropped that an input has; 0: none.

        Its values are left out, so that earlier times cannot be read any more.
        """
        chunks = [i.view.chunks for i in self._inputs]
        return max(
            (
                d.stamp
                for d in self._current.info.dropped
                if d.stamp <= below and not all(c.lacks(d.column.id) for c in chunks)
            ),
            default=0,
        )

    def install(self, built: rewrite.Built) -> None:
        """Switch to the new files. Lane APPLY."""
        rewrite.switch(self._place, self._store, built)

    def _check_space(self) -> None:
        """Check that the result fits; a rowset of which nothing is left needs no space."""
        below = np.uint64(self._horizon or 0)
        need = 0
        for rewritten in self._inputs:
            rowset, (rows, stamps) = rewritten.rowset, rewritten.ended
            if isinstance(rowset, DiskRowSet):
                removed = rowset.rows == len(rows) and bool((stamps <= below).all())
                need += 0 if removed else rowset.file_bytes
        place = self._place
        require_space(place.files, place.directory, need, self._reserve_bytes)
