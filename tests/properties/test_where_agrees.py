"""`where` selects the rows that DuckDB selects, for every form of condition.

    python -m tests.properties.test_where_agrees [--seed N] [--inputs 20000]

Columns have no NaN, which is the greatest number to DuckDB and not ordered in `where`. Conditions that DuckDB
refuses because an integer or decimal overflows are compared with the reference only.
"""

import argparse
from datetime import date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.common.bounds import bounds, key_bounds
from nyala.common.keys import encode_keys
from nyala.common.predicate import columns_of, evaluate
from nyala.common.schema import from_arrow
from nyala.common.where import parse
from nyala.wire.convert import predicate_from_proto, predicate_to_proto
from tests.properties.support.predicate_reference import evaluate_reference
from tests.properties.support.where_texts import Conditions

ROWS = 40
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "k": (pa.int64(), [0, 1, -1, 7, 2**62, -(2**63), 2**63 - 1]),
    "i8": (pa.int8(), [0, 1, 127, -128, None]),
    "i16": (pa.int16(), [0, -3, 300, None]),
    "i32": (pa.int32(), [0, 2, 10**9, None]),
    "d": (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("-2.25"), Decimal("0.00"), None]),
    "e": (pa.decimal128(12, 1), [Decimal("1.5"), Decimal("99999999999.9"), Decimal("0.5"), None]),
    "f": (pa.float32(), [0.5, -2.25, 0.1, 0.0, None]),
    "g": (pa.float64(), [0.5, 1e10, 0.1, -0.0, None]),
    "s": (pa.string(), ["a", "aB", "", "é\"", "it's", "b_%", None]),
    "u": (pa.string(), ["a", "É", "a\nb_", "\\", None]),
    "day": (pa.date32(), [date(2020, 1, 2), date(1969, 12, 31), None]),
    "t": (pa.timestamp("us"), [datetime(2020, 1, 2), datetime(1969, 12, 31, 23, 59, 59, 999_999), None]),
    "b": (pa.bool_(), [True, False, None]),
    "c": (pa.bool_(), [True, False, None]),
    "x": (pa.binary(), [b"", b"\0", b"a", None]),
    "y": (pa.binary(), [b"", b"\0\1", b"a", None]),
}  # fmt: skip
SCHEMA = from_arrow(pa.schema([(n, kind) for n, (kind, _) in COLUMNS.items()]), ["k"])
IDS = {c.name: c.id for c in SCHEMA.columns}


def check(seed: int) -> bool:
    """Check one condition on random rows; return whether DuckDB answered."""
    random = Random(seed)
    arrays = [pa.array(random.choices(values, k=ROWS), kind) for kind, values in COLUMNS.values()]
    rows = pa.table(arrays, names=list(COLUMNS))
    condition = Conditions(random).one()
    tree = parse(condition.ours, SCHEMA)
    tree = predicate_from_proto(predicate_to_proto(tree), SCHEMA)
    found = evaluate(tree, lambda i: rows[SCHEMA.by_id[i].name], ROWS)
    cells = [{IDS[n]: v for n, v in row.items()} for row in rows.to_pylist()]
    assert found.to_pylist() == [evaluate_reference(tree, row) for row in cells], condition.ours
    _check_bounds(rows.filter(found), tree)
    with duckdb.connect() as database:
        database.register("r", rows)
        try:
            expected = database.execute(f"select {condition.duckdb} from r").fetchall()
        except (duckdb.OutOfRangeException, duckdb.ConversionException):
            return False
    assert found.to_pylist() == [row[0] for row in expected], condition
    return True


def _check_bounds(accepted, tree):
    """Check that no bound excludes an accepted row."""
    keys = encode_keys([accepted["k"].combine_chunks()], [pa.int64()])
    within = key_bounds(tree, SCHEMA.key_columns)
    assert all(within.overlaps(k, k + b"\0") for k in map(keys.key_at, range(len(accepted))))
    for column in columns_of(tree):
        values = accepted[SCHEMA.by_id[column].name]
        found = bounds(tree, column)
        assert found.nulls or not values.null_count
        assert all(found.may_match(v, v, has_nulls=False) for v in values if v.is_valid)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**40))
def test_where_selects_what_duckdb_selects(seed):
    check(seed)


def test_duckdb_answers_most_conditions():
    assert sum(check(seed) for seed in range(60)) > 40


def main() -> None:
    """Check conditions until one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=20_000)
    asked = parser.parse_args()
    answered = sum(check(asked.seed * 1_000_000 + n) for n in range(asked.inputs))
    print(f"where and DuckDB: {asked.inputs} conditions, {answered} answered by DuckDB")


if __name__ == "__main__":
    main()
