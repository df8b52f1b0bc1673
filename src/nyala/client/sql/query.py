"""SQL by DuckDB over tables of a cluster, all read at one snapshot.

Each table that a query names is registered with all its columns, so that queries have DuckDB's own meaning.
The session's time zone is UTC: no answer depends on the zone of the client's machine.
Rows are fetched when a scan begins (`source.py`): the columns that it reads, and the rows that pass its
filter (`filters.py`) and the conditions of the query (`conditions.py`) as far as servers can evaluate them.
duckdb is loaded on first use: importing nyala stays light.
"""

import json
import threading
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from nyala.client.calls.scanning import Scanning
from nyala.client.checks import check_text
from nyala.client.cluster.past_schemas import PastSchema
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.read.pandas_types import with_pandas_types
from nyala.client.read.read_spec import ReadSpec
from nyala.client.sql.conditions import conditions_of, folded, nodes_of
from nyala.client.sql.parameters import Parameters, values_of
from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.expressions.predicate import Predicate
from nyala.common.hybrid_time import as_stamp
from nyala.common.schema import Schema

T = TypeVar("T")
READS_ONLY = (
    "sql() takes one query that reads tables (select, with, values, show tables, describe); write rows with "
    "the table's own methods, define tables with create_table, and read files with duckdb itself"
)
PIVOT_NEEDS_VALUES = (
    "SQL: to DuckDB a PIVOT without its values is several statements, the first of which collects them, and "
    "sql() takes one query; list them: pivot t on c in ('a', 'b') using sum(v), or select * from t pivot "
    "(sum(v) for c in ('a', 'b')). select distinct c from t gives them"
)
FUNCTIONS = frozenset([
    "duckdb_functions", "duckdb_keywords", "duckdb_types", "generate_series", "icu_calendar_names",
    "json_each", "json_tree", "pg_timezone_names", "pragma_version", "range", "repeat", "repeat_row",
    "summary", "unnest",
])  # fmt: skip
"""Functions that give rows and touch neither files, memory by address, nor the engine's state."""


class Tables(Protocol):
    """The tables that queries may name."""

    def names(self) -> list[str]:
        """Return the names of all tables."""

    def open(self, name: str, at: int) -> Schema:
        """Return the columns of a table at a hybrid time, 0: now; raises NotFound."""

    def now(self) -> int:
        """Return a time at or above every acknowledged write."""

    def read(
        self, name: str, columns: tuple[str, ...], where: Predicate | None, at: int
    ) -> pa.Table:
        """Return the rows of a snapshot that pass.

        Args:
            name: name of the table.
            columns: names wanted.
            where: predicate; None: every row.
            at: hybrid time of the snapshot; 0: now, at each leader.
        """


class Runner(Protocol):
    """A client whose coroutines a thread can wait for: a `Connection`, for example."""

    @property
    def core(self) -> ClientCore:
        """The client."""
        ...

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the client and return its result; not on the client's loop."""
        ...


