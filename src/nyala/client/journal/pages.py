"""Iterators over the pages of logs, keys and names of logs."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from nyala.client.checks import is_int
from nyala.client.journal.items import Entry, Key, LogSummary
from nyala.client.journal.locations import OpenJournal
from nyala.client.journal.reads import JournalReads
from nyala.common.errors import InvalidArgument
from nyala.wire.proto import journal_pb2 as pb

T = TypeVar("T")
Read = Callable[[pb.JournalReadRequest], Awaitable[pb.JournalReadResponse]]
"""A read of one state of a journal."""
MAX_ID = (1 << 64) - 1
MAX_LIMIT = (1 << 32) - 1
"""Largest limit of one request; servers send fewer entries."""


class LogReader:
    """A log of an open journal: the one that it finds first, whatever is created under its name later.

    Args:
        reads: reads of the client.
        journal: journal of the log.
        name: name of the log.

    Attributes:
        created: id of the change that created the log; 0: it is not known yet, or there is no such log.
    """

    def __init__(self, reads: JournalReads, journal: OpenJournal, name: str) -> None:
        self._reads = reads
        self.journal = journal
        self.name = name
        self.created = 0

    def found(self, created: int) -> None:
        """Record which log has the name."""
        self.created = self.created or created

    async def page(self, after: int, through: int, limit: int, max_age_ms: int = 0) -> pb.LogPage:
        """Read one page of valid entries.

        Args:
            after: id; entries with higher ids only.
            through: id; entries with ids up to it; 0: all.
            limit: maximum number of entries; 0: as many as fit.
            max_age_ms: see `JournalReads.read`.

        Raises:
            LogGone: the log was deleted.
        """
        wanted = pb.ReadLog(
            log=self.name, created=self.created, after=after, through=through, limit=limit
        )
        response = await self._reads.read(
            self.journal, pb.JournalReadRequest(log=wanted), max_age_ms=max_age_ms
        )
        self.found(response.log.created)
        return response.log

    async def last_id(self, max_age_ms: int = 0) -> int:
        """Return the id of the log's last change; 0: there is no such log."""
        return (await self.page(MAX_ID, 0, 1, max_age_ms)).last

    async def entry_pages(
        self, after: int = 0, limit: int = 0, *, through: int = 0, max_age_ms: int = 0
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield pages of the valid entries, in the order of their ids, up to the last as of the first page.

        Args:
            after: id; entries with higher ids only.
            limit: maximum number of entries; 0: none.
            through: id; entries with ids up to it; 0: up to the last change as of the first page.
            max_age_ms: see `JournalReads.read`.

        Raises:
            LogGone: the log was deleted, perhaps between two pages.
        """
        left = limit
        while True:
            page = await self.page(after, through, min(left, MAX_LIMIT), max_age_ms)
            through = through or page.last
            if page.entries:
                yield [Entry(entry.id, entry.data) for entry in page.entries]
            if limit:
                left -= len(page.entries)
            if not page.more or (limit and left <= 0):
                return
            after = page.entries[-1].id


def check_limit(limit: Any) -> None:
    """Check a largest number of entries.

    Raises:
        InvalidArgument: it is no whole number, and not None.
    """
    if limit is not None and (not is_int(limit) or limit < 0):
        raise InvalidArgument(f"limit={limit!r}: a limit is a whole number, from 0 on, or None")


async def items_of(pages: AsyncGenerator[list[T], None]) -> AsyncIterator[T]:
    """Yield the items of pages, one by one."""
    async with aclosing(pages):
        async for page in pages:
            for item in page:
                yield item


async def read_key(
    reads: JournalReads, journal: OpenJournal, key: str, max_age_ms: int = 0
) -> Key | None:
    """Return a key, or None if there is none.

    Args:
        reads: reads of the client.
        journal: the journal.
        key: its name.
        max_age_ms: see `JournalReads.read`.
    """
    response = await reads.read(journal, pb.JournalReadRequest(key=key), max_age_ms=max_age_ms)
    found = [_key(k) for k in response.keys.keys]
    return found[0] if found else None


async def key_pages(
    reads: JournalReads, journal: OpenJournal, prefix: str, max_age_ms: int = 0
) -> AsyncGenerator[list[Key], None]:
    """Yield pages of the keys with a prefix, in order; each page is of one state.

    Args:
        reads: reads of the client.
        journal: the journal.
        prefix: prefix of the keys.
        max_age_ms: see `JournalReads.read`.
    """
    after = ""
    while True:
        wanted = pb.ListKeys(prefix=prefix, after=after)
        response = await reads.read(
            journal, pb.JournalReadRequest(keys=wanted), max_age_ms=max_age_ms
        )
        if response.keys.keys:
            yield [_key(key) for key in response.keys.keys]
        if not response.keys.more:
            return
        after = response.keys.keys[-1].key


async def read_logs(
    reads: JournalReads, journal: OpenJournal, max_age_ms: int = 0
) -> list[LogSummary]:
    """Return the logs, by name; each page is of one state.

    Args:
        reads: reads of the client.
        journal: the journal.
        max_age_ms: see `JournalReads.read`.
    """
    found: list[LogSummary] = []
    while True:
        wanted = pb.ListLogs(after=found[-1].name if found else "")
        response = await reads.read(
            journal, pb.JournalReadRequest(logs=wanted), max_age_ms=max_age_ms
        )
        found += [
            LogSummary(log.name, log.created, log.last, log.entries, log.bytes)
            for log in response.logs.logs
        ]
        if not response.logs.more:
            return found


async def content_pages(read: Read) -> AsyncGenerator[list[pb.LogContent], None]:
    """Yield pages of all logs, by name, with their valid entries; each page is of one state.

    A log whose entries are on several pages is on each of them.

    Args:
        read: reads one page.
    """
    log, after = "", 0
    while True:
        wanted = pb.ReadContent(log=log, after=after)
        page = (await read(pb.JournalReadRequest(content=wanted))).content
        if page.logs:
            yield list(page.logs)
        if not page.more:
            return
        last = page.logs[-1]
        log, after = last.log.name, last.entries[-1].id if last.entries else last.log.last


def _key(sent: pb.JournalKey) -> Key:
    return Key(sent.key, sent.value, sent.version)
