"""Leader: at most one process at a time that writes a log and acts for it. Methods block."""

import inspect
import logging
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from nyala.client.checks import is_int
from nyala.client.journal.builder import StepBuilder, text_of
from nyala.client.journal.journal import Journal
from nyala.common.errors import InvalidArgument, NotLeading, NyalaError
from nyala.env.tasks import Tasks
from nyala.recipes.candidate import LeaderCandidate, closed_within, elected_within
from nyala.recipes.own_steps import OwnSteps
from nyala.recipes.records import KEYS, ElectionSettings, LeaderInfo, leader_info

MIN_TIMEOUT_MS = 100
MAX_TIMEOUT_MS = 600_000
ABANDON_S = 1.0
"""Longest wait for the end of a candidate that has not led, in seconds."""

log = logging.getLogger(__name__)


class Leader:
    """A candidate for the leadership of a log. Any thread may call.

    Of all candidates of a log at most one acts at any time. It is replaced when the log has not changed for
    `timeout_ms`; it renews its leadership after a third of that without steps of its own, and it acts only
    within 3/4 of it after its last successful step was sent. Its steps take effect only while it leads, and
    only in the term in which they began: what began in an earlier one raises NotLeading, also if the same
    process leads again. A Leader that nobody refers to any more resigns, as by `close`, since nobody could
    see that it has lost its leadership. In a forked child, and once the client is closed, it does not lead.

    Args:
        journal: the journal.
        name: name of the log, of which no other process but the leader changes anything.
        holder: name of this process.
        locator: where it serves clients.
        timeout_ms: see above.
        back_off_ms: longest pause of a candidate that found an active leader, above `timeout_ms`; None:
            3/2 of it.
        on_lost: called in a thread of its own with the reason when this process has lost its leadership; it
            is a candidate again when the call returns. The call may close the leader or the client, end the
            process, and raise: then the candidate ends, and `wait` raises the same. None: nothing is called.
        once: the candidate ends with its first leadership.

    Raises:
        InvalidArgument: an argument is out of range.
    """

    def __init__(
        self,
        journal: Journal,
        name: str,
        *,
        holder: str,
        locator: str = "",
        timeout_ms: int = 5_000,
        back_off_ms: int | None = None,
        on_lost: Callable[[str], object] | None = None,
        once: bool = False,
    ) -> None:
        check_settings(journal, name, holder, timeout_ms, on_lost)
        settings = settings_of(name, holder, locator, timeout_ms, back_off_ms)
        self._journal = journal
        self._name = name
        self._loss = LossReport(journal.connection.core.env.tasks, name, on_lost)
        self._candidate = LeaderCandidate(
            journal.coroutines(), settings, self._loss.report, once=once
        )
        self._forgotten = weakref.finalize(self, journal.connection.leave, self._candidate.close)
        self._forgotten.atexit = False
        journal.connection.run(_start(self._candidate))

    @staticmethod
    def current(journal: Journal, name: str) -> LeaderInfo | None:
        """Return the leader of a log, as a hint for clients: it may have been replaced meanwhile.

        Returns:
            None: there is none.
        """
        return leader_info(journal.get(KEYS + text_of("name", name)))

    @property
    def name(self) -> str:
        """Name of the log."""
        return self._name

    @property
    def journal(self) -> Journal:
        """Journal of the log."""
        return self._journal

    @property
    def steps(self) -> OwnSteps:
        """Steps of this process as the leader, as coroutines."""
        return self._candidate.steps

    @property
    def leads(self) -> bool:
        """True if this process leads, and no other one can have been established yet."""
        return self._candidate.acts and not self._journal.connection.closed

    @property
    def epoch(self) -> int:
        """Epoch of the leadership of this process, for `Guard`; 0: it does not lead."""
        return 0 if self._journal.connection.closed else self._candidate.epoch

    def wait(self, timeout_s: float | None = None, *, looks: bool = False) -> int:
        """Wait until this process leads; return the epoch.

        Args:
            timeout_s: longest wait; None: no limit.
            looks: a shorter wait goes on, for a second at most, until it is known that another one may lead.

        Returns:
            0: not within the time.

        Raises:
            JournalFull: the journal has no room for an election. This process tries on; make room (delete
                keys or logs, or raise `journal_bytes`), and wait again.
            NyalaError: this process takes part in the election no more.
            BaseException: what `on_lost` raised.
        """
        check_seconds("timeout_s", timeout_s)
        try:
            work = elected_within(self._candidate, timeout_s, looks=looks)
            return self._journal.connection.run(work)
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
        if self._journal.connection.closed:
            raise NotLeading(
                f"this process does not lead log {self._name!r}: its client is closed, or it was forked from "
                "the process that leads; make a Leader of a client of its own"
            )
        return self.steps.check(epoch)

    def confirm(self, epoch: int | None = None) -> int:
        """Have the journal confirm that this process leads; return the epoch.

        Args:
            epoch: as for `check`.

        Raises:
            NotLeading: it does not lead, or leads in a later epoch.
        """
        return self._journal.connection.change(self.steps.confirm(epoch))

    def atomically(self, epoch: int | None = None) -> StepBuilder:
        """Return a step, as `Journal.atomically`, that takes effect only while this process leads.

        It may have two conditions and one change less. Besides the errors of `Journal.atomically` it raises
        NotLeading, in which case nothing took effect.

        Args:
            epoch: that in which the caller's work began, as `wait` returned it; None: that of this call. The
                step has no effect in another one.
        """
        began = self.epoch if epoch is None else epoch

        def send(conditions: Any, changes: Any) -> Any:
            step = self._candidate.steps.step(conditions, changes, began)
            return self._journal.connection.change(step)

        return StepBuilder(send, self._journal.id)

    def append(self, data: Any, invalidates: Any = (), epoch: int | None = None) -> int:
        """Append an entry to the log while this process leads; return its id.

        Args:
            data: bytes, at most 1 MiB.
            invalidates: ids of entries that become invalid in the same step.
            epoch: as for `atomically`.

        Raises:
            NotLeading, JournalFull: nothing took effect.
            OutcomeUnknown: it may have been appended, and this process does not lead any more.
        """
        step = self.atomically(epoch)
        step.append(self._name, data, invalidates)
        return step.send().ids[0]

    def resign(self) -> None:
        """End the leadership of this process, if it leads; another candidate is established at once."""
        self._journal.connection.run(self.steps.resign())

    def close(self) -> None:
        """Resign, and take part in the election no more. A second call does nothing.

        It goes on if the caller is interrupted.
        """
        connection = self._journal.connection
        if connection.closed:
            return
        try:
            connection.finish(self._candidate.close())
            self._forgotten.detach()
        except BaseException:  # interrupted, perhaps before it began
            connection.leave(self._candidate.close)
            raise

    def abandon(self) -> None:
        """Close it, and wait for a second at most: the rest goes on in the background."""
        connection = self._journal.connection
        if not connection.closed:
            connection.run(closed_within(self._candidate, connection.core.env, ABANDON_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<nyala.recipes.Leader {self._name!r}, epoch {self.epoch}>"


class LossReport:
    """Report of a lost leadership to the program. It does not refer to the Leader.

    Args:
        tasks: of the client.
        name: name of the log.
        on_lost: see `Leader`; a coroutine function runs on the client's loop.

    Attributes:
        raised: what `on_lost` raised.
    """

    def __init__(self, tasks: Tasks, name: str, on_lost: Callable[[str], object] | None) -> None:
        self._tasks = tasks
        self._name = name
        self._on_lost = on_lost
        self.raised: BaseException | None = None

    async def report(self, reason: str) -> None:
        """Call `on_lost`, if there is one.

        Raises:
            NotLeading: it raised an error, which ends the candidate.
        """
        log.error("the leadership of log %s is lost: %s", self._name, reason)
        if self._on_lost is None:
            return
        self.raised = await _call(self._tasks, self._on_lost, reason)
        if self.raised is not None:
            log.error("on_lost of log %s raised %r", self._name, self.raised)
            raise NotLeading(
                f"on_lost of log {self._name!r} raised {self.raised!r}: this process takes part in its "
                "election no more; make another Leader"
            )


async def _call(
    tasks: Tasks, on_lost: Callable[[str], object], reason: str
) -> BaseException | None:
    """Call a function of the program; return what it raised.

    Args:
        tasks: of the client.
        on_lost: the function; a coroutine function runs here, another one in a thread of its own.
        reason: its argument.
    """
    if not inspect.iscoroutinefunction(on_lost):
        return await tasks.run_apart(on_lost, reason)
    try:
        await on_lost(reason)
    except Exception as err:  # any error is the program's
        return err
    return None


async def _start(candidate: LeaderCandidate) -> None:
    candidate.start()


def settings_of(
    name: str, holder: str, locator: str, timeout_ms: int, back_off_ms: int | None
) -> ElectionSettings:
    """Return the settings of a candidate; see `Leader`.

    Args:
        name: of the log.
        holder: name of this process.
        locator: where it serves clients.
        timeout_ms: see `Leader`.
        back_off_ms: see `Leader`.

    Raises:
        InvalidArgument: an argument is out of range.
    """
    back_off_ms = timeout_ms * 3 // 2 if back_off_ms is None else back_off_ms
    _check_ms("back_off_ms", back_off_ms, timeout_ms + 1)
    return ElectionSettings(name, holder, text_of("locator", locator), timeout_ms, back_off_ms)


def check_settings(
    journal: Any, name: Any, holder: Any, timeout_ms: Any, on_lost: Any, kind: type = Journal
) -> None:  # fmt: skip
    """Raise InvalidArgument for a wrong argument of `Leader`.

    Args:
        journal: see `Leader`.
        name: see `Leader`.
        holder: see `Leader`.
        timeout_ms: see `Leader`.
        on_lost: see `Leader`.
        kind: class of the journal.
    """
    if not isinstance(journal, kind):
        raise InvalidArgument(
            f"journal is a {type(journal).__name__}; give one of client.journal(name)"
        )
    if on_lost is not None and not callable(on_lost):
        raise InvalidArgument("on_lost cannot be called; give a function of one argument, or None")
    if text_of("name", name) == "" or text_of("holder", holder) == "":
        raise InvalidArgument("name and holder must have a character each")
    _check_ms("timeout_ms", timeout_ms, MIN_TIMEOUT_MS)


def check_seconds(what: str, value: Any) -> None:
    """Raise InvalidArgument unless a value is a number of seconds, or None."""
    if value is not None and not (isinstance(value, int | float) and 0 <= value < 1 << 31):
        raise InvalidArgument(f"{what}={value!r}: give a number of seconds from 0 on, or None")


def _check_ms(what: str, value: Any, least: int) -> None:
    if not is_int(value) or not least <= value <= MAX_TIMEOUT_MS:
        raise InvalidArgument(
            f"{what}={value!r} is out of range; give milliseconds from {least} to {MAX_TIMEOUT_MS}"
        )
