"""ElectionChanges: what a candidate notices of others: changes of the log, and the end of a leader."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from nyala.client.journal.coroutines import JournalCoroutines
from nyala.client.journal.items import Key
from nyala.common.errors import LogGone, NotFound, OutcomeUnknown, Retryable
from nyala.recipes.election import Election
from nyala.recipes.own_steps import PAUSE_MS
from nyala.recipes.records import ElectionSettings


class ElectionChanges:
    """Followers of the log and the key of an election. Used on the client's loop only.

    What they miss, the candidate finds by its next read.

    Args:
        journal: journal of the log.
        settings: of the candidate.
        election: its election.
        changed: called after each change.
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
        self._election = election
        self._changed = changed
        self._follower: asyncio.Task[object] | None = None

    def follow_log(self) -> None:
        """Notice the first change of the log after those that the candidate has seen."""
        self.close()
        work = self._first_change(self._election.seen.last)
        self._follower = self._env.tasks.spawn(work, f"changes of {self._settings.log}")

    def close(self) -> None:
        """Follow the log no more."""
        if self._follower is not None:
            self._follower.cancel()

    async def _first_change(self, after: int) -> None:
        try:
            async with aclosing(self._journal.tail(self._settings.log, after)) as pages:
                async for _ in pages:
                    break
        except (Retryable, OutcomeUnknown, LogGone, NotFound):
            return
        if self._election.seen.last == after:
            self._election.log_changed(self._env.clock.monotonic_us())
            self._changed()

    async def follow_key(self) -> None:
        """Notice each resignation of a leader, without end."""
        after = 0
        while True:
            try:
                async with aclosing(self._journal.watch(self._settings.key, after)) as pages:
                    async for events in pages:
                        for event in events:
                            if isinstance(event, Key):
                                after = max(after, event.version)
                                self._key_changed(event)
            except (Retryable, OutcomeUnknown):
                await self._env.tasks.sleep_ms(PAUSE_MS)
            except NotFound:  # the journal was dropped, as the candidate finds too
                return

    def _key_changed(self, key: Key) -> None:
        if key.name == self._settings.key and key.value is None:
            self._election.key_deleted()
            self._changed()
