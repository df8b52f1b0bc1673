"""Deletes and updates by predicate change the same rows as a model that evaluates them row by row.

Other rows are written between the snapshot and the call, also to selected rows, which the call changes
all the same.
"""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nyala
from nyala.client.modify import modification
from nyala.testing import MiniCluster
from tests.enough import FULL

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64())]
)
NUMBERS = st.none() | st.integers(-5, 5)
ROWS = st.dictionaries(st.integers(0, 30), st.tuples(NUMBERS, NUMBERS), max_size=25)


def compared(column, sign, number):
    def selects(row):
        value = row[column]
        return None if value is None else {"<": value < number, "=": value == number}[sign]

    return f"{column} {sign} {number}", selects


def joined(left, right):
    def selects(row):
        both = left[1](row), right[1](row)
        return False if False in both else None if None in both else True

    return f"({left[0]}) and ({right[0]})", selects


def denied(one):
    def selects(row):
        found = one[1](row)
        return None if found is None else not found

    return f"not ({one[0]})", selects


def calculated(left, sign, right):
    def value(row):
        sides = [row[s] if isinstance(s, str) else s for s in (left, right)]
        if None in sides:
            return None
        return {"+": sides[0] + sides[1], "-": sides[0] - sides[1], "*": sides[0] * sides[1]}[sign]

    return nyala.expr(f"{left} {sign} ({right})"), value


TESTS = st.builds(compared, st.sampled_from("kab"), st.sampled_from("<="), st.integers(-3, 25))
WHERE = st.recursive(TESTS, lambda s: st.builds(joined, s, s) | st.builds(denied, s), max_leaves=4)
OPERANDS = st.sampled_from("kab") | st.integers(-3, 3)
VALUES = NUMBERS.map(lambda n: (n, lambda row: n)) | st.builds(
    calculated, OPERANDS, st.sampled_from("+-*"), OPERANDS
)


@pytest.fixture(scope="module")
def table():
    with MiniCluster(1, 1) as cluster, cluster.connect() as client:
        yield client.create_table(
            "t", SCHEMA, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], 3)]), replicas=1
        )


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(modification, "CHUNK_ROWS", 4)
        yield


def fill(table, rows):
    table.delete_where("true")
    table.insert(
        [{"k": k, "a": a, "b": b} for k, (a, b) in rows.items()]
        or pa.table({"k": pa.array([], pa.int64())})
    ).raise_for_errors()


def contents(table):
    return {r["k"]: (r["a"], r["b"]) for r in table.scan().to_arrow().to_pylist()}


def as_rows(rows):
    return [{"k": k, "a": a, "b": b} for k, (a, b) in rows.items()]


@settings(max_examples=30 if FULL else 10, deadline=None)
@given(
    ROWS,
    ROWS,
    st.sets(st.integers(0, 30), max_size=3),
    WHERE,
    st.none() | st.dictionaries(st.sampled_from("ab"), VALUES, min_size=1),
)
def test_the_rows_changed_are_those_of_the_model(table, rows, later, dropped, where, values):
    fill(table, rows)
    text, selects = where
    at = table.scan().at
    table.upsert(as_rows(later) or pa.table({"k": pa.array([], pa.int64())}))
    table.delete_ignore([{"k": k} for k in dropped] or pa.table({"k": pa.array([], pa.int64())}))
    expected = {k: v for k, v in {**rows, **later}.items() if k not in dropped}
    selected = [r for r in as_rows(rows) if selects(r)]
    changed = 0
    for row in selected:
        old = expected.get(row["k"])
        if old is None:
            continue
        changed += 1
        if values is None:
            del expected[row["k"]]
        else:
            new = {**dict(zip("ab", old, strict=True)), **{n: v[1](row) for n, v in values.items()}}
            expected[row["k"]] = (new["a"], new["b"])
    if values is None:
        done = table.delete_where(text, at=at)
    else:
        done = table.update_where(text, {n: v[0] for n, v in values.items()}, at=at)
    assert (done.matched, done.changed, done.missing, done.failed) == (
        len(selected),
        changed,
        len(selected) - changed,
        0,
    )
    assert contents(table) == expected
