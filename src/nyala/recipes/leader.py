"""Leader: at most one process at a time that writes a log and acts for it. Methods block."""

import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from nyala.client.checks import is_int
from nyala.client.journal.builder import StepBuilder, text_of
from nyala.client.journal.journal import Journal
from nyala.common.errors import InvalidArgument
from nyala.env.tasks import Lane
from nyala.recipes.candidate import LeaderCandidate
from nyala.recipes.own_steps import OwnSteps
from nyala.recipes.records import KEYS, ElectionSettings, LeaderInfo, leader_info

LOST_STATUS = 70
"""Exit status of a process whose leadership is lost, if it has no `on_lost`."""
MIN_TIMEOUT_MS = 100
MAX_TIMEOUT_MS = 600_000

log = logging.getLogger(__name__)


class Leader:
    """A candidate for the leadership of a log. Any thread may call.

    Of all candidates of a log at most one acts at any time. It is replaced when the log has not changed for
    `timeout_ms`; it renews its leadership after a third of that without steps of its own, and it acts only
    within 3/4 of it after its last successful step was sent. Its steps take effect only while it leads.

    Args:
        journal: the journal.
        name: name of the log, of which no other process but the leader changes anything.
        holder: name of this process.
        locator: where it serves clients.
        timeout_ms: see above.
        back_off_ms: longest pause of a candidate that found an active leader, above `timeout_ms`; None:
            3/2 of it.
        on_lost: called in a thread with the reason when this process has lost its leadership; it is a
            candidate again when the call returns. None: the process exits at once with status 70, so that
            nothing that it still does is done by a leader that was replaced.

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
    ) -> None:
        if not isinstance(journal, Journal):
            raise InvalidArgument(
                f"journal is a {type(journal).__name__}; give one of client.journal(name)"
            )
        if on_lost is not None and not callable(on_lost):
            raise InvalidArgument(
                "on_lost cannot be called; give a function of one argument, or None"
            )
        if text_of("name", name) == "" or text_of("holder", holder) == "":
            raise InvalidArgument("name and holder must have a character each")
        _check_ms("timeout_ms", timeout_ms, MIN_TIMEOUT_MS)
        back_off_ms = timeout_ms * 3 // 2 if back_off_ms is None else back_off_ms
        _check_ms("back_off_ms", back_off_ms, timeout_ms + 1)
        self._journal = journal
        self._name = name
        self._on_lost = on_lost
        settings = ElectionSettings(
            name, holder, text_of("locator", locator), timeout_ms, back_off_ms
        )
        self._candidate = LeaderCandidate(journal.coroutines(), settings, self._lost)
        journal.connection.run(self._start())

    async def _start(self) -> None:
        self._candidate.start()

    async def _lost(self, reason: str) -> None:
        log.error("the leadership of log %s is lost: %s", self._name, reason)
        if self._on_lost is None:
            os._exit(LOST_STATUS)
        env = self._journal.connection.core.env
        await env.tasks.run(Lane.COMPUTE, self._on_lost, reason)

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
        return self._candidate.acts

    @property
    def epoch(self) -> int:
        """Epoch of the leadership of this process, for `Guard`; 0: it does not lead."""
        return self._candidate.epoch

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until this process leads; return the epoch.

        Args:
            timeout_s: longest wait; None: no limit.

        Returns:
            0: not within the time.
        """
        if timeout_s is not None and not 0 <= timeout_s < 1 << 31:
            raise InvalidArgument(f"timeout_s={timeout_s!r}: give seconds from 0 on, or None")
        return self._journal.connection.run(self._candidate.elected_within(timeout_s))

    def check(self) -> int:
        """Return the epoch. Call it before each action and each answer to a client.

        Raises:
            NotLeading: this process does not lead, or may have been replaced.
        """
        return self._candidate.check()

    def confirm(self) -> int:
        """Have the journal confirm that this process leads; return the epoch.

        Raises:
            NotLeading: it does not lead.
        """
        return self._journal.connection.change(self._candidate.confirm())

    def atomically(self) -> StepBuilder:
        """Return a step, as `Journal.atomically`, that takes effect only while this process leads.

        It may have two conditions and one change less. Besides the errors of `Journal.atomically` it raises
        NotLeading, in which case nothing took effect.
        """

        def send(conditions: Any, changes: Any) -> Any:
            return self._journal.connection.change(self._candidate.steps.step(conditions, changes))

        return StepBuilder(send, self._journal.id)

    def append(self, data: Any, invalidates: Any = ()) -> int:
        """Append an entry to the log while this process leads; return its id.

        Args:
            data: bytes, at most 1 MiB.
            invalidates: ids of entries that become invalid in the same step.

        Raises:
            NotLeading, JournalFull: nothing took effect.
            OutcomeUnknown: it may have been appended, and this process does not lead any more.
        """
        step = self.atomically()
        step.append(self._name, data, invalidates)
        return step.send().ids[0]

    def resign(self) -> None:
        """End the leadership of this process, if it leads; another candidate is established at once."""
        self._journal.connection.run(self._candidate.resign())

    def close(self) -> None:
        """Resign, and take part in the election no more. A second call does nothing."""
        if not self._journal.connection.closed:
            self._journal.connection.run(self._candidate.close())

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


def _check_ms(what: str, value: Any, least: int) -> None:
    if not is_int(value) or not least <= value <= MAX_TIMEOUT_MS:
        raise InvalidArgument(
            f"{what}={value!r} is out of range; give milliseconds from {least} to {MAX_TIMEOUT_MS}"
        )
