"""AsyncLog: one log of a journal on an event loop."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from nyala.aio.journals.following import AsyncFollowing
from nyala.aio.session import Session
from nyala.client.checks import check_age
from nyala.client.journal.builder import AsyncStep, id_of
from nyala.client.journal.core import JournalCore
from nyala.client.journal.items import Entry, Event
from nyala.client.journal.pages import LogReader, check_limit, items_of


class AsyncLog:
    """A log of a journal. Made by `AsyncJournal.log`; the log need not exist yet.

    Reads are of the log that the handle finds first, as those of `nyala.Log`.

    Args:
        session: the client.
        core: journals of the client.
        log: reader of the log.
        step: begins a step of the journal.
    """

    def __init__(
        self, session: Session, core: JournalCore, log: LogReader, step: Callable[[], AsyncStep]
    ) -> None:
        self._session = session
        self._core = core
        self._log = log
        self._step = step

    @property
    def name(self) -> str:
        """Name of the log."""
        return self._log.name

    @property
    def journal_id(self) -> str:
        """Id of its journal."""
        return self._log.journal.id

    async def append(
        self, data: Any, expected: int | None = None, invalidates: Iterable[int] = ()
    ) -> int:
        """Append an entry; return its id when it is durable on a majority; raises as `nyala.Log.append`.

        If it is cancelled it may have been appended, or may yet be: the same call with the same `expected`
        settles it.

        Args:
            data: bytes, at most 1 MiB.
            expected: last id of the log, for a step that takes effect only if nothing came since.
            invalidates: ids of entries that become invalid in the same step.
        """
        step = self._begin(expected)
        step.append(self, data, invalidates)
        return (await step.send()).ids[0]

    async def invalidate(self, ids: Iterable[int], expected: int | None = None) -> int:
        """Make entries invalid; return the id of the change, 0 if there is no such log.

        Args:
            ids: ids of entries; those that are not valid are ignored.
            expected: as for `append`.
        """
        step = self._begin(expected)
        step.invalidate(self, ids)
        return (await step.send()).ids[0]

    async def delete(self, expected: int | None = None) -> int:
        """Delete the log with all of its entries; return the id of the change, 0 if there is no such log."""
        step = self._begin(expected)
        step.delete_log(self)
        deleted = (await step.send()).ids[0]
        self._log.found(deleted)  # no log has this id: a handle that had read nothing reads nothing
        return deleted

    def _begin(self, expected: int | None) -> AsyncStep:
        step = self._step()
        if expected is not None:
            step.require(self, last=expected)
        return step

    async def last_id(self, *, max_age_ms: int = 0) -> int:
        """Return the id of the log's last change; 0: there is no such log.

        Args:
            max_age_ms: as for `read`.
        """
        check_age("max_age_ms", max_age_ms)
        self._session.core()
        return await self._log.last_id(max_age_ms)

    async def read(
        self, after: int = 0, limit: int | None = None, *, max_age_ms: int = 0
    ) -> AsyncIterator[Entry]:
        """Yield the valid entries, in the order of their ids: `async for entry in log.read()`.

        Args:
            after: id; entries with higher ids only.
            limit: most entries; None: no limit.
            max_age_ms: largest age of the state, which any replica may give then; 0: linearizable.

        Raises:
            LogGone: the log was deleted.
        """
        check_age("max_age_ms", max_age_ms)
        check_limit(limit)
        self._session.core()
        if limit != 0:
            pages = self._log.entry_pages(id_of("after", after), limit or 0, max_age_ms=max_age_ms)
            async for entry in items_of(pages):
                yield entry

    def tail(self, after: int = 0, *, timeout: float | None = None) -> AsyncFollowing[Event]:
        """Return an async iterator over what changes in the log; its events are those of `nyala.Log.tail`.

        Args:
            after: id; the reader has seen everything up to it. 0: it begins with all valid entries.
            timeout: seconds without an event after which it ends; None: it waits without end.
        """
        pages = self._core.tail(self._log, id_of("after", after))
        return AsyncFollowing(self._session, pages, timeout)

    def __repr__(self) -> str:
        return f"<nyala.aio.AsyncLog {self.name!r} of journal {self._log.journal.name!r}>"
