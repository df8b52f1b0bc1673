"""`where` selects the rows that DuckDB selects, for every form of condition.

    python -m tests.properties.test_where_agrees [--seed N] [--inputs 20000]

Columns have no NaN, which is the greatest number to DuckDB and not ordered in `where`. Conditions that DuckDB
refuses because an integer or decimal overflows are compared with the reference only.
"""

import argparse
from random import Random

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.common.expressions.bounds import bounds, key_bounds
from nyala.common.expressions.predicate import columns_of, evaluate
from nyala.common.expressions.where import parse
from nyala.common.keys.encoding import encode_keys
from nyala.common.schema import from_arrow
from nyala.wire.convert import predicate_from_proto, predicate_to_proto
from tests.enough import FULL
from tests.properties.support.predicate_reference import evaluate_reference
from tests.properties.support.where_texts import COLUMNS, Conditions

ROWS = 40
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


@settings(max_examples=75 if FULL else 40, deadline=None)
@given(st.integers(0, 2**40))
def test_where_selects_what_duckdb_selects(seed):
    check(seed)


def test_duckdb_answers_most_conditions():
    assert sum(check(seed) for seed in range(30)) > 20


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
