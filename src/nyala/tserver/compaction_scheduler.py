"""Compaction scheduler: one compaction at a time, for the tablet with the best score.

Flushes are scheduled separately, so that none waits for a long compaction (`tserver/flush_scheduler.py`,
`replica/member/flusher.py`); docs/internals/maintenance.md describes the scores. The age of history is
measured in timestamps of the tablet's own log, never by a local clock.
"""

import logging
from collections.abc import Mapping, Sequence

from nyala.common.errors import InvalidArgument, NyalaError
from nyala.common.hybrid_time import LOGICAL_BITS
from nyala.common.ids import TabletId
from nyala.common.options import MIB, Options
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.machines import registry
from nyala.machines.registry import DataMachine
from nyala.replica.status import State
from nyala.tserver.history_holds import HistoryHolds
from nyala.tserver.tablets import Hosted, Tablets

log = logging.getLogger(__name__)

CHECK_INTERVAL_MS = 2_000
"""Milliseconds between two checks of the tablets, if the last one found nothing to compact."""
FULL_CHECK_EVERY = 30
"""Number of checks after which all tablets are scored, also quiesced ones without work before."""
AGE_OPTION = "history_max_age_s"

Candidate = tuple[TabletId, DataMachine, int | None]
"""A tablet whose compactions are scored, and its history horizon."""


class CompactionScheduler:
    """Chooses and runs compactions over all tablets. Used on the event loop; the work runs in lanes.

    A tablet's score is multiplied by the number of choices since it became a candidate, so that every tablet
    is compacted some time.

    Args:
        env: clock and tasks.
        tablets: the tablets of this server.
        holds: limit the history that may be removed.
        options: give the default age of history.

    Attributes:
        scores: scores of the tablets that are worth compacting, as of the last check, or of the end of a
            tablet's compaction after it.
        waited: number of choices since each of these became a candidate, with the last one.
    """

    def __init__(self, env: Env, tablets: Tablets, holds: HistoryHolds, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._holds = holds
        self._options = options
        self._idle: dict[TabletId, None] = {}  # quiesced, and not worth a compaction
        self.waited: Mapping[TabletId, int] = {}
        self._failed: dict[TabletId, None] = {}  # failed since the last pause
        self.scores: Mapping[TabletId, float] = {}

    def start(self) -> None:
        """Start the compaction task."""
        self._env.tasks.spawn(self._run(), "compactions")

    async def _run(self) -> None:
        checks = 0
        while True:
            await self._env.tasks.sleep_ms(CHECK_INTERVAL_MS)
            checks += 1
            if checks % FULL_CHECK_EVERY == 0:
                self._idle.clear()
            self._failed.clear()
            try:
                while (chosen := await self._choose()) is not None:
                    await self._compact_chosen(chosen)
            except Exception as bug:  # the task's top: without it history and files only grow
                log.error("no tablet was chosen for compaction", exc_info=bug)

    async def _choose(self) -> TabletId | None:
        """Score the tablets that may need a compaction; return the one to compact now."""
        for replica in self._tablets.host.active_replicas():
            self._idle.pop(replica.group, None)
        candidates: list[Candidate] = []
        for replica in self._tablets.host.all():
            group = replica.group
            if group in self._idle or group in self._failed or replica.state is not State.RUNNING:
                continue
            try:
                hosted = self._tablets.hosted(group)
                horizon = self._holds.limit(group, self._horizon(hosted))
            except NyalaError as err:  # deleted meanwhile, a witness, or an invalid option
                log.debug("tablet %s is not considered for compaction: %s", group, err)
                self._idle[group] = None
                continue
            candidates.append((group, hosted.machine, horizon))
        found = await self._env.tasks.run(Lane.COMPUTE, score_all, candidates) if candidates else {}
        self._idle |= {group: None for group, _, _ in candidates if group not in found}
        self.scores = found
        waited = self.waited = {group: self.waited.get(group, 0) + 1 for group in found}
        if not found:
            return None
        chosen = max(found, key=lambda group: (found[group] * waited[group], group))
        del waited[chosen]
        return chosen

    async def _compact_chosen(self, tablet_id: TabletId) -> None:
        try:
            if await self.compact(self._tablets.hosted(tablet_id)):
                return
        except (NyalaError, OSError) as err:  # deleted meanwhile, or a full disk: nothing changed
            log.info("tablet %s was not compacted: %s", tablet_id, err)
        except Exception as bug:  # an error of one tablet does not affect the others
            log.error("tablet %s was not compacted", tablet_id, exc_info=bug)
        self._failed[tablet_id] = None  # not tried again without a pause

    async def compact(self, hosted: Hosted, *, force: bool = False) -> bool:
        """Compact a tablet if it is worth it; return whether anything changed.

        Raises:
            OSError: the disk failed; nothing changed.
            NyalaError: the replica does not run.
        """
        group = hosted.replica.group
        with self._holds.collecting(group, self._horizon(hosted)) as horizon:
            changed = await hosted.replica.maintain(
                lambda: hosted.machine.prepare_compaction(
                    horizon, force=force, reserve_bytes=self._options.wal_reserve_mb * MIB
                )
            )
            if changed:
                one = [(group, hosted.machine, horizon)]
                found = await self._env.tasks.run(Lane.COMPUTE, score_all, one)
                others = {g: score for g, score in self.scores.items() if g != group}
                self.scores = others | found
            return changed

    def _horizon(self, hosted: Hosted) -> int | None:
        """Return the time below which history may be removed; None: all of it is younger."""
        info = registry.describe(hosted.machine)
        assert info is not None, hosted.machine
        text = info.options.get(AGE_OPTION)
        age_s = self._options.history_max_age_s if text is None else _seconds(text)
        horizon = hosted.replica.status().applied_stamp - (age_s * 1_000_000 << LOGICAL_BITS)
        return horizon if horizon > 0 else None


def score_all(candidates: Sequence[Candidate]) -> dict[TabletId, float]:
    """Return the scores of the tablets that are worth compacting. Lane COMPUTE."""
    found = {}
    for group, tablet, horizon in candidates:
        try:
            score = tablet.compaction_score(horizon)
        except Exception as bug:  # an error of one tablet does not affect the others
            log.error("the compaction score of tablet %s cannot be computed", group, exc_info=bug)
            continue
        if score > 0:
            found[group] = score
    return found


def _seconds(text: str) -> int:
    if not text.isdigit():
        raise InvalidArgument(
            f"table option {AGE_OPTION}={text!r} is not a number of seconds; set one"
        )
    return int(text)
