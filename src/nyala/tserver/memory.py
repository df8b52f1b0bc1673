"""The memory of all rowsets of a process: near its budget the best to flush is flushed, over it writes wait.

Back pressure comes before the kernel's: a client waits and sends again, nothing is lost.
"""

import contextlib
import logging

from nyala.common.errors import NyalaError, Throttled
from nyala.common.ids import TabletId
from nyala.common.options import MIB, Options
from nyala.env.env import Env
from nyala.replica.replica import Replica
from nyala.replica.status import State
from nyala.tserver.tablets import Tablets

log = logging.getLogger(__name__)

LOOK_MS = 100
"""Between two looks; what arrives meanwhile is bounded by the queues before the log."""
WHOLE_LOOKS = 600
"""So many looks from one at all tablets to the next; between, at those that are up: only they take writes."""
RETRY_AFTER_MS = 100
FLUSH_FROM = 0.75
"""Of the budget: from there on something is flushed whatever its size, so that writes need not wait."""


class MemoryBudget:
    """Watches what is not flushed yet. Runs on the loop.

    Args:
        env: tasks.
        tablets: what is here.
        options: memory of all of them together, and how much of the log may be kept.
    """

    def __init__(self, env: Env, tablets: Tablets, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._budget_bytes = options.memory_budget_bytes
        self._log_bytes = max(1, options.wal_retain_mb) * MIB
        self.used_bytes = 0
        self._looks = 0
        self._vain: dict[TabletId, None] = {}  # flushed in vain since one was flushed
        self._sizes: dict[TabletId, int] = {}

    def start(self) -> None:
        """Begin to look, again and again."""
        self._env.tasks.spawn(self._run(), "memory budget")

    def check(self) -> None:
        """Refuse a write while too much memory is in use.

        Raises:
            Throttled: send the same again after `retry_after_ms`.
        """
        if self.used_bytes > self._budget_bytes:
            raise Throttled(
                f"{self.used_bytes >> 20} MiB of rows wait to be flushed, more than memory_budget_bytes "
                f"({self._budget_bytes >> 20} MiB) allows; the write is taken once some are on disk",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )

    async def _run(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(LOOK_MS)
            self.look()
            if self.used_bytes <= FLUSH_FROM * self._budget_bytes:
                continue
            self._looks = 0  # the next one asks all
            best = self.best()
            if best is not None:
                self._vain[best.group] = None
                try:
                    if await best.flush():
                        self._vain.clear()
                except (NyalaError, OSError) as err:  # deleted meanwhile, or a full disk: try again
                    log.warning("%s was not flushed: %s", best.group, err)
                except (
                    Exception
                ) as bug:  # the task's top: without it writes would be throttled for ever
                    log.error("%s was not flushed", best.group, exc_info=bug)

    def look(self) -> None:
        """Add up what is in use."""
        host, sizes = self._tablets.host, self._sizes
        whole = self._looks % WHOLE_LOOKS == 0
        self._looks += 1
        if whole:
            sizes.clear()
        for replica in host.all() if whole else host.up():
            if replica.state in (State.RUNNING, State.CONFIGURING):
                sizes[replica.group] = replica.machine.unflushed_bytes()
        self.used_bytes = sum(sizes.values())

    def best(self) -> Replica | None:
        """Return the replica whose flush is worth most now, of those that nothing is being done to."""
        scores: dict[Replica, float] = {}
        for group, memory_bytes in self._sizes.items():
            replica = self._tablets.host.find(group)
            if not memory_bytes or replica is None or group in self._vain:
                continue
            with contextlib.suppress(NyalaError):  # FAILED, or deleted meanwhile
                upkeep = replica.upkeep()
                if not upkeep.busy:
                    scores[replica] = self.score(memory_bytes, upkeep.log_bytes)
        if not scores:
            self._vain.clear()
            return None
        return max(scores, key=lambda replica: scores[replica])

    def score(self, memory_bytes: int, log_bytes: int) -> float:
        """Return what a flush is worth: the shares of memory and of the log that it lets go."""
        return memory_bytes / self._budget_bytes + log_bytes / self._log_bytes
