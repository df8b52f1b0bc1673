"""Ticks of the groups of a process, counted without a wake-up for each while nothing is due.

A tick is due every `raft_tick_ms`. While something is due at the next tick, the process wakes for each. Else
it sleeps until something is due. It counts the ticks that pass meanwhile later, but before it processes the
next message or request: timeouts begin at the tick at which it came. A process that was stopped counts no
more ticks than it had planned to sleep. After any moment the first tick may be counted at once; each further
one follows after an interval, so that a promise in ticks (`raft/roles/reads.py`) lasts. On the loop only.
"""

import asyncio
import logging
from collections.abc import Callable

from nyala.env.env import Env
from nyala.replica.context import TIMER_EARLY_MS

log = logging.getLogger(__name__)


class Ticker:
    """Source of ticks.

    Args:
        env: clock and tasks.
        tick_ms: interval of ticks.
        idle: returns for how many ticks the process may sleep: 1: something may be due at the next.
        process: processes a number of ticks that have passed.
        note_late: is given the microseconds by which a wake-up was late.
    """

    def __init__(
        self,
        env: Env,
        tick_ms: int,
        *,
        idle: Callable[[], int],
        process: Callable[[int], None],
        note_late: Callable[[int], None],
    ) -> None:
        self._env = env
        self._tick_us = tick_ms * 1000
        self._idle = idle
        self._process = process
        self._note_late = note_late
        self._last_us = env.clock.monotonic_us()  # time of the last tick that was processed
        self._left = 1  # ticks until the process wakes
        self._wake: asyncio.Event | None = None  # set: sleeps for more than one tick
        self._task = env.tasks.spawn(self._run(), "replica ticks")

    def stop(self) -> None:
        """Stop; `catch_up` does nothing from now on."""
        self._left = 1
        self._task.cancel()

    def catch_up(self) -> None:
        """Process the ticks that have passed; called before any event that they could depend on."""
        if self._left > 1:
            passed = (self._env.clock.monotonic_us() - self._last_us) // self._tick_us
            if passed > 0:
                self._count(min(passed, self._left - 1))

    def changed(self) -> None:
        """Wake earlier if something is due earlier than when the sleep began."""
        if self._wake is not None and self._idle() < self._left:
            self._wake.set()

    async def _run(self) -> None:
        clock = self._env.clock
        while True:
            planned = self._left = self._idle()
            due_us = self._last_us + planned * self._tick_us
            await self._sleep(max(0, due_us - clock.monotonic_us()))
            now_us = clock.monotonic_us()
            if planned > 1 and now_us + 1000 * TIMER_EARLY_MS < due_us:  # something is due earlier
                self.catch_up()
                continue
            self._note_late(now_us - due_us)
            self._count(self._left)
            self._last_us = now_us

    async def _sleep(self, duration_us: int) -> None:
        """Sleep for a time; for more than one tick, until `changed` ends it."""
        if self._left == 1:
            await self._env.tasks.sleep_ms(duration_us / 1000)
            return
        wake = self._wake = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(duration_us / 1e6, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()
            self._wake = None

    def _count(self, ticks: int) -> None:
        self._last_us += ticks * self._tick_us
        self._left -= ticks  # first: what is processed may look at the ticks again
        try:
            self._process(ticks)
        except Exception as bug:  # without ticks no group would elect a leader
            log.error("a tick was not completed", exc_info=bug)
