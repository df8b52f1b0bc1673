"""SQL by DuckDB over scans, with projection and filters pushed down.

How: the query is first explained over empty tables of the same schemas. Each scan of that plan names
the columns it reads and the filters that DuckDB would push into it; those that this store's `where`
language can say are sent along, the others only cost rows. Then the fetched rows are registered under
the tables' names and the query runs: DuckDB filters again, so that a push-down can make a query faster
but never change its answer. duckdb is loaded on first use: importing nyala stays light.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nyala.client.table import Table
from nyala.common.errors import InvalidArgument, NotFound, NyalaError
from nyala.common.predicate import columns_of
from nyala.common.schema import Schema
from nyala.common.where import parse

_LITERAL = re.compile(r"('(?:[^']|'')*')(?:::(DATE|TIMESTAMP WITH TIME ZONE|TIMESTAMP)(?!\w))?")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = frozenset(["and", "or", "not", "in", "between", "like", "is", "null", "true", "false"])
_READS_ONLY = (
    "sql() takes one query that reads (select, with); write rows with the table's own methods, and define "
    "tables with create_table"
)
_OPTIONAL = "optional: "


@dataclass(frozen=True, slots=True)
class Need:
    """What a query needs of one table: columns (None: all) and a filter that rows outside do not pass."""

    columns: tuple[str, ...] | None
    where: str | None


def run_sql(query: str, open_table: Callable[[str], Table], now: Callable[[], int]) -> pa.Table:
    """Run one query over the tables that it names, all read at one snapshot; see `Client.sql`."""
    import duckdb

    engine = duckdb.connect(":memory:", config={"enable_external_access": "false"})
    try:
        engine.execute("set python_enable_replacements=false").fetchall()
        names = _table_names(engine, query)
        tables = {name: open_table(name) for name in names}
        needs = _needs(engine, query, tables)
        at = now() if tables else 0
        for name, table in tables.items():
            need = needs[name]
            rows = table.scan(columns=need.columns, where=need.where, at=at).to_arrow()
            engine.execute(f"drop table {_quoted(name)}").fetchall()
            engine.register(name, rows)
        return engine.sql(query).to_arrow_table()
    except duckdb.Error as err:
        raise InvalidArgument(f"SQL: {err}; mend the query") from err
    finally:
        engine.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _table_names(engine: Any, query: str) -> list[str]:
    """Return the tables that a query reads, in the order in which it first names them.

    Raises:
        InvalidArgument: not one SELECT.
    """
    parsed = json.loads(engine.execute("select json_serialize_sql(?)", [query]).fetchall()[0][0])
    if parsed.get("error"):
        said = str(parsed.get("error_message", "the text cannot be read"))
        if "Only SELECT" in said:
            raise InvalidArgument(_READS_ONLY)
        raise InvalidArgument(f"SQL: {said}; mend the query")
    if len(parsed["statements"]) != 1:
        raise InvalidArgument(_READS_ONLY)
    named: dict[str, None] = {}
    local: set[str] = set()
    for node in _nodes(parsed):
        if node.get("type") == "BASE_TABLE":
            if node.get("schema_name") or node.get("catalog_name"):
                raise NotFound(f"no schema {node['schema_name']!r}: tables are named alone")
            named[node["table_name"]] = None
        local.update(entry["key"] for entry in node.get("cte_map", {}).get("map", []))
    return [name for name in named if name not in local]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _needs(engine: Any, query: str, tables: dict[str, Table]) -> dict[str, Need]:
    """Explain the query over empty tables; return what it needs of each.

    A table that is scanned twice is fetched once: the columns of all its scans, without a filter.
    """
    for name, table in tables.items():
        engine.register("_empty", table.schema.empty_table())
        engine.execute(f"create table {_quoted(name)} as from _empty").fetchall()
        engine.unregister("_empty")
    # On empty tables this rule would prove every query empty and hide the scans.
    engine.execute("set disabled_optimizers='statistics_propagation'").fetchall()
    plan = json.loads(engine.execute(f"explain (format json) {query}").fetchall()[0][1])
    engine.execute("reset disabled_optimizers").fetchall()
    scans: dict[str, list[Need]] = {name: [] for name in tables}
    for node in _nodes(plan):
        facts = node.get("extra_info", {})
        for name, table in tables.items():
            if facts.get("Table", "").endswith(f".{name}"):
                filters = _listed(facts, "Filters")
                wanted = {*_listed(facts, "Projections"), *_mentioned(table, filters)}
                columns = tuple(c for c in table.schema.names if c in wanted)
                texts = [_usable(f, table.definition) for f in filters]
                scans[name].append(Need(columns, " and ".join(t for t in texts if t) or None))
    return {name: _merged(tables[name], found) for name, found in scans.items()}


def _listed(facts: dict[str, Any], key: str) -> list[str]:
    value = facts.get(key) or []
    return [value] if isinstance(value, str) else list(value)


def _usable(text: str, schema: Schema) -> str | None:
    """Return a filter of the plan in the `where` language, or None if it cannot be said there.

    To DuckDB NaN is greater than every number and equals itself, to `where` it is neither: a filter that
    names a column of floats is not sent. Neither is any of a table with a column whose name DuckDB, which
    does not quote names in a plan, writes as if it were something else.
    """
    if not all(_PLAIN.fullmatch(c.name) and c.name.lower() not in _WORDS for c in schema.columns):
        return None
    said = "(" + _LITERAL.sub(_said, text.removeprefix(_OPTIONAL)) + ")"
    try:
        tree = parse(said, schema)
    except NyalaError:
        return None
    types = [schema.by_id[column].type for column in columns_of(tree)]
    return None if any(pa.types.is_floating(t) for t in types) else said


def _said(literal: re.Match[str]) -> str:
    text, kind = literal.groups()
    return text if kind is None else f"{kind.split()[0].lower()} {text}"


def _merged(table: Table, scans: list[Need]) -> Need:
    if not scans:
        return Need(None, None)
    wanted = {c for s in scans for c in s.columns or ()} or {table.primary_key[0]}
    columns = tuple(c for c in table.schema.names if c in wanted)  # count(*): any column will do
    return Need(columns, scans[0].where if len(scans) == 1 else None)


def _mentioned(table: Table, filters: list[str]) -> list[str]:
    """Return columns that the filters may name: DuckDB, filtering again, has to have them."""
    return [c for c in table.schema.names if any(c in text for text in filters)]
