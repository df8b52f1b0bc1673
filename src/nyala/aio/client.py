"""AsyncClient: the public, asynchronous API of a cluster."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Unpack

import pyarrow as pa

from nyala.aio.journals.journal import AsyncJournal
from nyala.aio.session import Session
from nyala.aio.sql import SqlRunner
from nyala.aio.table import AsyncTable
from nyala.aio.transaction import AsyncTransaction
from nyala.client.calls.connecting import Chosen, client_options, with_arguments_of
from nyala.client.calls.definitions import DEFAULT_REPLICAS, TableArguments, table_definition
from nyala.client.calls.opening import OpenClient
from nyala.client.checks import OtherNames, check_age, check_reserve, check_text
from nyala.client.cluster.descriptions import Server, TableFacts
from nyala.client.journal.core import DEFAULT_JOURNAL_BYTES, JournalCore, check_journal
from nyala.client.sql.parameters import Parameters
from nyala.client.sql.query import ClusterTables, run_sql
from nyala.client.transactions.coordination import find_key
from nyala.client.transactions.keys import CommittedKey, TransactionOptions, options_of
from nyala.common.partition_spec import Partition
from nyala.env.loop_thread import check_not_forked
from nyala.env.monotonic import monotonic_us


@with_arguments_of(client_options)
async def connect(choose: Callable[[], Chosen]) -> "AsyncClient":
    """Connect to a cluster, on the event loop of the caller, on which alone the client is used.

    It raises `Unavailable` if no master answers.
    """
    began = monotonic_us()
    check_not_forked()
    opened = OpenClient(*await asyncio.to_thread(choose))  # it may log in
    try:
        await opened.reach(began)
    except BaseException:  # also when cancelled
        await opened.close()
        raise
    return AsyncClient(Session(opened))


class AsyncClient(OtherNames):
    """A connection to a cluster, used on the event loop that made it. An async context manager.

    Coroutines of that loop may call it at the same time; their small writes and look-ups share requests. A
    call may be cancelled at any time, and the client stays usable.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<nyala.aio client of {self.masters}{' (closed)' if self._session.closed else ''}>"

    async def close(self) -> None:
        """Disconnect, and wait until connections and tasks have ended; a second call does nothing."""
        await self._session.close()

    @property
    def masters(self) -> str:
        """Addresses of all masters known, as `connect` takes them."""
        return ",".join(self._session.known.masters.known)

    async def create_table(
        self,
        name: str,
        schema: Any,
        primary_key: Sequence[str],
        partition: Partition | None = None,
        replicas: int = DEFAULT_REPLICAS,
        **options: Unpack[TableArguments],
    ) -> AsyncTable:
        """Create a table and return it when all its tablets run; raises as `nyala.Client.create_table`.

        Args:
            name: unique among the tables.
            schema: an Arrow schema, or data whose columns the table gets.
            primary_key: names of the key columns, in order.
            partition: hash levels and ranges; None: one tablet.
            replicas: replicas of each tablet.
            **options: as for `nyala.Client.create_table`.
        """
        made = table_definition(name, schema, primary_key, partition, replicas, **options)
        core = self._session.core()
        opened = await core.caller.change(made.create(core))
        return AsyncTable(self._session, opened, made.choices)

    async def open_table(self, name: str) -> AsyncTable:
        """Open a table.

        Raises:
            NotFound: no such table; the message names those there are.
        """
        check_text("name", name)
        return AsyncTable(self._session, await self._session.core().open_table(name))

    async def table(self, name: str) -> AsyncTable:
        """Open a table: the name of `open_table` in the synchronous client."""
        return await self.open_table(name)

    async def tables(self, *, max_age_ms: int = 0) -> list[str]:
        """Return the names of all tables, sorted; `max_age_ms` as for `nyala.Client.tables`."""
        check_age("max_age_ms", max_age_ms)
        return [t.name for t in await self._session.core().tables(max_age_ms=max_age_ms)]

    async def drop_table(
        self, name: str, *, reserve_seconds: int = 0, missing_ok: bool = False
    ) -> None:
        """Drop a table and its data; the name is free on return.

        Args:
            name: name of the table.
            reserve_seconds: time in which `recall_table` can restore it; 0: the data are deleted at once.
            missing_ok: do nothing if there is no such table.

        Raises:
            NotFound: no such table, unless `missing_ok`.
        """
        check_text("name", name)
        check_reserve(reserve_seconds)
        core = self._session.core()
        await core.caller.change(core.ddl.drop_table(name, reserve_seconds, missing_ok=missing_ok))

    async def recall_table(self, table_id: str, new_name: str | None = None) -> AsyncTable:
        """Restore a table that was dropped with `reserve_seconds`; see `nyala.Client.recall_table`."""
        check_text("table_id", table_id)
        check_text("new_name", new_name or "")
        core = self._session.core()
        opened = await core.caller.change(core.ddl.recall_table(table_id, new_name or ""))
        return AsyncTable(self._session, opened)

    async def dropped_tables(self) -> dict[str, str]:
        """Return the tables that can be recalled: the name that each had, by id."""
        return {t.id: t.name for t in await self._session.core().tables(dropped=True)}

    async def describe(self, name: str, *, max_age_ms: int = 0) -> TableFacts:
        """Return the facts of a table besides its columns; `max_age_ms` as for `tables`.

        Raises:
            NotFound: no such table.
        """
        check_text("name", name)
        check_age("max_age_ms", max_age_ms)
        found = await self._session.core().describe(name, max_age_ms=max_age_ms)
        return TableFacts.from_proto(found)

    async def servers(self, *, max_age_ms: int = 0) -> list[Server]:
        """Return all masters and tablet servers; `max_age_ms` as for `tables`."""
        check_age("max_age_ms", max_age_ms)
        answer = await self._session.core().servers(max_age_ms=max_age_ms)
        return [Server.from_proto(s) for s in answer.servers]

    @property
    def _journals(self) -> JournalCore:  # it has no state of its own
        return JournalCore(self._session.core())

    async def create_journal(
        self,
        name: str,
        replicas: int = DEFAULT_REPLICAS,
        journal_bytes: int = DEFAULT_JOURNAL_BYTES,
        *,
        exist_ok: bool = False,
    ) -> AsyncJournal:
        """Create a journal and return it when it runs; raises as `nyala.Client.create_journal`.

        Args:
            name: unique among tables and journals.
            replicas: odd, at most the number of live tablet servers.
            journal_bytes: most bytes of its valid entries and keys, which every replica has in memory.
            exist_ok: a journal of this name is returned as it is, also if its replicas or bytes are others.
        """
        check_journal(name, replicas, journal_bytes)
        core = self._journals
        made = core.create(name, replicas, journal_bytes, exist_ok)
        opened = await self._session.core().caller.change(made)
        return AsyncJournal(self._session, core, opened)

    async def open_journal(self, name: str) -> AsyncJournal:
        """Open a journal.

        Raises:
            NotFound: no such journal; the message names those there are.
            InvalidArgument: it is a table.
        """
        check_text("name", name)
        core = self._journals
        return AsyncJournal(self._session, core, await core.open(name))

    async def journal(self, name: str) -> AsyncJournal:
        """Open a journal: the name of `open_journal` in the synchronous client."""
        return await self.open_journal(name)

    async def journals(self, *, max_age_ms: int = 0) -> list[str]:
        """Return the names of all journals, sorted; `max_age_ms` as for `tables`."""
        check_age("max_age_ms", max_age_ms)
        return [j.name for j in await self._journals.summaries(max_age_ms=max_age_ms)]

    async def drop_journal(self, name: str, reserve_seconds: int = 0) -> None:
        """Drop a journal with its logs and keys; raises as `nyala.Client.drop_journal`.

        Args:
            name: of the journal.
            reserve_seconds: time in which `recall_journal` can restore it; 0: it is deleted at once.
        """
        check_text("name", name)
        check_reserve(reserve_seconds)
        work = self._journals.drop(name, reserve_seconds)
        await self._session.core().caller.change(work)

    async def recall_journal(self, journal_id: str, new_name: str | None = None) -> AsyncJournal:
        """Restore a journal that was dropped with `reserve_seconds`; see `nyala.Client.recall_journal`."""
        check_text("journal_id", journal_id)
        check_text("new_name", new_name or "")
        core = self._journals
        work = core.recall(journal_id, new_name or "")
        return AsyncJournal(self._session, core, await self._session.core().caller.change(work))

    async def dropped_journals(self) -> dict[str, str]:
        """Return the journals that can be recalled: the name that each had, by id."""
        return {j.id: j.name for j in await self._journals.summaries(dropped=True)}

    def transaction(self, **options: Unpack[TransactionOptions]) -> AsyncTransaction:
        """Return a transaction, which begins as its `async with` is entered.

        Args:
            **options: as for `nyala.Client.transaction`.

        Raises:
            InvalidArgument: an unknown option, or a wrong value.
        """
        return AsyncTransaction(self._session, options_of(options))

    async def find_key(self, name: str) -> CommittedKey | None:
        """Return the last commit under a key: of the job with this id, or of the stream with this name.

        Raises:
            Forbidden: the key belongs to another user.
        """
        check_text("name", name)
        return await find_key(self._session.core(), name)

    async def sql(
        self, query: str, parameters: Parameters = None, *, at: int | datetime | None = None
    ) -> pa.Table:
        """Run a SQL query (DuckDB) in a thread; its reads run on the loop. Raises as `nyala.Client.sql`.

        If it is cancelled its reads end, and what DuckDB does with rows that it has ends in its thread.

        Args:
            query: one query.
            parameters: values for `?`, `$1` or `$name`.
            at: snapshot; None: now.
        """
        check_text("query", query)
        runner = SqlRunner(self._session.core())
        try:
            return await asyncio.to_thread(run_sql, query, ClusterTables(runner), parameters, at)
        finally:
            runner.end()

    async def now(self) -> int:
        """Return the current hybrid time: every write acknowledged before this call lies at or below."""
        return await self._session.core().now()
