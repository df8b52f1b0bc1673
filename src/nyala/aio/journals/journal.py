"""AsyncJournal: an open journal on an event loop."""

from collections.abc import AsyncIterator
from typing import Any

from nyala.aio.journals.following import AsyncFollowing
from nyala.aio.journals.log import AsyncLog
from nyala.aio.session import Session
from nyala.client.checks import check_age
from nyala.client.cluster.tablet_cache import TabletLocation
from nyala.client.journal.builder import AsyncStep, id_of, text_of
from nyala.client.journal.core import JournalCore
from nyala.client.journal.coroutines import JournalHandle
from nyala.client.journal.delivery import StepOutcome
from nyala.client.journal.items import Key, KeyEvent, LogSummary
from nyala.client.journal.locations import OpenJournal
from nyala.client.journal.pages import items_of, key_pages, read_key, read_logs
from nyala.wire.proto import journal_pb2 as pb

_Conditions = list[pb.JournalCondition]  # outside of the class, which has a method `list`
_Changes = list[pb.JournalChange]
_Logs = list[LogSummary]


class AsyncJournal(JournalHandle):
    """An open journal: named logs, and keys with versions. Made by `AsyncClient.open_journal`.

    Args:
        session: the client.
        core: journals of the client.
        journal: the open journal.
    """

    kind = "nyala.aio.AsyncJournal"

    def __init__(self, session: Session, core: JournalCore, journal: OpenJournal) -> None:
        self._session = session  # first, as it is what refuses to be pickled
        super().__init__(core, journal)

    @property
    def session(self) -> Session:
        """The client, for recipes."""
        return self._session

    async def location(self) -> TabletLocation:
        """Return the journal's tablet and its replicas, read from the masters."""
        self._session.core()
        await self._core.locations.refresh(self._journal)
        return self._journal.tablet

    def log(self, name: str) -> AsyncLog:
        """Return a handle of a log, which need not exist yet; nothing is sent."""
        reader = self._core.log(self._journal, text_of("log", name))
        return AsyncLog(self._session, self._core, reader, self.atomically)

    async def logs(self, *, max_age_ms: int = 0) -> _Logs:
        """Return the logs, by name.

        Args:
            max_age_ms: as for `nyala.Journal.logs`.
        """
        check_age("max_age_ms", max_age_ms)
        self._session.core()
        return await read_logs(self._core.reads, self._journal, max_age_ms)

    def atomically(self) -> AsyncStep:
        """Return a step, to be used in an `async with`, at whose end it is sent.

        The end of the block raises as that of `nyala.Journal.atomically`.
        """
        return AsyncStep(self._send, self._journal.id)

    async def _send(self, conditions: _Conditions, changes: _Changes) -> StepOutcome:
        caller = self._session.core().caller
        return await caller.change(self._core.step(self._journal, conditions, changes))

    async def get(self, key: str, *, max_age_ms: int = 0) -> Key | None:
        """Return a key with its value and version, or None if there is none.

        Args:
            key: its name.
            max_age_ms: as for `logs`.
        """
        check_age("max_age_ms", max_age_ms)
        self._session.core()
        return await read_key(self._core.reads, self._journal, text_of("key", key), max_age_ms)

    async def set(self, key: str, value: Any, expected_version: int | None = None) -> int:
        """Give a key a value; return its version; raises as `nyala.Journal.set`.

        If it is cancelled it may have been set, or may yet be: the same call with the same `expected_version`
        settles it.

        Args:
            key: at most 1 KiB of UTF-8.
            value: bytes, at most 256 KiB.
            expected_version: the version that the key must have; 0: there must be no such key.
        """
        step = self._begin(key, expected_version)
        step.set(key, value)
        return (await step.send()).ids[0]

    async def delete(self, key: str, expected_version: int | None = None) -> int:
        """Delete a key; return the id of the change, 0 if there is no such key."""
        step = self._begin(key, expected_version)
        step.delete(key)
        return (await step.send()).ids[0]

    def _begin(self, key: str, expected_version: int | None) -> AsyncStep:
        step = self.atomically()
        if expected_version is not None:
            step.require(key=key, version=expected_version)
        return step

    async def list(self, prefix: str = "", *, max_age_ms: int = 0) -> AsyncIterator[Key]:
        """Yield the keys with a prefix, in order: `async for key in journal.list()`.

        Args:
            prefix: prefix of the keys; empty: all.
            max_age_ms: as for `logs`.
        """
        check_age("max_age_ms", max_age_ms)
        self._session.core()
        reads = self._core.reads
        pages = key_pages(reads, self._journal, text_of("prefix", prefix), max_age_ms)
        async for key in items_of(pages):
            yield key

    def watch(
        self, prefix: str = "", after: int = 0, *, timeout: float | None = None
    ) -> AsyncFollowing[KeyEvent]:
        """Return an async iterator over the changes of keys; its events are those of `nyala.Journal.watch`.

        Args:
            prefix: prefix of the keys; empty: all.
            after: id; the reader has seen everything up to it. 0: it begins with all keys.
            timeout: seconds without an event after which it ends; None: it waits without end.
        """
        pages = self._core.watch(self._journal, text_of("prefix", prefix), id_of("after", after))
        return AsyncFollowing(self._session, pages, timeout)
