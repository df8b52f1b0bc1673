"""Client: the public, synchronous API of a cluster."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

import pyarrow as pa

from nyala.client.calls.connecting import Chosen, client_options, with_arguments_of
from nyala.client.calls.definitions import DEFAULT_REPLICAS, table_definition
from nyala.client.checks import (
    OtherNames,
    check_age,
    check_reserve,
    check_text,
)
from nyala.client.cluster.descriptions import Server, TableFacts
from nyala.client.connection import Connection
from nyala.client.journal.core import DEFAULT_JOURNAL_BYTES, JournalCore, check_journal
from nyala.client.journal.journal import Journal
from nyala.client.sql.parameters import Parameters
from nyala.client.sql.query import ClusterTables, run_sql
from nyala.client.table import Table
from nyala.client.transactions.coordination import find_key
from nyala.client.transactions.keys import (
    CommittedKey,
    TransactionOptions,
    TransactionToken,
    id_of,
    options_of,
)
from nyala.client.transactions.staged_parts import StagedParts
from nyala.client.transactions.transaction import Transaction, TransactionPart
from nyala.client.write.staging import PartStage
from nyala.common.casting import Requested
from nyala.common.partition_spec import Partition


@with_arguments_of(client_options)
def connect(choose: Callable[[], Chosen]) -> "Client":
    """Connect to a cluster; raises `Unavailable` if no master answers."""
    return Client(Connection(*choose()))


class Client(OtherNames):
    """A connection to a cluster. A context manager; may be used from any thread, not after a fork."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _journals(self) -> JournalCore:  # it has no state of its own
        return JournalCore(self._connection.core)

    def __repr__(self) -> str:
        return f"<nyala.Client of {self.masters}{' (closed)' if self._connection.closed else ''}>"

    def close(self) -> None:
        """Disconnect; a second call does nothing."""
        self._connection.close()

    @property
    def masters(self) -> str:
        """Addresses of all masters known, as `connect` takes them."""
        return ",".join(self._connection.core.masters.known)

    def create_table(
        self,
        name: str,
        schema: Any,
        primary_key: Sequence[str],
        partition: Partition | None = None,
        replicas: int = DEFAULT_REPLICAS,
        *,
        defaults: Mapping[str, Any] | None = None,
        immutable: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        comment: str = "",
        index: bool = False,
        exist_ok: bool = False,
        **conversion: Unpack[Requested],
    ) -> Table:
        """Create a table and return it when all its tablets run.

        Args:
            name: unique among the tables.
            schema: an Arrow schema; or data as for `Table.upsert`, but no generator, whose columns the table
                gets (no rows are written): unsigned integers become wider signed ones, times become
                microseconds, naive or in UTC. `repr` of the table shows what was chosen. Key columns become
                not nullable.
            primary_key: names of the key columns, in order; any type but bool, float and double.
            partition: hash levels and ranges over key columns; None: one tablet.
            replicas: replicas of each tablet; odd, at most the number of live tablet servers.
            defaults: value per column for new rows that do not give it.
            immutable: columns that only the first write of a row sets.
            options: table options, for instance {"history_max_age_s": 3600, "max_bytes": 10**10}.
            comment: shown by `nyala table describe`.
            index: all levels of a pandas index become columns; otherwise only those that `primary_key` names.
            exist_ok: a table of this name that has the same key and all these columns, of the same types, is
                returned as it is when its tablets run, also if its partition, options or defaults are others.
            **conversion: `nan_is_null` and `round_decimals`, as for `Table.upsert`; with `round_decimals`
                columns of decimals become double.

        Raises:
            AlreadyPresent: the name is taken; with `exist_ok`: by a table with another key or other columns.
            InvalidArgument: a wrong definition, or more replicas than tablet servers.
            SchemaMismatch: the data have a value that the column cannot represent exactly.
            NotReady: it was created, or existed, but not all its tablets run.
            OutcomeUnknown: it may have been created, or may still be.
            TimedOut: no master answered; nothing was created.
        """
        made = table_definition(
            name, schema, primary_key, partition, replicas, defaults=defaults, immutable=immutable,
            options=options, comment=comment, index=index, exist_ok=exist_ok, **conversion,
        )  # fmt: skip
        opened = self._connection.change(made.create(self._connection.core))
        return Table(self._connection, opened, made.choices)

    def table(self, name: str) -> Table:
        """Open a table.

        Raises:
            NotFound: no such table; the message names those there are.
        """
        check_text("name", name)
        return Table(self._connection, self._connection.run(self._connection.core.open_table(name)))

    def tables(self, *, max_age_ms: int = 0) -> list[str]:
        """Return the names of all tables, sorted.

        Args:
            max_age_ms: largest age of the answer, which any master may give then; 0: the leader's present
                state.
        """
        check_age("max_age_ms", max_age_ms)
        core = self._connection.core
        return [t.name for t in self._connection.run(core.tables(max_age_ms=max_age_ms))]

    def drop_table(self, name: str, *, reserve_seconds: int = 0, missing_ok: bool = False) -> None:
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
        ddl = self._connection.core.ddl
        self._connection.change(ddl.drop_table(name, reserve_seconds, missing_ok=missing_ok))

    def recall_table(self, table_id: str, new_name: str | None = None) -> Table:
        """Restore a table that was dropped with `reserve_seconds`, with all its rows.

        Args:
            table_id: id of the table; `dropped_tables` lists them.
            new_name: None: the name that it had.

        Raises:
            NotFound: no dropped table has this id, or its time has expired.
            AlreadyPresent: another table has the name; give a new one.
        """
        check_text("table_id", table_id)
        check_text("new_name", new_name or "")
        core = self._connection.core
        opened = self._connection.change(core.ddl.recall_table(table_id, new_name or ""))
        return Table(self._connection, opened)

    def dropped_tables(self) -> dict[str, str]:
        """Return the tables that can be recalled: the name that each had, by id."""
        found = self._connection.run(self._connection.core.tables(dropped=True))
        return {t.id: t.name for t in found}

    def create_journal(
        self,
        name: str,
        replicas: int = DEFAULT_REPLICAS,
        journal_bytes: int = DEFAULT_JOURNAL_BYTES,
        *,
        exist_ok: bool = False,
    ) -> Journal:
        """Create a journal and return it when it runs.

        Args:
            name: unique among tables and journals.
            replicas: odd, at most the number of live tablet servers.
            journal_bytes: most bytes of its valid entries and keys, which every replica has in memory.
            exist_ok: a journal of this name is returned as it is, also if its replicas or bytes are others.

        Raises:
            AlreadyPresent: the name is taken; with `exist_ok`: by a table.
            InvalidArgument, NotReady, OutcomeUnknown, TimedOut: as `create_table`.
        """
        check_journal(name, replicas, journal_bytes)
        made = self._journals.create(name, replicas, journal_bytes, exist_ok)
        opened = self._connection.change(made)
        return Journal(self._connection, self._journals, opened)

    def journal(self, name: str) -> Journal:
        """Open a journal.

        Raises:
            NotFound: no such journal; the message names those there are.
            InvalidArgument: it is a table.
        """
        check_text("name", name)
        opened = self._connection.run(self._journals.open(name))
        return Journal(self._connection, self._journals, opened)

    def journals(self, *, max_age_ms: int = 0) -> list[str]:
        """Return the names of all journals, sorted; `max_age_ms` as for `tables`."""
        check_age("max_age_ms", max_age_ms)
        found = self._connection.run(self._journals.summaries(max_age_ms=max_age_ms))
        return [j.name for j in found]

    def drop_journal(self, name: str, reserve_seconds: int = 0) -> None:
        """Drop a journal with its logs and keys; the name is free on return.

        Args:
            name: of the journal.
            reserve_seconds: time in which `recall_journal` can restore it; 0: it is deleted at once.

        Raises:
            NotFound: no such journal.
            InvalidArgument: it is a table.
        """
        check_text("name", name)
        check_reserve(reserve_seconds)
        self._connection.change(self._journals.drop(name, reserve_seconds))

    def recall_journal(self, journal_id: str, new_name: str | None = None) -> Journal:
        """Restore a journal that was dropped with `reserve_seconds`.

        Args:
            journal_id: of the journal; `dropped_journals` lists them.
            new_name: None: the name that it had.

        Raises:
            NotFound: no dropped journal has this id, or its time has expired.
            AlreadyPresent: the name is taken; give a new one.
        """
        check_text("journal_id", journal_id)
        check_text("new_name", new_name or "")
        opened = self._connection.change(self._journals.recall(journal_id, new_name or ""))
        return Journal(self._connection, self._journals, opened)

    def dropped_journals(self) -> dict[str, str]:
        """Return the journals that can be recalled: the name that each had, by id."""
        found = self._connection.run(self._journals.summaries(dropped=True))
        return {j.id: j.name for j in found}

    def describe(self, name: str, *, max_age_ms: int = 0) -> TableFacts:
        """Return the facts of a table besides its columns; `max_age_ms` as for `tables`.

        Raises:
            NotFound: no such table.
        """
        check_text("name", name)
        check_age("max_age_ms", max_age_ms)
        found = self._connection.run(self._connection.core.describe(name, max_age_ms=max_age_ms))
        return TableFacts.from_proto(found)

    def servers(self, *, max_age_ms: int = 0) -> list[Server]:
        """Return all masters and tablet servers; `max_age_ms` as for `tables`."""
        check_age("max_age_ms", max_age_ms)
        answer = self._connection.run(self._connection.core.servers(max_age_ms=max_age_ms))
        return [Server.from_proto(s) for s in answer.servers]

    def now(self) -> int:
        """Return the current hybrid time: every write acknowledged before this call lies at or below."""
        return self._connection.run(self._connection.core.now())

    def transaction(self, **options: Unpack[TransactionOptions]) -> Transaction:
        """Begin a transaction: rows of any tables that become visible at one time, or never.

        Args:
            **options: `timeout_s`: the longest time for which it stays open, one hour if not given. `key`: it
                takes effect once: the id of a job, or a `StreamKey`.

        Returns:
            The transaction: use it in a `with`, and pass it as `txn=` to writes.

        Raises:
            InvalidArgument: an unknown option, or a wrong value.
            Forbidden: some server of the cluster has no transactions.
            TimedOut: no master led in time.
        """
        given = options_of(options)
        core = self._connection.core

        async def begin() -> StagedParts:
            parts = StagedParts(core, key=given.key)
            await parts.begin(given.timeout_s)
            return parts

        return Transaction(self._connection, self._connection.run(begin()), given.key is not None)

    def transaction_part(self, token: TransactionToken, name: str) -> TransactionPart:
        """Return a part of a transaction of another process, into which this one stages rows.

        Args:
            token: what `Transaction.token` returned there.
            name: of the part, another one for each attempt of a task.

        Raises:
            InvalidArgument: the token or the name is wrong.
        """
        transaction = id_of(token)
        core = self._connection.core

        async def make() -> PartStage:
            return StagedParts(core, transaction).part(name)

        return TransactionPart(self._connection, self._connection.run(make()), transaction)

    def resume_transaction(
        self, token: TransactionToken, *tables: Table, **options: Unpack[TransactionOptions]
    ) -> Transaction:
        """Return a transaction that another process has begun, to stage parts, to commit or to abort it.

        The process that began it need not exist any more. Only one of them should commit it; a second
        commit of the same parts returns the outcome of the first.

        Args:
            token: what `Transaction.token` returned there.
            *tables: as of `Transaction.token`; of their ranges those that the handles know.
            **options: as of `transaction`; the key has to be given again.

        Raises:
            InvalidArgument: a wrong token or option.
            Forbidden: some server of the cluster has no transactions.
            TimedOut: no master led in time.
        """
        given, transaction = options_of(options), id_of(token)
        core = self._connection.core

        async def begin() -> StagedParts:
            parts = StagedParts(core, transaction, given.key)
            for table in tables:
                parts.keep_all(table.known)
            await parts.begin(given.timeout_s)
            return parts

        parts = self._connection.run(begin())
        return Transaction(self._connection, parts, given.key is not None, resumed=True)

    def find_key(self, name: str) -> CommittedKey | None:
        """Return the last commit under a key: of the job with this id, or of the stream with this name.

        Raises:
            Forbidden: the key belongs to another user.
            TimedOut: no master led in time.
        """
        check_text("name", name)
        return self._connection.run(find_key(self._connection.core, name))

    def sql(
        self, query: str, parameters: Parameters = None, *, at: int | datetime | None = None
    ) -> pa.Table:
        """Run a SQL query (DuckDB) over tables of this cluster; they are read at one snapshot.

        Only the columns and rows that the query can use are fetched, each table as its first scan begins.

        Args:
            query: one query; `?`, `$1` and `$name` stand for values.
            parameters: these values, a list, or a dict by name.
            at: snapshot, a hybrid time or an aware datetime, with the columns that the tables had then;
                None: one moment that includes every write acknowledged before.

        Raises:
            NotFound: a table that does not exist.
            InvalidArgument: DuckDB's own message on a wrong query, a statement that is no query or reads
                files, or names of tables or columns that differ in case only.
            HistoryGone: rows or columns at `at` are not kept any more.
        """
        check_text("query", query)
        return run_sql(query, ClusterTables(self._connection), parameters, at)
