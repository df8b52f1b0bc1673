"""`client.sql` answers every SELECT as DuckDB by itself does over the same Arrow tables."""

import datetime as dt
import math
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.client.sql.query import run_sql
from nyala.common.errors import InvalidArgument
from tests.properties.sql_queries import Queries
from tests.unit.client.sql_tables import TablesInMemory, plainly, table_of

TYPES = {
    "int": pa.int64(), "text": pa.string(), "date": pa.date32(), "moment": pa.timestamp("us"),
    "decimal": pa.decimal128(10, 2), "flag": pa.bool_(), "double": pa.float64(),
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "int": [0, 1, 2, 3, None],
    "text": ["a", "it's", "", 'é"', "A", None],
    "date": [dt.date(2020, 1, 2), dt.date(1969, 12, 31), None],
    "moment": [
        dt.datetime(2020, 1, 1, 0, 0, 1),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        None,
    ],
    "decimal": [Decimal("1.50"), Decimal("-2.25"), Decimal("0.00"), None],
    "flag": [True, False, None],
    "double": [0.5, -1.0, math.nan, None],
}
TABLES = {
    "t": {"k": "int", "name": "text", "day": "date", "price": "decimal", "ok": "flag"},
    "Upper": {"Key": "int", "VALUE": "double", "at": "moment", "k": "text"},
    'odd "one"': {
        "select": "int",
        "a.b": "text",
        "k = 1 or k": "int",
        "false": "flag",
        "é": "decimal",
    },
    "select": {"k": "int", "group by": "double", 'a "quote"': "text", "x (": "moment"},
}


def tables(random: Random) -> TablesInMemory:
    made = {}
    for name, kinds in TABLES.items():
        count = random.randrange(1, 12)
        columns: dict[str, list[Any]] = {
            n: random.choices(VALUES[k], k=count) for n, k in kinds.items()
        }
        key = next(iter(kinds))
        columns[key] = random.sample(range(-3, 20), count)
        types = [TYPES[k] for k in kinds.values()]
        arrays = [pa.array(v, t) for v, t in zip(columns.values(), types, strict=True)]
        made[name] = table_of(pa.table(arrays, names=list(kinds)), key)
    return TablesInMemory(made)


def shown(table: pa.Table) -> tuple[list[str], list[str]]:
    return [f"{f.name} {f.type}" for f in table.schema], sorted(map(repr, table.to_pylist()))


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**40))
def test_every_select_means_what_it_means_to_duckdb(seed):
    random = Random(seed)
    there = tables(random)
    query = Queries(random, TABLES).one()
    try:
        expected = shown(plainly(there, query))
    except duckdb.Error:
        try:
            found = run_sql(query, there)
        except InvalidArgument:
            return
        raise AssertionError(f"answered {found.to_pylist()} to {query}") from None
    assert shown(run_sql(query, there)) == expected, query
    assert len({a.at for a in there.asked}) <= 1, "tables were read at different times"
