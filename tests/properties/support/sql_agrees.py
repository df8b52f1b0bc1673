"""Tables and comparison of results for the test of SQL against DuckDB."""

import datetime as dt
import math
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from tests.unit.client.support.sql_tables import TablesInMemory, table_of

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
