"""Lease and Lock: one holder at a time, who keeps it by renewals and whose crash frees it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from nyala.client.journal.builder import text_of
from nyala.client.journal.journal import Journal
from nyala.common.errors import InvalidArgument, TimedOut
from nyala.recipes.leader import Leader
from nyala.recipes.records import LeaderInfo

LEASES, LOCKS = "lease/", "lock/"
"""Beginnings of the names of their logs."""


class Lease:
    """A right that one process has at a time: that of the leader of the log `lease/<name>`.

    Args:
        journal: the journal.
        name: name of the lease.
        holder: name of this process.
        ttl_ms: time without renewals after which another process gets it.
        on_lost: as for `Leader`, but None: `check` raises.
    """

    def __init__(
        self,
        journal: Journal,
        name: str,
        *,
        holder: str,
        ttl_ms: int = 10_000,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        self._leader = Leader(
            journal, LEASES + _name(name), holder=holder, timeout_ms=ttl_ms,
            on_lost=_nothing if on_lost is None else on_lost,
        )  # fmt: skip

    @staticmethod
    def current(journal: Journal, name: str) -> LeaderInfo | None:
        """Return the holder, as a hint; None: there is none."""
        return Leader.current(journal, LEASES + _name(name))

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until this process holds the lease; return the epoch, or 0 if it does not within the time."""
        return self._leader.wait(timeout_s)

    @property
    def held(self) -> bool:
        """True if this process holds the lease, and no other one can have got it yet."""
        return self._leader.leads

    def check(self) -> int:
        """Return the epoch, for `Guard`.

        Raises:
            NotLeading: this process does not hold the lease.
        """
        return self._leader.check()

    def close(self) -> None:
        """Release the lease; another process gets it at once."""
        self._leader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Lock:
    """Mutual exclusion of processes by name, for `with`; a crashed holder's lock is free after `ttl_ms`.

    Args:
        journal: the journal.
        name: name of the lock.
        holder: name of this process.
        ttl_ms: see above.
        timeout_s: longest wait; None: no limit.
    """

    def __init__(
        self,
        journal: Journal,
        name: str,
        *,
        holder: str,
        ttl_ms: int = 10_000,
        timeout_s: float | None = None,
    ) -> None:
        self._journal = journal
        self._name = LOCKS + _name(name)
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._timeout_s = timeout_s
        self._leader: Leader | None = None

    def __enter__(self) -> Leader:
        """Acquire the lock; return its `Leader`, whose `check` raises if the lock was lost.

        Raises:
            TimedOut: another process holds it.
            InvalidArgument: it is held by this object.
        """
        if self._leader is not None:
            raise InvalidArgument("this lock is held already; make another Lock for another thread")
        leader = Leader(
            self._journal,
            self._name,
            holder=self._holder,
            timeout_ms=self._ttl_ms,
            on_lost=_nothing,
        )
        try:
            held = leader.wait(self._timeout_s)
            if not held:
                found = Leader.current(self._journal, self._name)
                by = "another process" if found is None else repr(found.holder)
                raise TimedOut(
                    f"lock {self._name!r} was held by {by} for {self._timeout_s} s; try again"
                )
        except BaseException:  # also when interrupted
            leader.close()
            raise
        self._leader = leader
        return leader

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.close()


def _name(name: str) -> str:
    if not text_of("name", name):
        raise InvalidArgument("the name is empty; give it at least one character")
    return name


def _nothing(_: str) -> None:
    """Leave it to `check`."""
