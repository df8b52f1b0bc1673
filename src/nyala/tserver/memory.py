"""The memory of all rowsets of a process: over its budget writes are throttled and the largest is flushed.

Back pressure comes before the kernel's: a client waits and sends again, nothing is lost.
"""

import logging

from nyala.common.errors import NyalaError, Throttled
from nyala.common.ids import TabletId
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


class MemoryBudget:
    """Watches what is not flushed yet. Runs on the loop.

    Args:
        env: tasks.
        tablets: what is here.
        budget_bytes: of all of them together.
    """

    def __init__(self, env: Env, tablets: Tablets, budget_bytes: int) -> None:
        self._env = env
        self._tablets = tablets
        self._budget_bytes = budget_bytes
        self.used_bytes = 0
        self._looks = 0
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
            largest = self.largest() if self.used_bytes > self._budget_bytes else None
            if largest is not None:
                self._looks = 0  # the next one asks all
                try:
                    await largest.flush()
                except (NyalaError, OSError) as err:  # deleted meanwhile, or a full disk: try again
                    log.warning("%s was not flushed: %s", largest.group, err)
                except (
                    Exception
                ) as bug:  # the task's top: without it writes would be throttled for ever
                    log.error("%s was not flushed", largest.group, exc_info=bug)

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

    def largest(self) -> Replica | None:
        """Return the replica that used most at the last look. Asks all: only when memory is short."""
        sizes = self._sizes
        return (
            self._tablets.host.find(max(sizes, key=lambda group: sizes[group])) if sizes else None
        )
