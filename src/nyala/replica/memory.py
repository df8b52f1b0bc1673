"""Memory of a process, by part, against one budget; over the budget, writes and entries wait.

    rows       not flushed yet; a flush frees them
    entries    of Raft's logs: not applied yet, or kept for slow followers; idle groups' are freed first
    sessions   results of writes, kept for retries; they expire, and the oldest are dropped (`table_bytes`)
    writes     batches that were received and are not answered; bounded by `write_queue_total_bytes`
    scans      batches being sent to readers, and flushed rows that readers still hold
    copies     pieces and entries of replicas in transfer

Over the budget, leaders refuse writes and followers accept no entries
(`RaftNode.set_out_of_memory`). Sessions are freed
only as entries are applied, so their excess over their share never blocks entries. Only rows decide whether
followers apply: applied rows can be flushed, so memory over the budget is freed eventually. Memory is
accounted for where it changes; see docs/internals/memory.md. On the loop only.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

from nyala.common.errors import Throttled
from nyala.common.ids import TabletId
from nyala.common.metrics import Family, Metrics
from nyala.common.options import Options

RETRY_AFTER_MS = 100
SESSIONS_SHARE = 8
"""Share of sessions: 1/8 of the budget; beyond it, each table shrinks when it is written to."""
MIN_TABLE_BYTES = 64 << 10
"""Minimum size to which a session table shrinks, in bytes."""
PRESSURE_SHARE = 0.75
"""Share of the budget from which on caches are freed and rows flushed, before writes have to wait."""
LEADER_ROWS_SHARE = 1.25
"""Share of the budget: a leader whose rows exceed it stops applying."""


class MemoryPart(StrEnum):
    """Use of memory."""

    ROWS = "rows"
    ENTRIES = "entries"
    SESSIONS = "sessions"
    WRITES = "writes"
    SCANS = "scans"
    COPIES = "copies"


class MemoryTracker:
    """Memory of one process.

    Args:
        options: the budget and the limits of parts.

    Attributes:
        used_bytes: bytes used by all parts.
        budget_bytes: limit of all parts together.
    """

    def __init__(self, options: Options) -> None:
        self.budget_bytes = options.memory_budget_bytes
        self.used_bytes = 0
        self._cache_bytes = options.raft_cache_total_bytes
        self._table_bytes = options.client_results_bytes
        self._writes_bytes = min(options.write_queue_total_bytes, self.budget_bytes // 4)
        self._parts = dict.fromkeys(MemoryPart, 0)
        self._sizes: dict[MemoryPart, OrderedDict[TabletId, int]] = {
            p: OrderedDict() for p in MemoryPart
        }

    # ---- counting ----------------------------------------------------------------------------------

    def set_size(self, part: MemoryPart, group: TabletId, size_bytes: int) -> None:
        """Set the memory of a part that a group uses.

        Args:
            part: use of the memory.
            group: id of the tablet.
            size_bytes: all memory of the group in this part.
        """
        sizes = self._sizes[part]
        before = sizes.get(group, -1)
        if size_bytes != before:
            self._add(part, size_bytes - max(before, 0))
            sizes[group] = size_bytes
            if size_bytes > before:
                sizes.move_to_end(group)

    def forget(self, group: TabletId) -> None:
        """Remove a group whose state machine is closed."""
        for part, sizes in self._sizes.items():
            self._add(part, -sizes.pop(group, 0))

    @contextmanager
    def hold(self, part: MemoryPart, size_bytes: int) -> Iterator[None]:
        """Count so many bytes until the block ends."""
        self._add(part, size_bytes)
        try:
            yield
        finally:
            self._add(part, -size_bytes)

    def _add(self, part: MemoryPart, size_bytes: int) -> None:
        self._parts[part] += size_bytes
        self.used_bytes += size_bytes

    # ---- reading ------------------------------------------------------------------------------

    def of(self, part: MemoryPart) -> int:
        """Return the bytes of a part."""
        return self._parts[part]

    @property
    def full(self) -> bool:
        """True if the budget is exceeded: writes and entries are refused."""
        return self._urgent_bytes > self.budget_bytes

    @property
    def under_pressure(self) -> bool:
        """True if rows should be flushed and caches freed."""
        return self._urgent_bytes > PRESSURE_SHARE * self.budget_bytes

    @property
    def _urgent_bytes(self) -> int:
        """Return the used bytes without the excess of sessions."""
        return self.used_bytes - self.sessions_excess_bytes

    @property
    def sessions_excess_bytes(self) -> int:
        """Bytes of sessions beyond their share, which only further entries free."""
        return max(0, self._parts[MemoryPart.SESSIONS] - self.budget_bytes // SESSIONS_SHARE)

    def table_bytes(self) -> int:
        """Return the size limit of a tablet's session table, for its next entry."""
        if not self.sessions_excess_bytes:
            return self._table_bytes
        tables = sum(1 for size in self._sizes[MemoryPart.SESSIONS].values() if size)
        share_bytes = self.budget_bytes // SESSIONS_SHARE // max(1, tables)
        return min(self._table_bytes, max(MIN_TABLE_BYTES, share_bytes))

    @property
    def excess_bytes(self) -> int:
        """Bytes of cached entries to free."""
        entries = self._parts[MemoryPart.ENTRIES]
        return entries if self.under_pressure else max(0, entries - self._cache_bytes)

    def may_apply(self, *, leads: bool) -> bool:
        """Return whether there is memory for the rows of more entries."""
        rows = self._parts[MemoryPart.ROWS]
        return rows <= self.budget_bytes * (LEADER_ROWS_SHARE if leads else 1)

    def sizes(self, part: MemoryPart) -> Mapping[TabletId, int]:
        """Return the bytes of each group in a part; read only."""
        return self._sizes[part]

    def idle(self, limit: int) -> list[TabletId]:
        """Return the groups with cached entries that used them longest ago; the next call returns others."""
        sizes = self._sizes[MemoryPart.ENTRIES]
        found = [g for g, _ in zip(sizes, range(limit), strict=False)]
        for group in found:
            sizes.move_to_end(group)
        return found

    @property
    def over_budget_reason(self) -> str:
        """Reason why writes and entries have to wait; empty: they need not."""
        if not self.full:
            return ""
        shares = ", ".join(f"{p} {n >> 20}" for p, n in self._parts.items() if n >> 20)
        return (
            f"{self.used_bytes >> 20} MiB of memory are in use ({shares}), more than memory_budget_bytes "
            f"({self.budget_bytes >> 20} MiB) allows: writes are throttled here, and followers here take no "
            "entries, until rows are flushed"
        )

    # ---- admission -------------------------------------------------------------------------------

    def check(self, size_bytes: int = 0) -> None:
        """Check that there is memory for a write.

        Raises:
            Throttled: there is not; retry after `retry_after_ms`.
        """
        writes = self._parts[MemoryPart.WRITES]
        reason = self.over_budget_reason
        if not reason and size_bytes and writes and writes + size_bytes > self._writes_bytes:
            reason = (
                f"{writes >> 10} KiB of writes are in flight on this server, as many as "
                "write_queue_total_bytes and a quarter of memory_budget_bytes allow"
            )
        if reason:
            raise Throttled(
                f"{reason}; wait and send again", {"retry_after_ms": str(RETRY_AFTER_MS)}
            )

    def expose(self, metrics: Metrics) -> None:
        """Register metrics of all parts."""
        metrics.gauge("memory_budget_bytes", "What the parts may have.").set(self.budget_bytes)
        metrics.gauge("memory_used_bytes", "Of all parts.", read=lambda: self.used_bytes)
        metrics.families(self._families)

    def _families(self) -> Iterator[Family]:
        samples = [((str(p),), float(n)) for p, n in self._parts.items()]
        yield Family("memory_part_bytes", "In use, by part.", ["part"], samples)
