"""Memory of open scans: batches being sent, and flushed rows that their views still reference.

A scan reads an immutable view. Rows that were in memory at its start stay there while it runs, even after a
flush; they are counted as the scan's from then on. Used on the event loop only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nyala.common.errors import Throttled
from nyala.common.ids import OpId, TabletId
from nyala.common.options import Options
from nyala.replica.memory import RETRY_AFTER_MS, MemoryPart, MemoryTracker
from nyala.tablet.tablet import Tablet

HELD = TabletId("held by scans")
"""Name under which the flushed rows of all tablets are counted."""
FREE_PART = 16
"""Part of the free memory of scans that one batch takes at most, unless the scan sets its size."""
LEAST_BYTES = 64 << 10
"""Minimum memory in bytes that is counted for a scan."""


@dataclass(frozen=True, slots=True)
class _Scan:
    tablet: Tablet
    flush_op: OpId  # last op id in the tablet's files at the start
    rows_bytes: int  # size of the rows in memory at the start

    @property
    def holds(self) -> bool:
        """True if those rows have been flushed since."""
        return self.tablet.flush_point.op != self.flush_op


class ScanMemory:
    """Counts the memory of scans, and throttles new ones above the limit.

    Args:
        memory: memory tracker of the process.
        options: limit of scans.
    """

    def __init__(self, memory: MemoryTracker, options: Options) -> None:
        self._memory = memory
        self._limit = min(options.scan_memory_bytes, memory.budget_bytes // 4)
        self._batch_bytes = options.scan_batch_bytes
        self._scans: dict[int, _Scan] = {}
        self._next = 0

    def batch_bytes(self) -> int:
        """Return the size in bytes of the batches of a new scan that sets none: less when memory is short."""
        free = self._limit - self._memory.of(MemoryPart.SCANS)
        return max(LEAST_BYTES, min(self._batch_bytes, free // FREE_PART))

    @contextmanager
    def open(self, tablet: Tablet, batch_bytes: int) -> Iterator[None]:
        """Count a scan's memory until the block ends.

        Args:
            tablet: that it reads.
            batch_bytes: size of its batches.

        Raises:
            Throttled: the memory of scans is at its limit.
        """
        size, used = max(batch_bytes, LEAST_BYTES), self._memory.of(MemoryPart.SCANS)
        if self._scans and used + size > self._limit:
            raise Throttled(
                f"{len(self._scans)} open scans use {used >> 10} KiB of memory, the limit of "
                "scan_memory_bytes or of a quarter of memory_budget_bytes; retry when one has ended",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )
        number = self._next = self._next + 1
        self._scans[number] = _Scan(tablet, tablet.flush_point.op, tablet.unflushed_bytes())
        try:
            with self._memory.hold(MemoryPart.SCANS, size):
                yield
        finally:
            del self._scans[number]

    def update_held(self) -> None:
        """Update the size of flushed rows that open scans reference; rows of a shared view count once."""
        held = {
            (s.tablet.info.tablet_id, s.flush_op): s.rows_bytes
            for s in self._scans.values()
            if s.holds
        }
        self._memory.set_size(MemoryPart.SCANS, HELD, sum(held.values()))
