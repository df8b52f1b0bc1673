"""Memory of the journals at a tablet server, beside its memory budget.

A journal stays in memory as a whole, and no flush frees any of it. Counted with the parts of the budget
(`replica/memory.py`) it would cause flushes that free nothing, and throttle tables; so it has a limit of its
own. What a flush of a journal frees, its unflushed changes, is in the budget as rows are. On the loop only.
"""

from nyala.common.errors import Throttled
from nyala.common.metrics import Metrics
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.journal.journal import JournalMachine
from nyala.replica.memory import RETRY_AFTER_MS, MemoryTracker
from nyala.tserver.tablets import Tablets

SHARE = 0.5
"""Share of the memory budget that journals may take; steps that add are refused above it."""
MEASURED_EVERY = 10
"""Number of calls of `refresh` from one measurement to the next."""


class JournalMemory:
    """Measures the journals of one server, and throttles steps that add above the limit.

    Args:
        env: lanes and tasks.
        tablets: tablets of this server.
        memory: its budget.

    Attributes:
        resident_bytes: memory of all journals: the last measurement, and all that was added since.
    """

    def __init__(self, env: Env, tablets: Tablets, memory: MemoryTracker) -> None:
        self._env = env
        self._tablets = tablets
        self._limit_bytes = int(memory.budget_bytes * SHARE)
        self._calls = 0
        self.resident_bytes = 0

    def expose(self, metrics: Metrics) -> None:
        """Register the metrics."""
        metrics.gauge(
            "journal_resident_bytes", "Memory of all journals here, beside the memory budget.",
            read=lambda: self.resident_bytes,
        )  # fmt: skip

    def refresh(self) -> None:
        """Measure the journals at intervals; called every 100 ms."""
        self._calls += 1
        if self._calls % MEASURED_EVERY:
            return
        journals = self._tablets.journals()
        if journals:
            self._env.tasks.spawn(self._measure(journals), "memory of journals")
        else:
            self.resident_bytes = 0

    async def _measure(self, journals: list[JournalMachine]) -> None:
        self.resident_bytes = await self._env.tasks.run_brief(Lane.APPLY, _total, journals)

    def add(self, size_bytes: int) -> None:
        """Count what a step adds until the next measurement.

        Raises:
            Throttled: journals have all the memory that they may have; nothing was counted.
        """
        if self.resident_bytes + size_bytes > self._limit_bytes:
            raise Throttled(
                f"the journals of this server take {self.resident_bytes} bytes of memory, and may take "
                f"{self._limit_bytes}, half of memory_budget_bytes; invalidate entries, delete logs, or "
                "raise that option",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )
        self.resident_bytes += size_bytes


def _total(journals: list[JournalMachine]) -> int:
    """Return the memory of some journals. Lane APPLY."""
    return sum(journal.resident_bytes for journal in journals)
