"""Flushes near the memory budget: the tablet whose flush is worth most comes first.

The accounts of memory, and back pressure over the budget, are in `replica/memory.py`. Back pressure starts
before the system swaps: a client waits and sends again, nothing is lost.
"""

import contextlib
import logging
from collections.abc import Callable

from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.common.options import MIB, Options
from nyala.env.env import Env
from nyala.replica.memory import MemoryPart
from nyala.replica.replica import Replica
from nyala.tserver.tablets import Tablets

log = logging.getLogger(__name__)

CHECK_INTERVAL_MS = 100
"""Between two looks; what arrives meanwhile is counted as it comes."""
MIN_ROWS_SHARE = 1 / 8
"""Of the budget: with fewer rows than that it is other parts that fill memory, and flushes are of no use."""


class MemoryBudget:
    """Flushes what lets most memory and log go while memory is tight. Runs on the loop.

    Args:
        env: tasks.
        tablets: of this server.
        options: how much of the log may be kept.
        update_counts: counts what can only be counted now and then.
    """

    def __init__(
        self, env: Env, tablets: Tablets, options: Options, update_counts: Callable[[], None]
    ) -> None:
        self._env = env
        self._tablets = tablets
        self._memory = tablets.host.memory
        self._log_bytes = max(1, options.wal_retain_mb) * MIB
        self._update_counts = update_counts
        self._unproductive: dict[TabletId, None] = {}  # flushed in vain since one was flushed

    def start(self) -> None:
        """Start the flush task."""
        self._env.tasks.spawn(self._run(), "memory budget")

    async def _run(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(CHECK_INTERVAL_MS)
            self._update_counts()
            best = self.best_candidate() if self.due() else None
            if best is None:
                continue
            self._unproductive[best.group] = None
            try:
                if await best.flush():
                    self._unproductive.clear()
            except (NyalaError, OSError) as err:  # deleted meanwhile, or a full disk: try again
                log.warning("%s was not flushed: %s", best.group, err)
            except (
                Exception
            ) as bug:  # the task's top: without it writes would be throttled for ever
                log.error("%s was not flushed", best.group, exc_info=bug)

    def due(self) -> bool:
        """Return whether rows should be flushed to free memory."""
        memory = self._memory
        return memory.tight and memory.of(MemoryPart.ROWS) > MIN_ROWS_SHARE * memory.budget_bytes

    def best_candidate(self) -> Replica | None:
        """Return the replica whose flush is worth most now, of those that nothing is being done to."""
        scores: dict[Replica, float] = {}
        for group, memory_bytes in self._memory.sizes(MemoryPart.ROWS).items():
            replica = self._tablets.host.find(group)
            if not memory_bytes or replica is None or group in self._unproductive:
                continue
            with contextlib.suppress(NyalaError):  # FAILED, or deleted meanwhile
                upkeep = replica.maintenance_stats()
                if not upkeep.busy:
                    scores[replica] = self.score(memory_bytes, upkeep.log_bytes)
        if not scores:
            self._unproductive.clear()
            return None
        return max(scores, key=lambda replica: scores[replica])

    def score(self, memory_bytes: int, log_bytes: int) -> float:
        """Return what a flush is worth: the shares of memory and of the log that it lets go."""
        return memory_bytes / self._memory.budget_bytes + log_bytes / self._log_bytes
