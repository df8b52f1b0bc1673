"""AsyncLeader: at most one process at a time that writes a log and acts for it, on an event loop."""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from nyala.aio.journals.journal import AsyncJournal
from nyala.client.journal.builder import AsyncStep, text_of
from nyala.common.errors import InvalidArgument, NotLeading, NyalaError
from nyala.recipes.candidate import LeaderCandidate, closed_within, elected_within
from nyala.recipes.leader import (
    ABANDON_S,
    LossReport,
    check_seconds,
    check_settings,
    settings_of,
)
from nyala.recipes.own_steps import OwnSteps
from nyala.recipes.records import KEYS, LeaderInfo, leader_info


class AsyncLeader:
    """A candidate for the leadership of a log; see `nyala.recipes.Leader`. An async context manager.

    It takes part in the election from `start`, or the beginning of its block, until `close`, or the end.

    Args:
        journal: the journal.
        name: name of the log, of which no other process but the leader changes anything.
        holder: name of this process.
        locator: where it serves clients.
        timeout_ms: as for `nyala.recipes.Leader`.
        back_off_ms: as for `nyala.recipes.Leader`.
        on_lost: called with the reason when this process has lost its leadership: a coroutine function on the
            loop, another one in a thread of its own; None: nothing is called.
        once: the candidate ends with its first leadership.

    Raises:
        InvalidArgument: an argument is out of range.
    """

    def __init__(
        self,
        journal: AsyncJournal,
        name: str,
        *,
        holder: str,
        locator: str = "",
        timeout_ms: int = 5_000,
        back_off_ms: int | None = None,
        on_lost: Callable[[str], object] | None = None,
        once: bool = False,
    ) -> None:
        check_settings(journal, name, holder, timeout_ms, on_lost, AsyncJournal)
        settings = settings_of(name, holder, locator, timeout_ms, back_off_ms)
        self._session = journal.session
        self._journal = journal
        self._name = name
        self._started = False
        self._loss = LossReport(self._session.core().env.tasks, name, on_lost)
        self._candidate = LeaderCandidate(
            journal.coroutines(), settings, self._loss.report, once=once
        )

    @staticmethod
    async def current(journal: AsyncJournal, name: str) -> LeaderInfo | None:
        """Return the leader of a log, as a hint for clients; None: there is none."""
        return leader_info(await journal.get(KEYS + text_of("name", name)))

    @property
    def name(self) -> str:
        """Name of the log."""
        return self._name

    @property
    def steps(self) -> OwnSteps:
        """Steps of this process as the leader."""
        return self._candidate.steps

    @property
    def leads(self) -> bool:
        """True if this process leads, and no other one can have been established yet."""
        return self._candidate.acts and not self._session.closed

    @property
    def epoch(self) -> int:
        """Epoch of the leadership of this process, for `Guard`; 0: it does not lead."""
        return 0 if self._session.closed else self._candidate.epoch

    def start(self) -> None:
        """Take part in the election from now on.

        Raises:
            InvalidArgument: it was started before, or the caller is on another loop.
        """
        self._session.core()
        if self._started:
            raise InvalidArgument(
                f"the candidate for log {self._name!r} was started before; make another AsyncLeader"
            )
        self._started = True
        self._candidate.start()
        self._forgotten = weakref.finalize(self, self._session.leave, self._candidate.close)
        self._forgotten.atexit = False

    async def wait(self, timeout_s: float | None = None, *, looks: bool = False) -> int:
        """Wait until this process leads; return the epoch; raises as `nyala.recipes.Leader.wait`.

        Args:
            timeout_s: longest wait; None: no limit.
            looks: a shorter wait goes on, for a second at most, until it is known that another one may lead.

        Returns:
            0: not within the time.
        """
        check_seconds("timeout_s", timeout_s)
        self._session.core()
        if not self._started:
            raise InvalidArgument(
                f"the candidate for log {self._name!r} takes no part yet; use it in an async with, or call "
                "start()"
            )
        try:
            return await elected_within(self._candidate, timeout_s, looks=looks)
        except NyalaError:
            if self._loss.raised is not None:
                raise self._loss.raised from None
            raise

    def check(self, epoch: int | None = None) -> int:
        """Return the epoch. Call it before each action and each answer to a client.

        Args:
            epoch: that in which the caller's work began, as `wait` returned it; None: any.

        Raises:
            NotLeading: this process does not lead, may have been replaced, or leads in a later epoch.
        """
        if self._session.closed:
            raise NotLeading(f"this process does not lead log {self._name!r}: its client is closed")
        return self.steps.check(epoch)

    async def confirm(self, epoch: int | None = None) -> int:
        """Have the journal confirm that this process leads; return the epoch; raises as `check`."""
        return await self._session.core().caller.change(self.steps.confirm(epoch))

    def atomically(self, epoch: int | None = None) -> AsyncStep:
        """Return a step, for an `async with`, that takes effect only while this process leads.

        Args:
            epoch: as for `nyala.recipes.Leader.atomically`.
        """
        began = self.epoch if epoch is None else epoch

        async def send(conditions: Any, changes: Any) -> Any:
            step = self.steps.step(conditions, changes, began)
            return await self._session.core().caller.change(step)

        return AsyncStep(send, self._journal.id)

    async def append(self, data: Any, invalidates: Any = (), epoch: int | None = None) -> int:
        """Append an entry to the log while this process leads; return its id.

        Args:
            data: bytes, at most 1 MiB.
            invalidates: ids of entries that become invalid in the same step.
            epoch: as for `atomically`.
        """
        step = self.atomically(epoch)
        step.append(self._name, data, invalidates)
        return (await step.send()).ids[0]

    async def resign(self) -> None:
        """End the leadership of this process, if it leads; another candidate is established at once."""
        self._session.core()
        await self.steps.resign()

    async def close(self) -> None:
        """Resign, and take part in the election no more, also if it is cancelled; again: without effect."""
        if self._started and not self._session.closed:
            self._forgotten.detach()
            await self._session.core().caller.finish(self._candidate.close())

    async def abandon(self) -> None:
        """Close it, and wait for a second at most: the rest goes on in the background."""
        if self._started and not self._session.closed:
            self._forgotten.detach()
            await closed_within(self._candidate, self._session.core().env, ABANDON_S)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<nyala.aio.recipes.AsyncLeader {self._name!r}, epoch {self.epoch}>"
