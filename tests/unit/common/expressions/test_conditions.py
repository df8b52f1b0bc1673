"""Conditions on values: comparison of any two, patterns, lists with null, and their bounds."""

from datetime import date, datetime
from decimal import Decimal as D

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.errors import InvalidArgument
from nyala.common.expressions.bounds import bounds, key_bounds
from nyala.common.expressions.predicate import UNKNOWN, Like, Not, columns_of, evaluate, negate
from nyala.common.expressions.where import parse

TOP, LOW = 2**63 - 1, -(2**63)
T, F, N = True, False, None
KINDS = {
    "k": (pa.int64(), [7, TOP, LOW]),
    "n": (pa.int8(), [3, None, -128]),
    "m": (pa.int8(), [0, 2, -128]),
    "d": (pa.decimal128(5, 2), [D("3.00"), D("999.99"), None]),
    "f": (pa.float32(), [0.1, float("nan"), 3e38]),
    "g": (pa.float64(), [0.1, float("inf"), -1.0]),
    "s": (pa.string(), ["a_B", None, "x\n%"]),
    "u": (pa.string(), ["a_B", "", "É"]),
    "b": (pa.bool_(), [True, False, None]),
    "c": (pa.bool_(), [True, True, True]),
    "day": (pa.date32(), [date(2024, 1, 1), date(1, 1, 1), None]),
    "t": (pa.timestamp("us"), [datetime(2024, 1, 1), datetime(1, 1, 1, 1), datetime(1970, 1, 1)]),
}
SCHEMA = schemas.from_arrow(pa.schema([(n, kind) for n, (kind, _) in KINDS.items()]), ["k"])
COLUMNS = {SCHEMA.column(n).id: pa.array(values, kind) for n, (kind, values) in KINDS.items()}


def truth(tree):
    return evaluate(tree, COLUMNS.__getitem__, 3).to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n == 3", [T, N, F]),
        ("n = m", [F, N, T]),
        ("n > m", [T, N, F]),
        ("(n) > (m)", [T, N, F]),
        ("k > n", [T, N, F]),
        ("n = d", [T, N, N]),
        ("d < k", [T, T, N]),
        ("k + 1 > k", [T, T, T]),  # the highest integer overflows
        ("k * k * 3 > 0.5", [T, T, T]),
        ("k - 1 < k", [T, T, T]),
        ("n + m = 3", [T, N, F]),
        ("1 + 2 = n", [T, N, F]),
        ("n * 2 >= 6.0", [T, N, F]),
        ("n / m > 0", [N, N, T]),
        ("n / m is null", [T, T, F]),
        ("n / m is not null", [F, F, T]),
        ("n % 2 = 1", [T, N, F]),
        ("n % 2 <> 1", [F, N, T]),
        ("-n > 127", [F, N, T]),
        ("f = g", [F, F, F]),  # 0.1 as float is another number than 0.1 as double
        ("f + 0 = 0.1", [T, F, F]),
        ("g + 0 = 0.1", [T, F, F]),
        ("f <> f", [F, T, F]),
        ("not f = f", [F, T, F]),
        ("g > k", [F, T, T]),
        ("b = c", [T, F, N]),
        ("not (b = c)", [F, T, N]),
        ("s = u", [T, N, F]),
        ("s || u = 'a_Ba_B'", [T, N, F]),
        ("day = t", [T, F, N]),
        ("day < t", [F, T, N]),
        ("t >= day", [T, T, N]),
        ("1 = 1", [T, T, T]),
        ("1 + 1 = 3", [F, F, F]),
        ("'a' || 'b' like '_b'", [T, T, T]),
        ("s like 'a!_B' escape '!'", [T, N, F]),
        ("s like 'a\\_B'", [T, N, F]),
        ("s like 'a_B' escape ''", [T, N, F]),
        ("s like '%B'", [T, N, F]),
        ("s like '%_B'", [T, N, F]),
        ("s like 'x_\\%'", [F, N, T]),
        ("s like 'x%'", [F, N, T]),
        ("s not like '%B'", [F, N, T]),
        ("s ilike 'A\\_b'", [T, N, F]),
        ("s ilike 'A%'", [T, N, F]),
        ("s not ilike 'A%'", [F, N, T]),
        ("u ilike 'é'", [F, F, T]),
        ("u like '_'", [F, F, T]),
        ("u like '%'", [T, T, T]),
        ("n in (3, null)", [T, N, N]),
        ("n not in (3, null)", [F, N, N]),
        ("n in (null)", [N, N, N]),
        ("n in (null) or n = 3", [T, N, N]),
        ("n in (null) and n = 3", [N, N, F]),
        ("n in (m, 3)", [T, N, T]),
        ("n + 0 in (3, -128)", [T, N, T]),
        ("3 in (n, m)", [T, N, F]),
        ("n between m and 3", [T, N, T]),
        ("3 between n and m + 3", [T, N, F]),
        ("n not between m and 3", [F, N, F]),
        ("m = 0 or m = 2 or m = 0", [T, T, F]),
        ("m <> 0 and n <> 3 and m <> 2", [F, F, T]),
        ("n <> 3 and n <> 4", [F, N, T]),
        ("true = b", [T, F, N]),
    ],
)
def test_conditions_use_three_valued_logic(text, expected):
    tree = parse(text, SCHEMA)
    assert truth(tree) == expected
    assert truth(negate(tree)) == [None if e is None else not e for e in expected]
    assert truth(Not(tree)) == truth(negate(tree))


