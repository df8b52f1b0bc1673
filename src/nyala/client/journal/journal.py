"""Journal: handle of an open journal. Methods may be called from any thread and block."""

from collections.abc import Iterator
from typing import Any

from nyala.client.checks import check_age
from nyala.client.cluster.tablet_cache import TabletLocation
from nyala.client.connection import Connection
from nyala.client.journal.builder import StepBuilder, id_of, text_of
from nyala.client.journal.core import JournalCore
from nyala.client.journal.coroutines import JournalHandle
from nyala.client.journal.delivery import StepOutcome
from nyala.client.journal.following import Following
from nyala.client.journal.items import Key, KeyEvent, LogSummary
from nyala.client.journal.locations import OpenJournal
from nyala.client.journal.log import Log
from nyala.client.journal.pages import key_pages, read_key, read_logs
from nyala.wire.proto import journal_pb2 as pb

_Conditions = list[pb.JournalCondition]  # outside of the class, which has a method `list`
_Changes = list[pb.JournalChange]
_Logs = list[LogSummary]


class Journal(JournalHandle):
    """An open journal: named logs, and keys with versions. Made by `Client.journal` and `create_journal`."""

    kind = "nyala.Journal"

    def __init__(self, connection: Connection, core: JournalCore, journal: OpenJournal) -> None:
        self._connection = connection  # first, as it is what refuses to be pickled
        super().__init__(core, journal)

    @property
    def connection(self) -> Connection:
        """Connection of the client, for recipes: it runs coroutines."""
        return self._connection

    def location(self) -> TabletLocation:
        """Return the journal's tablet and its replicas, read from the masters."""
        self._connection.run(self._core.locations.refresh(self._journal))
        return self._journal.tablet

    def log(self, name: str) -> Log:
        """Return a handle of a log, which need not exist yet; nothing is sent."""
        reader = self._core.log(self._journal, text_of("log", name))
        return Log(self._connection, self._core, reader, self.atomically)

    def logs(self, *, max_age_ms: int = 0) -> _Logs:
        """Return the logs, by name.

        Args:
            max_age_ms: largest age of the state, which any replica may give then, and which includes all
                that this client has seen; 0: linearizable.
        """
        check_age("max_age_ms", max_age_ms)
        return self._connection.run(read_logs(self._core.reads, self._journal, max_age_ms))

    def atomically(self) -> StepBuilder:
        """Return a step, to be used in a `with`: conditions and changes that take effect together, or not.

        It is sent at the end of the block, which raises ConditionFailed if a condition did not hold,
        JournalFull, or OutcomeUnknown. Its `ids` are there after the block.
        """
        return StepBuilder(self._send, self._journal.id)

    def _send(self, conditions: _Conditions, changes: _Changes) -> StepOutcome:
        return self._connection.change(self._core.step(self._journal, conditions, changes))

    def get(self, key: str, *, max_age_ms: int = 0) -> Key | None:
        """Return a key with its value and version, or None if there is none.

        Args:
            key: its name.
            max_age_ms: as for `logs`.
        """
        check_age("max_age_ms", max_age_ms)
        return self._connection.run(
            read_key(self._core.reads, self._journal, text_of("key", key), max_age_ms)
        )

    def set(self, key: str, value: Any, expected_version: int | None = None) -> int:
        """Give a key a value; return its version, when it is durable on a majority of the replicas.

        Args:
            key: at most 1 KiB of UTF-8.
            value: bytes, at most 256 KiB.
            expected_version: the version that the key must have; 0: there must be no such key.

        Raises:
            ConditionFailed: `last` is the key's version; nothing took effect.
            JournalFull: nothing took effect.
            OutcomeUnknown: it may have been set; the same call with the same `expected_version` settles it.
        """
        step = self._begin(key, expected_version)
        step.set(key, value)
        return step.send().ids[0]

    def delete(self, key: str, expected_version: int | None = None) -> int:
        """Delete a key; return the id of the change, 0 if there is no such key.

        Raises:
            ConditionFailed, OutcomeUnknown: as `set`.
        """
        step = self._begin(key, expected_version)
        step.delete(key)
        return step.send().ids[0]

    def _begin(self, key: str, expected_version: int | None) -> StepBuilder:
        step = self.atomically()
        if expected_version is not None:
            step.require(key=key, version=expected_version)
        return step

    def list(self, prefix: str = "", *, max_age_ms: int = 0) -> Iterator[Key]:
        """Return an iterator over the keys with a prefix, in order, fetched in pages of one state each.

        Args:
            prefix: prefix of the keys; empty: all.
            max_age_ms: as for `logs`.
        """
        check_age("max_age_ms", max_age_ms)
        return self._connection.iterate_pages(
            key_pages(self._core.reads, self._journal, text_of("prefix", prefix), max_age_ms)
        )

    def watch(
        self, prefix: str = "", after: int = 0, *, timeout: float | None = None
    ) -> Following[KeyEvent]:
        """Return an iterator over the changes of keys, in the order of their versions.

        It ends when it is closed, which any thread may do, and never by itself without a `timeout`.

        A `Key` whose value is None was deleted. Of several changes of a key between two answers, the last
        is told. `Synced`, once after the keys that come first: all have been reported, as of its `through`.
        `Rebased`: the reader drops what it holds; all keys follow and another `Synced`, then what changes
        later.

        Args:
            prefix: prefix of the keys; empty: all.
            after: id; the reader has seen everything up to it. 0: it holds nothing, and begins with all keys.
            timeout: seconds without an event after which it ends; None: it waits without end.

        Raises:
            TimedOut: no replica answered within `timeout_ms`; go on after the last version.
        """
        pages = self._core.watch(self._journal, text_of("prefix", prefix), id_of("after", after))
        return Following(self._connection, pages, timeout)
