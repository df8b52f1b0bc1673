"""Flushes and compactions of a master's own replica of the sys catalog.

Each definition, and each reported change of leader or members, writes versions of catalog rows. Old versions
are read only by followers that advance their catalog (`follower_catalog.py`, which reloads it when they are
gone), so little history is kept. Every master maintains its own replica, leader or not. On the loop; the work
in lanes.
"""

import logging
from collections.abc import Callable
from functools import partial

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import LOGICAL_BITS
from nyala.common.options import MIB, Options
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.replica.replica import Replica
from nyala.replica.status import State
from nyala.tablet.tablet import Tablet

log = logging.getLogger(__name__)

INTERVAL_MS = 2_000
MAX_COMPACTIONS = 8
"""Maximum number of compactions of one round."""


class CatalogMaintenance:
    """Maintenance of the sys catalog's replica.

    Args:
        env: tasks.
        replica: returns the replica of the sys catalog; None while there is none.
        options: sizes and ages.
    """

    def __init__(self, env: Env, replica: Callable[[], Replica | None], options: Options) -> None:
        self._env = env
        self._replica = replica
        self._flush_bytes = options.catalog_flush_bytes
        self._reserve_bytes = options.wal_reserve_mb * MIB
        self._history = options.catalog_history_max_age_s * 1_000_000 << LOGICAL_BITS

    def start(self) -> None:
        """Start the maintenance task."""
        self._env.tasks.spawn(self._run(), "upkeep of the catalog")

    async def _run(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(INTERVAL_MS)
            replica = self._replica()
            if replica is None or replica.state not in (State.RUNNING, State.CONFIGURING):
                continue
            try:
                await self.run_once(replica)
            except (NyalaError, OSError) as err:  # deleted meanwhile, or a full disk: tried again
                log.warning("the catalog was not flushed or merged: %s", err)
            except Exception as bug:  # retried in the next round
                log.error("the catalog was not flushed or merged", exc_info=bug)

    async def run_once(self, replica: Replica) -> None:
        """Run the flush and the compactions that are due.

        Raises:
            OSError: the disk failed; nothing changed.
            NyalaError: the replica does not take part (any more).
        """
        if replica.machine.unflushed_bytes() >= self._flush_bytes:
            await replica.flush()
        for _ in range(MAX_COMPACTIONS):
            tablet = replica.machine
            if not isinstance(tablet, Tablet):
                return  # a witness
            horizon = replica.status().applied_stamp - self._history
            at = horizon if horizon > 0 else None
            if not await self._env.tasks.run(Lane.COMPUTE, tablet.compaction_score, at):
                return
            prepare = partial(tablet.prepare_compaction, at, reserve_bytes=self._reserve_bytes)
            if not await replica.maintain(prepare):
                return