def test_lists_of_equalities_keep_their_order():
    tree = parse("m = 1 or b or m = 2 or n = 3 or m = 3", SCHEMA)
    assert tree == parse("m in (1, 2, 3) or b or n = 3", SCHEMA)
    assert parse("m <> 1 and b and m <> 2", SCHEMA) == parse("m not in (1, 2) and b", SCHEMA)
    assert parse("m in (null)", SCHEMA) == UNKNOWN


def test_patterns_without_wildcards_inside_keep_the_fast_forms():
    for text, plain in (
        ("s like 'a!%b' escape '!'", "s = 'a%b'"),
        ("s like 'a!!b%' escape '!'", "s like 'a!b%'"),
        ("s like 'a\\b%' escape '!'", "s like 'a\\\\b%'"),
    ):
        assert parse(text, SCHEMA) == parse(plain, SCHEMA)
    assert isinstance(parse("s like 'a%b'", SCHEMA), Like)
    assert isinstance(parse("s ilike 'a'", SCHEMA), Like)
    assert len(parse("s like '" + "a" * 5_000 + "%'", SCHEMA).prefix) == 5_000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "not_null"),
    [
        ("n > m", ["n", "m"]),
        ("not n > m", ["n", "m"]),
        ("n / m = 1", ["n", "m"]),
        ("s like '%a'", ["s"]),
        ("s not ilike 'a'", ["s"]),
        ("n / m is not null", ["n", "m"]),
        ("n / m is null", []),
        ("n > m or b", []),
        ("n in (1, null)", ["n"]),
    ],
)
def test_bounds_of_conditions_on_values(text, not_null):
    tree = parse(text, SCHEMA)
    for column in SCHEMA.columns:
        found = bounds(tree, column.id)
        assert found.nulls == (column.name not in not_null), column.name
    assert set(not_null) <= {SCHEMA.by_id[i].name for i in columns_of(tree)}


def test_unknown_accepts_no_row_and_a_prefix_bounds_a_pattern():
    assert bounds(UNKNOWN, SCHEMA.column("n").id).empty
    assert key_bounds(parse("k in (null)", SCHEMA), SCHEMA.key_columns).empty
    assert not key_bounds(parse("k > n", SCHEMA), SCHEMA.key_columns).empty
    found = bounds(parse("s like 'ab%c'", SCHEMA), SCHEMA.column("s").id)
    assert (found.lower, found.upper) == (pa.scalar("ab"), pa.scalar("ac"))
    assert bounds(parse("s ilike 'ab%c'", SCHEMA), SCHEMA.column("s").id).lower is None
    assert bounds(parse("s not like 'ab%c'", SCHEMA), SCHEMA.column("s").id).lower is None


def test_far_dates_compare_with_timestamps():
    far = pa.array([2**31 - 1, -(2**31), 19_723], pa.int32()).cast(pa.date32())
    columns = {**COLUMNS, SCHEMA.column("day").id: far}
    found = evaluate(parse("day > t", SCHEMA), columns.__getitem__, 3)
    assert found.to_pylist() == [True, False, True]


ZONED = schemas.from_arrow(
    pa.schema({"z": pa.timestamp("us", "UTC"), "t": pa.timestamp("us"), "day": pa.date32()}), ["z"]
)


@pytest.mark.parametrize("written", ["'2024-01-01 12:00'", "timestamp '2024-01-01 12:00'"])
def test_literal_without_a_zone_is_in_utc_beside_a_column_with_one(written):
    zoned = parse("z < timestamp '2024-01-01 14:00+02:00'", ZONED)
    assert parse(f"z < {written}", ZONED) == zoned
    assert parse("z = date '2024-01-01'", ZONED) == parse("z = '2024-01-01 00:00Z'", ZONED)


@pytest.mark.parametrize(
    "text", ["t < '2024-01-01 12:00Z'", "day < '2024-01-01 12:00Z'", "z < t", "day = z"]
)
def test_time_with_a_zone_is_not_compared_with_a_column_without(text):
    with pytest.raises(InvalidArgument, match=r"time zone|does not compare"):
        parse(text, ZONED)
