"""Compactions of this server's tablets, one at a time: fewer rowsets to read, and no history past its age.

Flushes are the replica's own affair (memory and log); a compaction only helps reads and disk, so it
waits its turn. History is measured in stamps of the tablet's own log, never by a local clock.
"""

import logging

from nyala.common.errors import InvalidArgument, NyalaError
from nyala.common.hybrid_time import LOGICAL_BITS
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.replica.status import State
from nyala.tserver.holds import Holds
from nyala.tserver.tablets import HostedTablet, Tablets

log = logging.getLogger(__name__)

LOOK_MS = 2_000
"""Between two looks at the tablets."""
WHOLE_LOOKS = 30
"""Every so many looks all are looked at, otherwise not those that sleep and had nothing to be done."""
AGE_OPTION = "history_max_age_s"


class Compactor:
    """Looks for tablets worth compacting. Runs on the loop; the work in lanes.

    Args:
        env: tasks.
        tablets: what is here.
        holds: what of history has to stay.
        options: the default age of history.
    """

    def __init__(self, env: Env, tablets: Tablets, holds: Holds, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._holds = holds
        self._options = options
        self._done: dict[TabletId, None] = {}  # asleep, and not worth a compaction

    def start(self) -> None:
        """Begin to look, again and again."""
        self._env.tasks.spawn(self._run(), "compactions")

    async def _run(self) -> None:
        looks = 0
        while True:
            await self._env.tasks.sleep_ms(LOOK_MS)
            looks += 1
            if looks % WHOLE_LOOKS == 0:
                self._done.clear()
            for replica in self._tablets.host.up():
                self._done.pop(replica.group, None)
            for replica in self._tablets.host.all():
                if replica.group not in self._done and replica.state is State.RUNNING:
                    await self._look_at(replica.group)

    async def _look_at(self, tablet_id: TabletId) -> None:
        try:
            hosted = self._tablets.get(tablet_id)
            if not await self.compact(hosted):
                self._done[tablet_id] = None
        except (NyalaError, OSError) as err:  # deleted meanwhile, or a full disk: nothing changed
            log.info("tablet %s was not compacted: %s", tablet_id, err)
        except Exception as bug:  # the task's top: the other tablets are compacted all the same
            log.error("tablet %s was not compacted", tablet_id, exc_info=bug)

    async def compact(self, hosted: HostedTablet, *, force: bool = False) -> bool:
        """Compact a tablet if that is worth it; return whether anything changed.

        Raises:
            OSError: the disk failed; nothing changed.
            NyalaError: the replica does not take part (any more).
        """
        group = hosted.replica.group
        with self._holds.collecting(group, self._horizon(hosted)) as horizon:
            return await hosted.replica.maintain(
                lambda: hosted.tablet.prepare_compaction(horizon, force=force)
            )

    def _horizon(self, hosted: HostedTablet) -> int | None:
        """Return the time below which history may go; None while all of it is young."""
        text = hosted.tablet.info.options.get(AGE_OPTION)
        age_s = self._options.history_max_age_s if text is None else _seconds(text)
        horizon = hosted.replica.status().applied_stamp - (age_s * 1_000_000 << LOGICAL_BITS)
        return horizon if horizon > 0 else None


def _seconds(text: str) -> int:
    if not text.isdigit():
        raise InvalidArgument(f"table option {AGE_OPTION}={text!r} is no number of seconds")
    return int(text)