class ClusterTables:
    """The tables of a cluster.

    Args:
        runner: runs the client's coroutines.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._opened: dict[str, tuple[OpenTable, PastSchema]] = {}

    def names(self) -> list[str]:
        """See `Tables.names`."""
        core = self._runner.core
        listed = core.tables(max_age_ms=core.options.lookup_max_age_ms)
        return [t.name for t in self._runner.run(listed)]

    def open(self, name: str, at: int) -> Schema:
        """See `Tables.open`."""
        core = self._runner.core
        opened = self._runner.run(core.open_table(name))
        then = self._runner.run(core.past.at(opened, at)) if at else PastSchema(opened.schema)
        self._opened[name] = opened, then
        return then.schema

    def now(self) -> int:
        """See `Tables.now`."""
        return self._runner.run(self._runner.core.now())

    def read(
        self, name: str, columns: tuple[str, ...], where: Predicate | None, at: int
    ) -> pa.Table:
        """See `Tables.read`.

        Args:
            name: name of the table.
            columns: names wanted.
            where: predicate; None: every row.
            at: hybrid time of the snapshot; 0: now, at each leader.
        """
        opened, then = self._opened[name]
        spec = ReadSpec(columns=columns, where=where, at=at, schema=then.schema, past=then.dropped)
        scanning = Scanning(self._runner.core, opened, spec)
        return scanning.assembled(self._runner.run(scanning.collect()))


@dataclass(slots=True)
class _Snapshot:
    """The time at which a query reads: given, or fixed as its first scan begins.

    Attributes:
        tables: that are read.
        at: hybrid time; 0: not fixed yet.
        turn: held to fix it.
    """

    tables: Tables
    at: int
    turn: threading.Lock = field(default_factory=threading.Lock)

    def read(self, name: str, columns: tuple[str, ...], where: Predicate | None) -> pa.Table:
        with self.turn:
            self.at = self.at or self.tables.now()
        return self.tables.read(name, columns, where, self.at)


def run_sql(
    query: str,
    tables: Tables,
    parameters: Parameters = None,
    at: int | datetime | None = None,
) -> pa.Table:
    """Run one query over the tables that it names, all read at one snapshot; see `Client.sql`.

    Args:
        query: of DuckDB.
        tables: those that it may name.
        parameters: values for `?` and `$1`, or by name for `$name`.
        at: snapshot, with the columns that the tables had then; None: now.
    """
    import duckdb

    from nyala.client.sql.source import TableDataset

    check_text("query", query)
    stamp = 0 if at is None else max(1, as_stamp(at))  # 0 would mean now
    given = values_of(parameters)
    engine = duckdb.connect(":memory:", config={"enable_external_access": "false"})
    sources: list[TableDataset] = []
    try:
        engine.execute("set python_enable_replacements=false; set TimeZone='UTC'").fetchall()
        snapshot = _Snapshot(tables, stamp)
        named = _read(engine, query)
        schemas = {name: tables.open(name, stamp) for name in _chosen(named, tables, stamp)}
        for name, schema in schemas.items():
            if folded(name) in named.tables:  # otherwise only its name is used
                _check_columns(name, schema)
        aliases = _aliases(engine, named, schemas)
        conditions = conditions_of(named.tree, {folded(n): s for n, s in schemas.items()})
        for name, schema in schemas.items():
            where = conditions.get(folded(name))
            source = TableDataset(schema, partial(snapshot.read, name), where)
            sources.append(source)
            engine.register(aliases.get(name, name), source)
        engine.execute("set lock_configuration=true").fetchall()
        found = engine.sql(query, params=given).to_arrow_table()
        return with_pandas_types(_renamed(found, aliases))
    except duckdb.PermissionException as err:
        raise InvalidArgument(f"SQL: {err}; {READS_ONLY}") from err
    except Exception as err:  # of a read: DuckDB passes its text on, in one of several errors
        for source in sources:
            if source.failure is not None:
                raise source.failure from None
        if not isinstance(err, duckdb.Error):
            raise
        raise InvalidArgument(f"SQL: {err}; correct the query") from err
    finally:
        engine.close()


@dataclass(slots=True)
class _Named:
    """Names that a query refers to.

    Attributes:
        tables: names of tables and common table expressions: in lower case -> as first written.
        local: names of common table expressions, in lower case.
        every: the query lists all tables.
        tree: the query as `json_serialize_sql` gives it.
    """

    tables: dict[str, str] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)
    every: bool = False
    tree: Any = None


def _read(engine: Any, query: str) -> _Named:
    """Return the names in a query, in order of first appearance.

    Raises:
        InvalidArgument: not one SELECT, or one that is more than a query over tables.
        NotFound: a table of a schema.
    """
    parsed = json.loads(engine.execute("select json_serialize_sql(?)", [query]).fetchall()[0][0])
    if parsed.get("error"):
        text = str(parsed.get("error_message", "the text cannot be read"))
        if "Only SELECT" in text:
            raise InvalidArgument(PIVOT_NEEDS_VALUES if _pivots(engine, query) else READS_ONLY)
        raise InvalidArgument(f"SQL: {text}; correct the query")
    if len(parsed["statements"]) != 1:
        raise InvalidArgument(READS_ONLY)
    found = _Named(tree=parsed)
    for node in nodes_of(parsed):
        kind = node.get("type")
        if kind == "BASE_TABLE":
            if node.get("schema_name") or node.get("catalog_name"):
                raise NotFound(f"no schema {node['schema_name']!r}: tables are named alone")
            found.tables.setdefault(folded(node["table_name"]), node["table_name"])
        elif kind == "SHOW_REF":
            if node.get("show_type") == "SHOW_SPECIAL":
                found.every = True
            elif node.get("table_name"):
                found.tables.setdefault(folded(node["table_name"]), node["table_name"])
        elif kind == "TABLE_FUNCTION":
            _check_function(str(node.get("function", {}).get("function_name", "")))
        found.local.update(folded(e["key"]) for e in node.get("cte_map", {}).get("map", []))
    return found


def _pivots(engine: Any, query: str) -> bool:
    """Return whether a text is one statement that DuckDB parses as several."""
    import duckdb

    statements = engine.extract_statements(query)
    return len(statements) == 1 and statements[0].type == duckdb.StatementType.MULTI


def _check_function(name: str) -> None:
    if name not in FUNCTIONS:  # DuckDB's parser has folded it
        raise InvalidArgument(f"the function {name!r} cannot be read from here: {READS_ONLY}")


def _chosen(named: _Named, tables: Tables, at: int) -> list[str]:
    """Return the tables of the cluster that a query may read.

    A name of a common table expression may be that of a table too: one can read the other.

    Args:
        named: names in the query.
        tables: those that there are.
        at: hybrid time of the read; 0: now.

    Raises:
        NotFound: no such table.
        InvalidArgument: two tables have the name.
    """
    if not named.tables and not named.every:
        return []
    by_folded: dict[str, list[str]] = {}
    for name in tables.names():
        by_folded.setdefault(folded(name), []).append(name)
    wanted = list(by_folded) if named.every else list(named.tables)
    chosen = []
    for lower in wanted:
        same = by_folded.get(lower, [])
        if len(same) > 1 and lower not in named.local:
            raise InvalidArgument(
                f"{_and(same)} are tables whose names differ in case only, and SQL does not tell them apart; "
                "rename one: table.alter().rename(new_name).commit(), or read it with table.scan()"
            )
        if len(same) == 1:
            chosen.append(same[0])
        elif lower not in named.local:
            written = named.tables[lower]
            tables.open(written, at)  # raises, unless it was made just now
            chosen.append(written)
    return chosen


def _aliases(engine: Any, named: _Named, names: Iterable[str]) -> dict[str, str]:
    """Return other names for tables that a listing would read instead of DuckDB's own views."""
    if not named.every:
        return {}
    own = "select view_name from duckdb_views() where internal and schema_name = 'main'"
    views = {folded(view) for (view,) in engine.execute(own).fetchall()} - named.tables.keys()
    return {name: f"{name} " for name in names if folded(name) in views}


def _renamed(listing: pa.Table, aliases: dict[str, str]) -> pa.Table:
    """Return the result of a query with the names of tables in place of other names for them."""
    if not aliases or "name" not in listing.schema.names:
        return listing
    names = {alias: name for name, alias in aliases.items()}
    shown = [names.get(name, name) for name in listing.column("name").to_pylist()]
    place = listing.schema.get_field_index("name")
    field = listing.schema.field(place)
    return listing.set_column(place, field, pa.array(shown, field.type))


def _check_columns(table: str, schema: Schema) -> None:
    by_folded: dict[str, str] = {}
    for column in schema.columns:
        other = by_folded.setdefault(folded(column.name), column.name)
        if other != column.name:
            raise InvalidArgument(
                f"{_and([other, column.name])} are columns of table {table!r} whose names differ in case "
                "only, and SQL does not tell them apart; rename one: table.alter().rename_column(name, "
                "new_name).commit(), or read the table with table.scan()"
            )


def _and(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))
