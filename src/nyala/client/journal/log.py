"""Log: handle of one log of a journal. Methods may be called from any thread and block."""

from collections.abc import Iterable, Iterator
from typing import Any

from nyala.client.checks import check_age
from nyala.client.connection import Connection
from nyala.client.journal.builder import StepBuilder, id_of
from nyala.client.journal.core import JournalCore
from nyala.client.journal.following import Following
from nyala.client.journal.items import Entry, Event
from nyala.client.journal.pages import LogReader, check_limit


class Log:
    """A log of a journal. Made by `Journal.log`; the log need not exist yet.

    Reads are of the log that the handle finds first: if it is deleted, they raise LogGone, even if another
    log has its name by then. Changes go by name.
    """

    def __init__(
        self, connection: Connection, core: JournalCore, log: LogReader, step: Any
    ) -> None:
        self._connection = connection
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

    def append(
        self, data: Any, expected: int | None = None, invalidates: Iterable[int] = ()
    ) -> int:
        """Append an entry; return its id when it is durable on a majority of the replicas.

        Args:
            data: bytes, at most 1 MiB.
            expected: last id of the log, for a step that takes effect only if nothing came since; 0: there is
                no such log.
            invalidates: ids of entries that become invalid in the same step.

        Raises:
            ConditionFailed: `last` is the log's last id; nothing took effect.
            JournalFull: nothing took effect.
            OutcomeUnknown: it may have been appended; the same call with the same `expected` settles it.
        """
        step = self._begin(expected)
        step.append(self, data, invalidates)
        return step.send().ids[0]

    def invalidate(self, ids: Iterable[int], expected: int | None = None) -> int:
        """Make entries invalid; return the id of the change, which is the log's last id then.

        Args:
            ids: ids of entries; those that are not valid are ignored.
            expected: as for `append`.

        Returns:
            0 if there is no such log.

        Raises:
            ConditionFailed, OutcomeUnknown: as `append`.
        """
        step = self._begin(expected)
        step.invalidate(self, ids)
        return step.send().ids[0]

    def delete(self, expected: int | None = None) -> int:
        """Delete the log with all of its entries; return the id of the change, 0 if there is no such log.

        Readers get LogGone, those of this handle too. An append creates another log.

        Raises:
            ConditionFailed, OutcomeUnknown: as `append`.
        """
        step = self._begin(expected)
        step.delete_log(self)
        deleted = step.send().ids[0]
        self._log.found(deleted)  # no log has this id: a handle that had read nothing reads nothing
        return deleted

    def _begin(self, expected: int | None) -> StepBuilder:
        step: StepBuilder = self._step()
        if expected is not None:
            step.require(self, last=expected)
        return step

    def last_id(self, *, max_age_ms: int = 0) -> int:
        """Return the id of the log's last change, also of a bare invalidation; 0: there is no such log.

        Args:
            max_age_ms: as for `read`.
        """
        check_age("max_age_ms", max_age_ms)
        return self._connection.run(self._log.last_id(max_age_ms))

    def read(
        self, after: int = 0, limit: int | None = None, *, max_age_ms: int = 0
    ) -> Iterator[Entry]:
        """Return an iterator over the valid entries, in the order of their ids, fetched in pages.

        Each page is of one state; entries that become invalid between two pages are left out of the later
        one. It ends with the last entry as of the first page.

        Args:
            after: id; entries with higher ids only.
            limit: most entries; None: no limit.
            max_age_ms: largest age of the state, which any replica may give then, and which includes all
                that this client has seen; 0: linearizable.

        Raises:
            LogGone: the log was deleted.
        """
        check_age("max_age_ms", max_age_ms)
        check_limit(limit)
        after = id_of("after", after)
        if limit == 0:
            return iter(())
        pages = self._log.entry_pages(after, limit or 0, max_age_ms=max_age_ms)
        return self._connection.iterate_pages(pages)

    def tail(self, after: int = 0, *, timeout: float | None = None) -> Following[Event]:
        """Return an iterator over what changes in the log, in the order of the ids.

        It ends when it is closed, which any thread may do, and never by itself without a `timeout`.

        `Entry`: a valid entry. `Invalidated`: entries became invalid, by the change with its `id`; after an
        entry with the same id, if an append did it. `Rebased`: the changes since are not all known any more;
        the reader drops what it holds, all valid entries follow. It goes on through leader changes and
        restarts.

        Args:
            after: id; the reader has seen everything up to it. 0: it holds nothing, and begins with all valid
                entries.
            timeout: seconds without an event after which it ends; None: it waits without end.

        Raises:
            LogGone: the log was deleted.
            TimedOut: no replica answered within `timeout_ms`; go on after the last id.
        """
        pages = self._core.tail(self._log, id_of("after", after))
        return Following(self._connection, pages, timeout)

    def __repr__(self) -> str:
        return f"<nyala.Log {self.name!r} of journal {self._log.journal.name!r}>"
