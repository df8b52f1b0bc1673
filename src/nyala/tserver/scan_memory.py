"""The memory of open scans: batches on their way to readers, and flushed rows that their views hold.

A scan reads an immutable view. Rows that were in memory when it began stay there while it is read, also
after a flush has written them; they are counted as the scan's from then on. On the loop only.
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
"""Under this name flushed rows are counted, of all tablets together."""
LEAST_BYTES = 64 << 10
"""Counted for any scan at least."""


@dataclass(frozen=True, slots=True)
class _Scan:
    tablet: Tablet
    cut: OpId  # of the tablet's files when it began
    rows_bytes: int  # that were in memory then

    @property
    def holds(self) -> bool:
        """True if what was in memory has been flushed since."""
        return self.tablet.cut.op != self.cut


class ScanMemory:
    """Counts scans, and refuses those for which there is no room.

    Args:
        memory: of the process.
        options: what scans may have.
    """

    def __init__(self, memory: MemoryTracker, options: Options) -> None:
        self._memory = memory
        self._limit = min(options.scan_memory_bytes, memory.budget_bytes // 4)
        self._scans: dict[int, _Scan] = {}
        self._next = 0

    @contextmanager
    def open(self, tablet: Tablet, batch_bytes: int) -> Iterator[None]:
        """Count a scan from now on until the block ends.

        Args:
            tablet: which it reads.
            batch_bytes: of its batches.

        Raises:
            Throttled: scans have all the memory that they may have.
        """
        size, used = max(batch_bytes, LEAST_BYTES), self._memory.of(MemoryPart.SCANS)
        if self._scans and used + size > self._limit:
            raise Throttled(
                f"{len(self._scans)} open scans use {used >> 10} KiB of memory, the limit of "
                "scan_memory_bytes or of a quarter of memory_budget_bytes; retry when one has ended",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )
        number = self._next = self._next + 1
        self._scans[number] = _Scan(tablet, tablet.cut.op, tablet.unflushed_bytes())
        try:
            with self._memory.hold(MemoryPart.SCANS, size):
                yield
        finally:
            del self._scans[number]

    def look(self) -> None:
        """Count the flushed rows that open scans hold; those of several scans of one view once."""
        held = {
            (s.tablet.info.tablet_id, s.cut): s.rows_bytes for s in self._scans.values() if s.holds
        }
        self._memory.note(MemoryPart.SCANS, HELD, sum(held.values()))
