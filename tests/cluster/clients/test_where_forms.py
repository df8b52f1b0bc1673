"""Every form of `where` selects the same rows for each way to read or to change; a limit of 0 gives none."""

import pickle
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nyala
from nyala.common.errors import NotFound
from tests.properties.support.where_texts import COLUMNS, Conditions

SCHEMA = pa.schema(
    [
        ("k", pa.int64()), ("n", pa.int8()), ("m", pa.int32()), ("d", pa.decimal128(5, 2)),
        ("g", pa.float64()), ("s", pa.string()), ("day", pa.date32()),
    ]
)  # fmt: skip
KEYS = pa.schema([pa.field("k", pa.int64(), nullable=False)])
WORDS = ["a", "aB", "b_", "100%", None, "it's"]
ROWS: list[dict[str, Any]] = [
    {
        "k": k * 2**57, "n": k % 7 - 3, "m": None if k % 5 == 0 else k, "d": Decimal(k) / 4, "g": k / 8,
        "s": WORDS[k % 6], "day": date(2024, 1, 1 + k % 3),
    }
    for k in range(-30, 30)
]  # fmt: skip
FORMS = {  # the condition, and the same one in Python
    "n == m": lambda r: r["m"] == r["n"],
    "k + k > k": lambda r: r["k"] > 0,
    "n * 2 - m < d": lambda r: r["m"] is not None and r["n"] * 2 - r["m"] < r["d"],
    "m / n is null": lambda r: r["m"] is None or r["n"] == 0,
    "m % 4 = -n": lambda r: r["m"] is not None and int(r["m"] - 4 * int(r["m"] / 4)) == -r["n"],
    "g * 8 = m": lambda r: r["m"] is not None and r["g"] * 8 == r["m"],
    "s like '%B'": lambda r: r["s"] == "aB",
    "s like '_!_%' escape '!'": lambda r: r["s"] == "b_",
    "s ilike 'A%'": lambda r: r["s"] in ("a", "aB"),
    "s not like '%a%'": lambda r: r["s"] in ("b_", "100%", "it's"),
    "s || '!' = 'a!'": lambda r: r["s"] == "a",
    "n in (1, null)": lambda r: r["n"] == 1,
    "not (n in (1, null))": lambda r: False,
    "n not in (m, 1)": lambda r: r["m"] is not None and r["n"] not in (1, r["m"]),
    "m between n and 5": lambda r: r["m"] is not None and r["n"] <= r["m"] <= 5,
    "day = date '2024-01-02' or d > g * 2": lambda r: r["day"] == date(2024, 1, 2) or r["d"] > r["g"] * 2,
    " or ".join(f"m = {i}" for i in range(-400, 10)): lambda r: r["m"] is not None and r["m"] < 10,
    " or ".join(f"m > {i} and n < {i}" for i in range(150)): lambda r: any(
        r["m"] is not None and r["m"] > i and r["n"] < i for i in range(150)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def client(cluster):
    with nyala.connect(cluster.masters) as made:
        yield made


@pytest.fixture(scope="module")
def table(client):
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    made = client.create_table("forms", SCHEMA, ["k"], parts, replicas=1)
    made.upsert([{**r, "n": 99, "s": None} for r in ROWS]).raise_for_errors()
    since = client.now()
    made.upsert(ROWS).raise_for_errors()
    yield made, since
    client.drop_table("forms")


def by_ticket(token):
    """Read a token as any Flight client does."""
    with fl.connect("grpc://" + token.replicas[0]) as server:
        return server.do_get(fl.Ticket(bytes(token))).read_all()


def answers(rows: nyala.Table, since: int, where: str) -> dict[str, pa.Table]:
    """Return the keys of the rows of a condition, through each way to read.

    Args:
        rows: a table with the key `k`.
        since: a time for the change feed, before which no row had its present values.
        where: the condition.
    """
    scan = rows.scan(["k"], where=where)
    tokens = [pickle.loads(pickle.dumps(t)) for t in scan.tokens()]
    pieces = rows.scan(["k"], where=where).tokens(split_bytes=1_000)
    changed = rows.changes(since=since, columns=["k"], where=where).to_arrow()
    return {
        "scan": scan.to_arrow(),
        "tickets": pa.concat_tables([KEYS.empty_table(), *map(by_ticket, tokens)]),
        "ordered": rows.scan(["k"], where=where, order=True).to_arrow(),
        "latest": rows.scan(["k"], where=where, mode="latest").to_arrow(),
        "stale": rows.scan(["k"], where=where, mode="stale", max_age_ms=600_000).to_arrow(),
        "tokens": pa.Table.from_batches([b for t in tokens for b in t.to_batches()], KEYS),
        "pieces": pa.Table.from_batches([b for t in pieces for b in t.to_batches()], KEYS),
        "changes": changed.filter(
            pc.not_equal(changed["_op"], "delete")
        ),  # without rows that leave
    }


def check_ways(rows: nyala.Table, since: int, where: str, expected: list[int]) -> None:
    """Check that each way to read gives the rows with the expected keys, which are sorted."""
    for way, answer in answers(rows, since, where).items():
        found = answer["k"].to_pylist()
        assert (found if way == "ordered" else sorted(found)) == expected, (way, where)
    assert rows.scan(where=where).count() == len(expected), where


@pytest.mark.parametrize("where", FORMS, ids=range(len(FORMS)))
def test_every_way_to_read_gives_the_rows_of_a_condition(client, table, where):
    rows, since = table
    expected = sorted(r["k"] for r in ROWS if FORMS[where](r))
    check_ways(rows, since, where, expected)
    quoted = where.replace("==", "=")
    if "/" not in where:
        assert (
            sorted(client.sql(f"select k from forms where {quoted}")["k"].to_pylist()) == expected
        )


@pytest.fixture(scope="module")
def random_table(client):
    """A table with columns of every type, the time before its rows, and the rows."""
    random = Random(16)
    count = 60
    columns = {n: pa.array(random.choices(v, k=count), kind) for n, (kind, v) in COLUMNS.items()}
    data = pa.table({**columns, "k": pa.array(range(-30, 30), pa.int64())})
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    made = client.create_table("random_forms", data.schema, ["k"], parts, replicas=1)
    since = client.now()
    made.insert(data).raise_for_errors()
    yield made, since, data
    client.drop_table("random_forms")


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**40))
def test_random_condition_selects_through_every_way_what_duckdb_selects(random_table, seed):
    rows, since, data = random_table
    condition = Conditions(Random(seed)).one()
    with duckdb.connect() as database:
        database.register("r", data)
        try:
            found = database.execute(
                f"select k from r where {condition.duckdb} order by k"
            ).fetchall()
        except (duckdb.OutOfRangeException, duckdb.ConversionException):
            return  # an integer or decimal overflows there
    expected = [k for (k,) in found]
    check_ways(rows, since, condition.ours, expected)
    others = sorted(set(data["k"].to_pylist()) - set(expected))
    try:
        done = rows.update_where(condition.ours, {"s": "changed"})
        assert (done.matched, done.changed) == (len(expected), len(expected)), condition
        changed = rows.scan(["k"], where="s = 'changed'", order=True).to_arrow()
        assert changed["k"].to_pylist() == expected, condition
        rows.upsert(data).raise_for_errors()
        done = rows.delete_where(condition.ours)
        assert (done.matched, done.changed) == (len(expected), len(expected)), condition
        assert rows.scan(["k"], order=True).to_arrow()["k"].to_pylist() == others, condition
    finally:
        rows.upsert(data).raise_for_errors()


def test_limit_of_zero_gives_no_rows_and_the_schema(table):
    rows, _ = table
    for options in ({}, {"order": True}, {"mode": "latest"}, {"where": "n + 1 > 0"}):
        scan = rows.scan(["k", "s"], limit=0, **options)
        assert scan.to_arrow().num_rows == 0
        assert scan.to_arrow().schema.names == ["k", "s"]
        assert list(scan.to_batches()) == []
        assert scan.count() == 0
        assert not any(b.num_rows for t in scan.tokens() for b in t.to_batches())
        assert pa.table(scan).schema.names == ["k", "s"]


def test_unknown_column_names_the_nearest(table):
    with pytest.raises(NotFound, match=r"at character 5: no column 'dya'; did you mean 'day'"):
        table[0].scan(where="n = dya")
