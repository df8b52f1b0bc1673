"""Flush scheduler: near the memory limit it flushes the tablet with the best score first.

Memory accounting, and back-pressure above the limit, are in `replica/memory.py`. Back-pressure starts before
the system swaps: clients wait and retry, nothing is lost.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence

from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.common.options import MIB, Options
from nyala.env.env import Env
from nyala.replica.memory import MemoryPart
from nyala.replica.replica import Replica
from nyala.tserver.tablets import Tablets

log = logging.getLogger(__name__)

CHECK_INTERVAL_MS = 100
"""Milliseconds between two checks."""
CALM_INTERVAL_MS = 500
"""Milliseconds between two checks while less than `CALM_SHARE` of the budget is used."""
CALM_SHARE = 1 / 4
MIN_ROWS_SHARE = 1 / 8
"""Minimum share of the budget used by rows: below it flushes would free too little."""


class FlushScheduler:
    """Flushes the replica that frees most memory and log while memory is tight. Used on the event loop.

    Args:
        env: tasks.
        tablets: tablets of this server.
        options: size of the log to retain.
        counters: update counts that are only polled.
    """

    def __init__(
        self, env: Env, tablets: Tablets, options: Options, counters: Sequence[Callable[[], None]]
    ) -> None:
        self._env = env
        self._tablets = tablets
        self._memory = tablets.host.memory
        self._log_bytes = max(1, options.wal_retain_mb) * MIB
        self._counters = counters
        self._unproductive: dict[TabletId, None] = {}  # flushed without effect

    def start(self) -> None:
        """Start the flush task."""
        self._env.tasks.spawn(self._run(), "memory pressure flushes")

    async def _run(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(self.pause_ms())
            try:
                for update in self._counters:
                    update()
                best = self.best_candidate() if self.due() else None
                if best is not None:
                    await self._flush(best)
            except Exception as bug:  # the task must not end: writes would stay throttled
                log.error("no replica was chosen for a flush", exc_info=bug)

    def pause_ms(self) -> int:
        """Return the milliseconds until the next check: more while memory is far from its limit."""
        calm = self._memory.used_bytes < CALM_SHARE * self._memory.budget_bytes
        return CALM_INTERVAL_MS if calm else CHECK_INTERVAL_MS

    async def _flush(self, best: Replica) -> None:
        self._unproductive[best.group] = None
        try:
            if await best.flush():
                self._unproductive.clear()
        except (NyalaError, OSError) as err:  # deleted meanwhile, or a full disk: try again
            log.warning("%s was not flushed: %s", best.group, err)
        except Exception as bug:  # an error of one replica does not affect the others
            log.error("%s was not flushed", best.group, exc_info=bug)

    def due(self) -> bool:
        """Return whether rows should be flushed to free memory."""
        memory = self._memory
        return (
            memory.under_pressure
            and memory.of(MemoryPart.ROWS) > MIN_ROWS_SHARE * memory.budget_bytes
        )

    def best_candidate(self) -> Replica | None:
        """Return the replica with the best flush score, of those without running maintenance."""
        scores: dict[Replica, float] = {}
        for group, memory_bytes in self._memory.sizes(MemoryPart.ROWS).items():
            replica = self._tablets.host.find(group)
            if not memory_bytes or replica is None or group in self._unproductive:
                continue
            with contextlib.suppress(NyalaError):  # FAILED, or deleted meanwhile
                upkeep = replica.maintenance_stats()
                if not upkeep.running:
                    scores[replica] = self.score(memory_bytes, upkeep.log_bytes)
        if not scores:
            self._unproductive.clear()
            return None
        return max(scores, key=lambda replica: scores[replica])

    def score(self, memory_bytes: int, log_bytes: int) -> float:
        """Return the score of a flush: the shares of memory and of the log that it frees."""
        return memory_bytes / self._memory.budget_bytes + log_bytes / self._log_bytes
