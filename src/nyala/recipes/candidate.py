"""Candidate: the coroutines of a candidate and leader of one log, run by `Leader` and by the simulator.

`election.py` decides; this module reads, sends the establishing step and waits. `own_steps.py` sends the
other steps, `changes.py` notices what others change.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import (
    ConditionFailed,
    JournalFull,
    NotLeading,
    NyalaError,
    OutcomeUnknown,
    Retryable,
    SessionExpired,
)
from nyala.env.clock import random_id
from nyala.env.env import Env
from nyala.env.tasks import for_at_most
from nyala.recipes.changes import ElectionChanges
from nyala.recipes.election import Election, Establish, Look, Lose, Phase, Renew, Standing, Wait
from nyala.recipes.own_steps import PAUSE_MS, OwnSteps
from nyala.recipes.records import ALIVE, ElectionSettings, standing_of

LOOK_S = 1.0
"""Time beyond a short wait in which a candidate finds whether another one may lead, in seconds."""
OnLost = Callable[[str], Awaitable[None]]
"""Called with the reason when this process does not lead any more."""


class LeaderCandidate:
    """A candidate for the leadership of a log, and its leader. Used on the client's loop only.

    Args:
        journal: journal of the log.
        settings: of this candidate.
        on_lost: see `OnLost`; the process is a candidate again when it returns. An error that it raises ends
            the candidate.
        once: the candidate ends with its first leadership.

    Attributes:
        steps: steps of this process as the leader.
        failure: error that ended it, for instance since the journal was dropped.
        decided: set once this process leads, has found that another one may, or takes part no more.
    """

    def __init__(
        self, journal: JournalCoroutines, settings: ElectionSettings, on_lost: OnLost, *, once: bool = False
    ) -> None:  # fmt: skip
        self._journal = journal
        self._env = journal.env
        self._settings = settings
        self._log = settings.log
        self._on_lost = on_lost
        self._once = once
        self._closing = self._losing = False
        self._full: JournalFull | None = None
        self._nonce = random_id(self._env.random)
        self._election = Election(
            self._nonce.encode(), settings.timeout_ms * 1000, settings.back_off_ms * 1000,
            self._env.random.randint,
        )  # fmt: skip
        self._changed = asyncio.Event()
        self.steps = OwnSteps(journal, settings, self._election, self._changed.set)
        self._noticed = ElectionChanges(journal, settings, self._election, self._changed.set)
        self._elected = asyncio.Event()
        self.decided = asyncio.Event()
        self._tasks: list[asyncio.Task[object]] = []
        self.failure: NyalaError | None = None

    @property
    def acts(self) -> bool:
        """True if this process leads, and no other one can have been established yet."""
        return self._election.acts(self._now_us())

    @property
    def epoch(self) -> int:
        """Epoch of the present leadership of this process; 0: it does not lead."""
        leadership = self._election.leadership
        return leadership.epoch if leadership is not None and self.acts else 0

    def _now_us(self) -> int:
        return self._env.clock.monotonic_us()

    # ---- for the leader's program ------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part in the election."""
        spawn = self._env.tasks.spawn
        self._tasks = [
            spawn(self._run(), f"election of {self._log}"),
            spawn(self._noticed.follow_key(), f"leader of {self._log}"),
        ]

    async def elected(self, *, tells_full: bool = False) -> int:
        """Wait until this process leads; return the epoch.

        Args:
            tells_full: raise JournalFull while the journal has no room for its establishing step. It tries
                on, and leads once there is room.

        Raises:
            NyalaError: it does not take part in the election any more.
        """
        while not self.epoch:
            if self.failure is not None:
                raise self.failure
            if tells_full and self._full is not None:
                raise self._full
            self._elected.clear()
            await self._elected.wait()
        return self.epoch

    async def close(self) -> None:
        """Resign, and take part in the election no more.

        An establishing step that is under way is awaited, since it would make a closed process the leader.
        """
        self._closing = True
        self._changed.set()
        steps = self._election.phase in (Phase.ESTABLISHING, Phase.SETTLING, Phase.LEADING)
        if self._tasks and steps and not self._losing:
            await for_at_most(self._settings.timeout_ms / 500, self._tasks[0])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._noticed.close()
        await self.steps.resign()
        self._end(NotLeading(f"this candidate for log {self._log!r} is closed; make another one"))

    def _end(self, failure: NyalaError) -> None:
        self.failure = self.failure or failure
        self._notice(always=True)

    # ---- election ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self.failure is None and not self._is_closed:
                await self._act()
        except NyalaError as err:  # the journal was dropped, or takes no such log
            self._end(err)
            if self._election.leadership is not None:
                await self._lose(err.message)
            self._election.dropped(self._now_us())

    @property
    def _is_closed(self) -> bool:
        """True if it is being closed, and no establishing step of it is under way."""
        return self._closing and self._election.phase is not Phase.SETTLING

    async def _lose(self, reason: str) -> None:
        """Report the end of the leadership."""
        self._losing = True
        try:
            await self._on_lost(reason)
        except NyalaError as err:
            self._end(err)
        finally:
            self._losing = False
        if self._once:
            self._end(NotLeading(f"this candidate for log {self._log!r} has led: {reason}"))

    async def _act(self) -> None:
        """Carry out the next action of the election."""
        match self._election.next(self._now_us()):
            case Wait(until_us):
                if self._election.phase in (Phase.WATCHING, Phase.BACK_OFF):
                    self.decided.set()
                if self._election.phase is Phase.WATCHING:
                    self._noticed.follow_log()
                await self._wait(until_us)
            case Look():
                await self._look()
            case Establish(seen):
                await self._establish(seen)
            case Renew():
                await self._renew()
            case Lose(reason):
                await self._lose(reason)
                self._election.dropped(self._now_us())

    async def _wait(self, until_us: int) -> None:
        """Wait until a time, or until something has changed."""
        self._changed.clear()
        if self._is_closed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, until_us - self._now_us()) / 1_000_000):
                await self._changed.wait()

    async def _look(self) -> None:
        try:
            last = await self._journal.last_id(self._log)
            key = await self._journal.get(self._settings.key)
        except (Retryable, OutcomeUnknown):
            await self._env.tasks.sleep_ms(PAUSE_MS)
            return
        self._election.looked(self._now_us(), standing_of(last, key))
        self._notice()

    async def _establish(self, seen: Standing) -> None:
        settings, sent_us = self._settings, self._now_us()
        value = settings.record(self._nonce)
        step = self._journal.builder()
        step.require(key=self._settings.key, version=seen.version)
        step.require(self._log, last=seen.last)
        step.append(self._log, ALIVE + value, [seen.version - 1] if seen.version else [])
        step.set(self._settings.key, value)
        try:
            outcome = await self._journal.step(*step.parts, settings.timeout_ms)
        except ConditionFailed:
            self._election.refused(self._now_us())
        except (OutcomeUnknown, SessionExpired):
            self._election.unanswered(sent_us)
        except Retryable:  # the same condition still holds
            await self._env.tasks.sleep_ms(PAUSE_MS)
        except JournalFull as err:
            self._full = JournalFull(
                f"no leader of log {self._log!r} can be established: {err.message}", err.details
            )
            self._notice(always=True)
            await self._wait(self._now_us() + settings.timeout_ms * 1000 // 3)
        else:
            self._full = None
            epoch, version = outcome.ids
            assert version == epoch + 1, outcome
            self._election.established(self._now_us(), sent_us, version)
        self._notice()

    def _notice(self, *, always: bool = False) -> None:
        if always or self.acts:
            self._elected.set()
            self.decided.set()

    async def _renew(self) -> None:
        leadership = self._election.leadership
        assert leadership is not None
        if self.steps.sending.locked():  # a step, which renews
            await self._wait(leadership.sent_us + self._election.window_us)
        else:
            await self.steps.renew()


async def elected_within(
    candidate: LeaderCandidate, timeout_s: float | None, *, looks: bool = False
) -> int:
    """As `elected`, which raises JournalFull too, for at most so many seconds; 0: not within this time.

    Args:
        candidate: the candidate.
        timeout_s: longest wait; None: no limit.
        looks: a wait that is too short for that goes on, for `LOOK_S` at most, until it is known that another
            candidate may lead.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await candidate.elected(tells_full=True)
    except TimeoutError:
        if not looks:
            return 0
    try:
        async with asyncio.timeout(LOOK_S):
            await candidate.decided.wait()
        async with asyncio.timeout(0):  # what ended it, or that the journal is full
            return await candidate.elected(tells_full=True)
    except TimeoutError:
        return 0


async def closed_within(candidate: LeaderCandidate, env: Env, timeout_s: float) -> None:
    """Close a candidate, and wait for at most so many seconds; the rest goes on in the background.

    Args:
        candidate: the candidate.
        env: the client's environment.
        timeout_s: longest wait.
    """
    await for_at_most(timeout_s, env.tasks.spawn(candidate.close(), "end of a candidate"))
