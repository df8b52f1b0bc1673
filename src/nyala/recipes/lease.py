"""Lease and Lock: one holder at a time, who keeps it by renewals and whose crash frees it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from nyala.client.journal.builder import StepBuilder, text_of
from nyala.client.journal.journal import Journal
from nyala.common.errors import InvalidArgument, NotLeading, NyalaError, TimedOut
from nyala.env.monotonic import monotonic_us
from nyala.recipes.leader import Leader, check_seconds, check_settings
from nyala.recipes.records import KEYS, LeaderInfo, leader_info

T = TypeVar("T")

HINT_S = 1.0
"""Longest wait for the name of the holder in an error, in seconds."""


class _LossOfLease:
    """Report of a lost lease. `on_lost` is called if it was acquired before.

    Attributes:
        begun: it was acquired.
    """

    def __init__(self, on_lost: Callable[[str], object] | None) -> None:
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._lost = False
        self.begun = False

    def begin(self) -> bool:
        """Note that it is acquired; return False if it was lost already."""
        with self._lock:
            self.begun = not self._lost
            return self.begun

    def __call__(self, reason: str) -> None:
        """Take the loss."""
        with self._lock:
            self._lost = True
        if self.begun and self._on_lost is not None:
            self._on_lost(reason)


async def _within(seconds: float, work: Awaitable[T]) -> T:
    async with asyncio.timeout(seconds):
        return await work


class _Exclusive:
    """A right that one process has at a time: that of the leader of a log, `PREFIX` and a name.

    It is held from `acquire`, or the beginning of a `with` block, until `release`, or its end. A lease that
    was lost meanwhile stays lost: `check` and steps raise NotLeading, and so does `release`, until it is
    acquired again. Threads of a process take turns. One that nobody refers to any more is released.

    Args:
        journal: the journal.
        name: name of the lease or lock.
        holder: name of this process.
        ttl_ms: time without renewals after which another process gets it.
        timeout_s: longest wait of `acquire`; None: no limit.
        on_lost: called in a thread of its own with the reason when the lease was lost; None: `check` raises.

    Raises:
        InvalidArgument: an argument is out of range.
    """

    PREFIX: ClassVar[str]

    def __init__(
        self,
        journal: Journal,
        name: str,
        *,
        holder: str,
        ttl_ms: int = 10_000,
        timeout_s: float | None = None,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        log = self.log_of(name)
        check_settings(journal, log, holder, ttl_ms, on_lost)
        check_seconds("timeout_s", timeout_s)
        self._journal = journal
        self._log = log
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._turn = threading.Lock()
        self._ending = threading.Lock()
        self._thread: int | None = None
        self._leader: Leader | None = None
        self._epoch = 0

    @classmethod
    def log_of(cls, name: str) -> str:
        """Return the name of the log of a lease or lock.

        Raises:
            InvalidArgument: the name is empty, or no text.
        """
        if not text_of("name", name):
            raise InvalidArgument("the name is empty; give it at least one character")
        return cls.PREFIX + name

    @classmethod
    def current(cls, journal: Journal, name: str) -> LeaderInfo | None:
        """Return the holder, as a hint; None: there is none."""
        return Leader.current(journal, cls.log_of(name))

    def acquire(self, timeout_s: float | None = None) -> int:
        """Wait until this process holds it; return the epoch, for `Guard`.

        Args:
            timeout_s: longest wait; 0: it is acquired if nobody has it; None: that of the constructor. If the
                journal does not answer, a call may take two seconds more.

        Raises:
            TimedOut: another process, or thread, holds it, or the journal does not answer.
            JournalFull: the journal has no room for it; make room, and try again.
            InvalidArgument: this thread holds it.
        """
        check_seconds("timeout_s", timeout_s)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if self._thread == threading.get_ident():
            raise InvalidArgument(f"{self._log!r} is held by this thread already; release it first")
        began_us = monotonic_us()
        if not self._turn.acquire(timeout=-1 if limit_s is None else limit_s):
            raise self._held_by("another thread of this process", limit_s)
        try:
            leader: Leader | None = None
            while leader is None:
                waited_s = (monotonic_us() - began_us) / 1_000_000
                left_s = None if limit_s is None else max(0.0, limit_s - waited_s)
                leader = self._established(left_s, limit_s)
            self._leader, self._thread = leader, threading.get_ident()
            return self._epoch
        except BaseException:  # also when interrupted
            self._leader = self._thread = None
            self._turn.release()
            raise

    def _established(self, left_s: float | None, limit_s: float | None) -> Leader | None:
        """Take part in the election until elected; None: the leadership was lost at once, as in a pause.

        Args:
            left_s: longest wait; None: no limit.
            limit_s: that of the caller, for the error.

        Raises:
            TimedOut: not within the time.
        """
        loss = _LossOfLease(self._on_lost)
        leader = Leader(
            self._journal,
            self._log,
            holder=self._holder,
            timeout_ms=self._ttl_ms,
            on_lost=loss,
            once=True,
        )
        try:
            self._epoch = leader.wait(left_s, looks=True)
            if not self._epoch:
                raise self._held_by(self._present_holder(), limit_s)
            return leader if loss.begin() else None
        except NotLeading:
            return None
        finally:
            if not loss.begun:
                leader.abandon()

    def _present_holder(self) -> str:
        """Return who holds it, for an error, if the journal tells it soon."""
        reading = self._journal.coroutines().get(KEYS + self._log)
        try:
            found = leader_info(self._journal.connection.run(_within(HINT_S, reading)))
        except (NyalaError, TimeoutError):
            return "another process, or the journal did not answer,"
        return "another process" if found is None else repr(found.holder)

    def _held_by(self, whom: str, limit_s: float | None) -> TimedOut:
        return TimedOut(f"{self._log!r} was held by {whom} for {limit_s} s; try again")

    def release(self) -> None:
        """Release it; another process gets it at once. Without effect if it is not held.

        Raises:
            NotLeading: it was lost since it was acquired: another process may have held it meanwhile.
        """
        leader: Leader | None = None
        try:
            with self._ending:  # of two threads one releases it
                leader, self._leader = self._leader, None
            if leader is None:
                return
            lost = not leader.leads or leader.epoch != self._epoch
            leader.close()
        finally:
            if leader is not None:
                self._thread = None
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

    def confirm(self) -> int:
        """Have the journal confirm that this process holds it; return the epoch; raises as `check`."""
        return self._acquired().confirm(self._epoch)

    def atomically(self) -> StepBuilder:
        """Return a step that takes effect only while it is held since it was acquired; see `Leader`."""
        return self._acquired().atomically(self._epoch)

    def _acquired(self) -> Leader:
        if self._leader is None:
            raise NotLeading(f"{self._holder!r} does not hold {self._log!r}; acquire it first")
        return self._leader

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except NotLeading as lost:
            if error is None:
                raise
            error.add_note(lost.message)

    def __repr__(self) -> str:
        return f"<nyala.recipes.{type(self).__name__} {self._log!r}, epoch {self.epoch}>"


class Lease(_Exclusive):
    """A right that one process has at a time, for instance to run a job."""

    PREFIX: ClassVar[str] = "lease/"


class Lock(_Exclusive):
    """Mutual exclusion of processes, and of their threads, by name."""

    PREFIX: ClassVar[str] = "lock/"
