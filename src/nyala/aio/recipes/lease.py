"""AsyncLease and AsyncLock: one holder at a time, on an event loop."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Self

from nyala.aio.journals.journal import AsyncJournal
from nyala.aio.recipes.leader import AsyncLeader
from nyala.client.journal.builder import AsyncStep
from nyala.common.errors import InvalidArgument, NotLeading, NyalaError, TimedOut
from nyala.env.tasks import Tasks
from nyala.recipes.leader import LossReport, check_seconds, check_settings
from nyala.recipes.lease import HINT_S, Lease, Lock
from nyala.recipes.records import LeaderInfo


class _LossOfLease:
    """Report of a lost lease. `on_lost` is called if it was acquired before.

    Attributes:
        begun: it was acquired.
    """

    def __init__(self, tasks: Tasks, log: str, on_lost: Callable[[str], object] | None) -> None:
        self._report = LossReport(tasks, log, on_lost)
        self._lost = False
        self.begun = False

    def begin(self) -> bool:
        """Note that it is acquired; return False if it was lost already."""
        self.begun = not self._lost
        return self.begun

    async def report(self, reason: str) -> None:
        """Take the loss."""
        self._lost = True
        if self.begun:
            await self._report.report(reason)


class _Exclusive:
    """A right that one process has at a time; see `nyala.recipes.Lease`. An async context manager.

    It is held from `acquire`, or the beginning of an `async with` block, until `release`, or its end. Tasks
    of a process take turns.

    Args:
        journal: the journal.
        name: name of the lease or lock.
        holder: name of this process.
        ttl_ms: time without renewals after which another process gets it.
        timeout_s: longest wait of `acquire`; None: no limit.
        on_lost: as for `AsyncLeader`; None: `check` raises.

    Raises:
        InvalidArgument: an argument is out of range.
    """

    THREADED: ClassVar[type[Lease] | type[Lock]]
    """The same right in the synchronous client."""

    def __init__(
        self,
        journal: AsyncJournal,
        name: str,
        *,
        holder: str,
        ttl_ms: int = 10_000,
        timeout_s: float | None = None,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        log = self.THREADED.log_of(name)
        check_settings(journal, log, holder, ttl_ms, on_lost, AsyncJournal)
        check_seconds("timeout_s", timeout_s)
        self._journal = journal
        self._log = log
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._leader: AsyncLeader | None = None
        self._epoch = 0

    @classmethod
    async def current(cls, journal: AsyncJournal, name: str) -> LeaderInfo | None:
        """Return the holder, as a hint; None: there is none."""
        return await AsyncLeader.current(journal, cls.THREADED.log_of(name))

    async def acquire(self, timeout_s: float | None = None) -> int:
        """Wait until this process holds it; return the epoch, for `Guard`. It can be cancelled.

        Args:
            timeout_s: longest wait; 0: it is acquired if nobody has it; None: that of the constructor. If the
                journal does not answer, a call may take two seconds more.

        Raises:
            TimedOut: another process, or task, holds it, or the journal does not answer.
            JournalFull: the journal has no room for it; make room, and try again.
            InvalidArgument: this task holds it.
        """
        check_seconds("timeout_s", timeout_s)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        clock = self._journal.session.core().env.clock
        if self._task is not None and self._task is asyncio.current_task():
            raise InvalidArgument(f"{self._log!r} is held by this task already; release it first")
        began_us = clock.monotonic_us()
        await self._take_turn(limit_s)
        try:
            leader: AsyncLeader | None = None
            while leader is None:
                waited_s = (clock.monotonic_us() - began_us) / 1_000_000
                left_s = None if limit_s is None else max(0.0, limit_s - waited_s)
                leader = await self._established(left_s, limit_s)
        except BaseException:  # also when cancelled
            self._turn.release()
            raise
        self._leader, self._task = leader, asyncio.current_task()
        return self._epoch

    async def _take_turn(self, limit_s: float | None) -> None:
        if not self._turn.locked():
            await self._turn.acquire()  # at once, also with a limit of 0
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._turn.acquire()
        except TimeoutError:
            raise self._held_by("another task of this process", limit_s) from None

    async def _established(self, left_s: float | None, limit_s: float | None) -> AsyncLeader | None:
        """Take part in the election until elected; None: the leadership was lost at once, as in a pause.

        Args:
            left_s: longest wait; None: no limit.
            limit_s: that of the caller, for the error.

        Raises:
            TimedOut: not within the time.
        """
        tasks = self._journal.session.core().env.tasks
        loss = _LossOfLease(tasks, self._log, self._on_lost)
        leader = AsyncLeader(
            self._journal, self._log, holder=self._holder, timeout_ms=self._ttl_ms,
            on_lost=loss.report, once=True,
        )  # fmt: skip
        leader.start()
        try:
            self._epoch = await leader.wait(left_s, looks=True)
            if not self._epoch:
                raise self._held_by(await self._present_holder(), limit_s)
            return leader if loss.begin() else None
        except NotLeading:
            return None
        finally:
            if not loss.begun:
                await leader.abandon()

    async def _present_holder(self) -> str:
        """Return who holds it, for an error, if the journal answers soon."""
        try:
            async with asyncio.timeout(HINT_S):
                found = await AsyncLeader.current(self._journal, self._log)
        except (NyalaError, TimeoutError):
            return "another process, or the journal did not answer,"
        return "another process" if found is None else repr(found.holder)

    def _held_by(self, whom: str, limit_s: float | None) -> TimedOut:
        return TimedOut(f"{self._log!r} was held by {whom} for {limit_s} s; try again")

    async def release(self) -> None:
        """Release it, also if it is cancelled; another process gets it at once.

        Raises:
            NotLeading: it was lost since it was acquired: another process may have held it meanwhile.
        """
        leader, self._leader = self._leader, None
        if leader is None:
            return
        lost = not leader.leads or leader.epoch != self._epoch
        try:
            await leader.close()
        finally:
            self._task = None
            self._turn.release()
        if lost:
            raise NotLeading(
                f"{self._log!r} was lost before it was released: another process may have held it meanwhile, "
                "and what was done without check() or a step may have been done beside it"
            )

    @property
    def held(self) -> bool:
        """True if this process holds it since it was acquired, and no other one can have got it yet."""
        leader = self._leader
        return leader is not None and leader.epoch == self._epoch

    @property
    def epoch(self) -> int:
        """Epoch since it was acquired; 0: it is not held."""
        return self._epoch if self.held else 0

    def check(self) -> int:
        """Return the epoch, for `Guard`. Call it before each action.

        Raises:
            NotLeading: it is not held, or was lost since it was acquired.
        """
        return self._acquired().check(self._epoch)

    async def confirm(self) -> int:
        """Have the journal confirm that this process holds it; return the epoch; raises as `check`."""
        return await self._acquired().confirm(self._epoch)

    def atomically(self) -> AsyncStep:
        """Return a step that takes effect only while it is held since it was acquired."""
        return self._acquired().atomically(self._epoch)

    def _acquired(self) -> AsyncLeader:
        if self._leader is None:
            raise NotLeading(f"{self._holder!r} does not hold {self._log!r}; acquire it first")
        return self._leader

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except NotLeading as lost:
            if error is None:
                raise
            error.add_note(lost.message)

    def __repr__(self) -> str:
        return f"<nyala.aio.recipes.{type(self).__name__} {self._log!r}, epoch {self.epoch}>"


class AsyncLease(_Exclusive):
    """A right that one process has at a time, for instance to run a job."""

    THREADED = Lease


class AsyncLock(_Exclusive):
    """Mutual exclusion of processes, and of their tasks, by name."""

    THREADED = Lock
