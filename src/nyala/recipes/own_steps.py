"""OwnSteps: steps that take effect only while their sender leads. Each of them renews the leadership."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from nyala.client.journal.coroutines import JournalCoroutines
from nyala.client.journal.delivery import StepOutcome
from nyala.common.errors import (
    ConditionFailed,
    NotLeading,
    NyalaError,
    OutcomeUnknown,
    Retryable,
    SessionExpired,
)
from nyala.recipes.election import Election
from nyala.recipes.records import ElectionSettings
from nyala.wire.proto import journal_pb2 as pb

OWN_CONDITIONS = 2
"""Number of conditions that precede those of the caller in a leader's step."""
PAUSE_MS = 100
"""Pause before a request that failed is sent again, in milliseconds."""


class OwnSteps:
    """Steps of the leader of a log, one at a time. Used on the client's loop only.

    Args:
        journal: journal of the log.
        settings: of the candidate.
        election: its election.
        changed: called after each step.

    Attributes:
        sending: held while a step is sent.
    """

    def __init__(
        self,
        journal: JournalCoroutines,
        settings: ElectionSettings,
        election: Election,
        changed: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._env = journal.env
        self._settings = settings
        self._log = settings.log
        self._election = election
        self._changed = changed
        self.sending = asyncio.Lock()

    def _now_us(self) -> int:
        return self._env.clock.monotonic_us()

    def term(self) -> "TermSteps":
        """Return the steps of the present term.

        Raises:
            NotLeading: the process does not lead.
        """
        return TermSteps(self, self.check())

    def check(self, epoch: int | None = None) -> int:
        """Return the epoch of the leadership.

        Args:
            epoch: that of the term in which the caller's work began; None: any.

        Raises:
            NotLeading: the process does not lead, or leads in a later term.
        """
        leadership = self._election.leadership
        if leadership is None or not self._election.acts(self._now_us()):
            raise NotLeading(
                f"{self._settings.holder!r} does not lead log {self._log!r}, or cannot be sure of it; send "
                "the request to its leader (Leader.current), or wait until this process is elected"
            )
        if epoch not in (None, leadership.epoch):
            raise NotLeading(
                f"what began in epoch {epoch} of log {self._log!r} has no effect in epoch "
                f"{leadership.epoch}: another process may have led between them; begin it again, from what "
                "the log has now"
            )
        return leadership.epoch

    async def step(
        self,
        conditions: Sequence[pb.JournalCondition],
        changes: Sequence[pb.JournalChange],
        epoch: int | None = None,
    ) -> StepOutcome:
        """Execute a step that takes effect only while this process leads; it renews the leadership.

        It is sent again, under the same number, until the journal tells its outcome, which it keeps with the
        client's session: no refusal of another step is taken for it. If none is told within the window, or
        the session was forgotten, the process leads no more, and reads the log.

        Args:
            conditions: further ones, on the state before the step.
            changes: of any logs and keys.
            epoch: that of the term in which the caller's work began; None: the present one. It has no effect
                in another one.

        Raises:
            NotLeading: this process does not lead, or leads in a later term; nothing took effect.
            ConditionFailed, JournalFull, TooLarge, InvalidArgument, TimedOut: nothing took effect.
            OutcomeUnknown: it may take effect, and this process does not lead any more.
        """
        epoch = self.check(epoch)
        async with self.sending:
            try:
                self.check(epoch)
                await self._settle(epoch)
                self.check(epoch)
                return await self._send(conditions, changes, told=True)
            finally:
                self._changed()

    async def _settle(self, epoch: int) -> None:
        """Find the last id of the log after a renewal, or a step whose caller has gone, without an answer.

        Whether that took effect matters to nobody.

        Args:
            epoch: that of the caller's term.

        Raises:
            NotLeading: this process does not lead any more, or in a later term.
        """
        leadership = self._election.leadership
        while leadership is not None and leadership.unsettled_us is not None:
            try:
                await self._send((), ())
            except _TookEffect:
                return
            except (Retryable, OutcomeUnknown, SessionExpired):
                await self._env.tasks.sleep_ms(PAUSE_MS)
                self.check(epoch)

    async def _send(
        self,
        conditions: Sequence[pb.JournalCondition],
        changes: Sequence[pb.JournalChange],
        *,
        told: bool = False,
    ) -> StepOutcome:
        """Send an own step.

        Args:
            conditions: further ones.
            changes: none: it only renews the leadership.
            told: its outcome matters to the caller: it is sent until it is told, or the leadership ends.

        Raises:
            _TookEffect: it was refused, because the log has changed by the step before, which had no answer.
        """
        election, leadership = self._election, self._election.leadership
        assert leadership is not None
        step = self._journal.builder()
        step.require(key=self._settings.key, version=leadership.version)
        step.require(self._log, last=leadership.last)
        step.invalidate(self._log, ())
        own_conditions, renewal = step.parts
        ends_with_log = bool(changes) and _changes_log(changes[-1], self._log)
        sent_us = self._now_us()
        left_us = leadership.sent_us + election.window_us - sent_us
        left_ms = max(1, left_us // 1000)
        try_ms = min(left_ms, max(1, self._settings.timeout_ms // 3))
        try:
            outcome = await self._journal.step(
                [*own_conditions, *conditions],
                [*changes, *(() if ends_with_log else renewal)],
                left_ms if told else try_ms,
                try_ms=try_ms if told else None,
            )
        except ConditionFailed as err:
            number = int(err.details["condition"]) - OWN_CONDITIONS
            if number >= 0:
                raise ConditionFailed(
                    err.message, {**err.details, "condition": str(number)}
                ) from None
            if self._election.leadership is leadership and election.failed(
                key=number == -OWN_CONDITIONS, actual=err.last
            ):
                raise _TookEffect from None
            self._changed()
            raise NotLeading(
                f"{self._settings.holder!r} does not lead log {self._log!r} any more: {err.message}"
            ) from err
        except (OutcomeUnknown, SessionExpired, asyncio.CancelledError) as err:
            if self._election.leadership is leadership:
                election.unsettled(sent_us)
                if told and isinstance(err, NyalaError):
                    election.in_doubt()
            if not told or not isinstance(err, NyalaError):
                raise
            raise OutcomeUnknown(
                f"{err.message}. {self._settings.holder!r} does not lead log {self._log!r} any more; the "
                "next leader finds the step in the log, or not"
            ) from err
        if self._election.leadership is leadership:
            election.taken(sent_us, outcome.ids[-1])
        return StepOutcome(outcome.ids[: len(changes)], outcome.timestamp)

    async def confirm(self, epoch: int | None = None) -> int:
        """Have the journal confirm the leadership by a step without changes; return the epoch.

        Args:
            epoch: as for `check`.

        Raises:
            NotLeading: the process does not lead, or leads in a later term.
        """
        epoch = self.check(epoch)
        await self.step((), (), epoch)
        return epoch

    async def resign(self) -> None:
        """End the leadership, if there is one; another candidate is established at once."""
        async with self.sending:
            leadership = self._election.leadership
            if leadership is None:
                return
            self._election.dropped(self._now_us())  # it acts no more, whatever the outcome
            self._changed()
            step = self._journal.builder()
            step.require(key=self._settings.key, version=leadership.version)
            step.delete(self._settings.key)
            step.invalidate(self._log, [leadership.epoch])
            # otherwise others are established after the timeout
            with contextlib.suppress(ConditionFailed, Retryable, OutcomeUnknown, SessionExpired):
                await self._journal.step(*step.parts, self._settings.timeout_ms)

    async def renew(self) -> None:
        """Advance the last id of the log; a failure is decided by the next action of the election."""
        async with self.sending:
            try:
                await self._send((), ())
            except (_TookEffect, NotLeading):
                return
            except (Retryable, OutcomeUnknown, SessionExpired):
                await self._env.tasks.sleep_ms(PAUSE_MS)


class TermSteps:
    """Steps of one term: none takes effect in another one, even if the same process leads again.

    Attributes:
        epoch: that of the term.
    """

    def __init__(self, steps: OwnSteps, epoch: int) -> None:
        self._steps = steps
        self.epoch = epoch

    def check(self) -> int:
        """Return the epoch; raises NotLeading if the term has ended."""
        return self._steps.check(self.epoch)

    async def step(
        self, conditions: Sequence[pb.JournalCondition], changes: Sequence[pb.JournalChange]
    ) -> StepOutcome:
        """Execute a step in this term; see `OwnSteps.step`."""
        return await self._steps.step(conditions, changes, self.epoch)


class _TookEffect(Exception):
    """The log was changed by the step before, which had no answer."""


def _changes_log(change: pb.JournalChange, log: str) -> bool:
    """Return whether a change certainly advances the last id of a log that there is."""
    kind = change.WhichOneof("what")
    return kind in ("append", "invalidate") and getattr(change, kind).log == log
