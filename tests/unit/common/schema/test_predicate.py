"""Predicates: three values, normal forms, and bounds of columns and keys."""

from datetime import date

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.expressions.bounds import Bounds, KeyBounds, bounds, key_bounds, prefix_end
from nyala.common.expressions.predicate import (
    FALSE,
    TRUE,
    And,
    Compare,
    CompareOp,
    In,
    IsNull,
    Not,
    Or,
    Prefix,
    all_of,
    any_of,
    columns_of,
    evaluate,
    negate,
)
from nyala.common.expressions.where import parse
from nyala.common.ids import ColumnId as Id
from tests.unit.common.support import calls

SCHEMA = schemas.from_arrow(
    pa.schema(
        [
            ("s", pa.string()),
            ("n", pa.int8()),
            ("f", pa.float64()),
            ("b", pa.bool_()),
            ("d", pa.date32()),
        ]
    ),
    ["s", "n"],
)
NAN = float("nan")
COLUMNS = {
    0: pa.array(["a", "ab", None, "b\0", ""]),
    1: pa.array([1, 2, None, 127, -128], pa.int8()),
    2: pa.array([0.0, -0.0, None, NAN, 1.5]),
    3: pa.array([True, False, None, True, False]),
    4: pa.array([date(2024, 1, 1), date(1, 1, 1), None, date(9999, 12, 31), date(2024, 1, 2)]),
}
T, F, N = True, False, None


def truth(tree):
    return evaluate(tree, COLUMNS.__getitem__, 5).to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 1", [T, F, N, F, F]),
        ("n <> 1", [F, T, N, T, T]),
        ("n < 2", [T, F, N, F, T]),
        ("n >= 2", [F, T, N, T, F]),
        ("n in (1, 127)", [T, F, N, T, F]),
        ("n not in (1, 127)", [F, T, N, F, T]),
        ("n is null", [F, F, T, F, F]),
        ("n is not null", [T, T, F, T, T]),
        ("s like 'a%'", [T, T, N, F, F]),
        ("s not like 'a%'", [F, F, N, T, T]),
        ("s like '%'", [T, T, N, T, T]),
        ("b", [T, F, N, T, F]),
        ("not b", [F, T, N, F, T]),
        ("n = 1 and s is null", [F, F, N, F, F]),
        ("n = 1 or s is null", [T, F, T, F, F]),
        ("n = 1 and f is not null and true", [T, F, F, F, F]),
        ("true or n = 1", [T, T, T, T, T]),
        ("not (n = 1 or b)", [F, T, N, F, T]),
        ("n between 1 and 2", [T, T, N, F, F]),
        ("n not between 1 and 2", [F, F, N, T, T]),
        ("f = 0", [T, T, N, F, F]),
        ("f in (0, 1.5)", [T, T, N, F, T]),
        ("f < 1", [T, T, N, F, F]),
        ("not f < 1", [F, F, N, T, T]),
        ("f <> 0", [F, F, N, T, T]),
        ("d > date '2024-01-01'", [F, F, N, T, T]),
        ("false", [F, F, F, F, F]),
        ("true", [T, T, T, T, T]),
    ],
)
def test_predicates_use_three_valued_logic(text, expected):
    tree = parse(text, SCHEMA)
    assert truth(tree) == expected
    assert truth(negate(tree)) == [None if e is None else not e for e in expected]
    assert truth(Not(tree)) == truth(negate(tree))


def test_chunked_columns_and_nan_literals():
    chunked = {i: pa.chunked_array([c.slice(0, 2), c.slice(2)]) for i, c in COLUMNS.items()}
    tree = parse("n in (1, 2) and s like 'a%'", SCHEMA)
    assert evaluate(tree, chunked.__getitem__, 5).to_pylist() == [T, T, N, F, F]
    nan = pa.scalar(NAN)
    assert truth(Compare(Id(2), CompareOp.EQ, nan)) == [F, F, N, F, F]
    assert truth(In(Id(2), pa.array([NAN, -0.0]))) == [T, T, N, F, F]
    assert bounds(Compare(Id(2), CompareOp.LT, nan), Id(2)) == Bounds(nulls=False)
    assert bounds(In(Id(2), pa.array([NAN])), Id(2)).values == ()


def test_column_of_another_length_is_refused():
    with pytest.raises(AssertionError, match="5 truth values for 6 rows"):
        evaluate(parse("n = 1", SCHEMA), COLUMNS.__getitem__, 6)


def test_null_literals_raise_programming_error():
    with pytest.raises(AssertionError, match="null"):
        Compare(Id(1), CompareOp.EQ, pa.scalar(None, pa.int8()))
    with pytest.raises(AssertionError, match="null"):
        In(Id(1), pa.array([None], pa.int8()))


def test_constructors_are_flat_and_without_constants():
    a, b, c = (Compare(Id(1), CompareOp.EQ, pa.scalar(i, pa.int8())) for i in range(3))
    assert all_of([all_of([a, b]), TRUE, c]) == And((a, b, c))
    assert any_of([any_of([a, b]), FALSE, c]) == Or((a, b, c))
    assert all_of([]) == TRUE
    assert any_of([]) == FALSE
    assert all_of([a, FALSE]) == FALSE
    assert any_of([a, TRUE]) == TRUE
    assert all_of([TRUE, a]) == a
    assert negate(And((a, IsNull(Id(0))))) == Or(
        (Compare(Id(1), CompareOp.NE, pa.scalar(0, pa.int8())), Not(IsNull(Id(0))))
    )
    assert negate(Not(Prefix(Id(0), "a"))) == Prefix(Id(0), "a")
    assert columns_of(all_of([IsNull(Id(3)), Not(Prefix(Id(0), "a")), any_of([a, b]), TRUE])) == (
        0,
        1,
        3,
    )


def plain(found):
    """Return bounds as Python values: (lower, upper, inclusive, inclusive, values, nulls)."""
    value = lambda s: None if s is None else s.as_py()  # noqa: E731
    values = None if found.values is None else [v.as_py() for v in found.values]
    return (
        value(found.lower), value(found.upper), found.lower_inclusive, found.upper_inclusive, values,
        found.nulls,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("n = 3", 1, (3, 3, T, T, [3], F)),
        ("n = 3", 0, (None, None, T, T, None, T)),
        ("n > 3", 1, (3, None, F, T, None, F)),
        ("n > 3 and n >= 3", 1, (3, None, F, T, None, F)),
        ("n > 3 or n >= 3", 1, (3, None, T, T, None, F)),
        ("n > 3 and n < 9 and n <= 9", 1, (3, 9, F, F, None, F)),
        ("n < 9 or n <= 9 or n < 2", 1, (None, 9, T, T, None, F)),
        ("n > 3 or n < 9", 1, (None, None, T, T, None, F)),
        ("n > 3 or n is null", 1, (3, None, F, T, None, T)),
        ("n in (5, 3, 5) and n > 3", 1, (5, 5, T, T, [5], F)),
        ("n in (5, 3) and n in (3, 4)", 1, (3, 3, T, T, [3], F)),
        ("n in (5, 3) or n = 4", 1, (3, 5, T, T, [3, 4, 5], F)),
        ("n in (5, 3) or n > 4", 1, (3, None, T, T, None, F)),
        ("n = 3 or s = 'a'", 1, (None, None, T, T, None, T)),
        ("n = 3 and n = 4", 1, (None, None, T, T, [], F)),
        ("n > 3 and n < 3", 1, (None, None, T, T, [], F)),
        ("n between 3 and 3", 1, (3, 3, T, T, [3], F)),
        ("n >= 3 and n < 3", 1, (None, None, T, T, [], F)),
        ("n > 4 and n < 3", 1, (None, None, T, T, [], F)),
        ("n > 4 and n < 3 or n = 7", 1, (7, 7, T, T, [7], F)),
        ("n <> 3", 1, (None, None, T, T, None, F)),
        ("not n > 3", 1, (None, 3, T, T, None, F)),
        ("n is null", 1, (None, None, T, T, [], T)),
        ("n is null and n = 1", 1, (None, None, T, T, [], F)),
        ("n is not null", 1, (None, None, T, T, None, F)),
        ("n not in (1, 2)", 1, (None, None, T, T, None, F)),
        ("n not in (1, 2)", 0, (None, None, T, T, None, T)),
        ("s like 'ab%'", 0, ("ab", "ac", T, F, None, F)),
        ("not f > 3", 2, (None, None, T, T, None, F)),
        ("false", 1, (None, None, T, T, [], F)),
        ("true", 1, (None, None, T, T, None, T)),
        ("d between date '0001-01-01' and date '9999-12-31'", 4,
         (date(1, 1, 1), date(9999, 12, 31), T, T, None, F)),
    ],
)  # fmt: skip
def test_bounds(text, column, expected):
    assert plain(bounds(parse(text, SCHEMA), column)) == expected


def test_bounds_of_unnormalised_negations():
    tree = Not(And((Compare(Id(1), CompareOp.LE, pa.scalar(3, pa.int8())), TRUE)))
    assert plain(bounds(tree, Id(1))) == (3, None, F, T, None, F)


def block(text, low, high, nulls=False, column=1):
    of = lambda v: None if v is None else pa.scalar(v, SCHEMA.by_id[column].type)  # noqa: E731
    return bounds(parse(text, SCHEMA), column).may_match(of(low), of(high), has_nulls=nulls)


def test_statistics_prune_blocks():
    assert block("n > 3", 0, 4)
    assert not block("n > 3", 0, 3)
    assert block("n >= 3", 0, 3)
    assert not block("n < 3", 3, 9)
    assert block("n <= 3", 3, 9)
    assert block("n in (1, 50)", 2, 60)
    assert not block("n in (1, 50)", 2, 49)
    assert not block("n in (1, 50)", 2, 49, nulls=True)
    assert block("n is null", 1, 2, nulls=True)
    assert not block("n is null", 1, 2)
    assert block("n is null", None, None, nulls=True)
    assert not block("n = 1", None, None, nulls=True)
    assert block("s like 'b%'", "a", "ba", column=0)
    assert not block("s like 'b%'", "c", "d", column=0)
    assert bounds(FALSE, Id(1)).empty
    assert not bounds(IsNull(Id(1)), Id(1)).empty


def test_prefix_end_is_above_all_values_with_prefix():
    assert prefix_end("ab") == "ac"
    assert prefix_end("a\U0010ffff") == "b"
    assert prefix_end("\ud7ff") == "\ue000"
    assert prefix_end("\U0010ffff") is None
    assert prefix_end("") is None


def keyed(text):
    return key_bounds(parse(text, SCHEMA), SCHEMA.key_columns)


def test_key_bounds():
    assert keyed("s = 'a' and n = 3") == KeyBounds(b"a\0\0\x83", b"a\0\0\x83\0")
    assert keyed("s = 'a'") == KeyBounds(b"a\0\0", b"a\0\1")
    assert keyed("s = 'a' and n > 3 and n <= 5") == KeyBounds(b"a\0\0\x83", b"a\0\0\x85\0")
    assert keyed("s = 'a' and n < 5") == KeyBounds(b"a\0\0", b"a\0\0\x85")
    assert keyed("s in ('a', 'c') and n = 5") == KeyBounds(b"a\0\0", b"c\0\1")
    assert keyed("s > 'a'") == KeyBounds(b"a\0\0", None)
    assert keyed("s like 'a%'") == KeyBounds(b"a\0\0", b"b\0\0")
    assert keyed("n = 3") == KeyBounds(b"", None)
    assert keyed("s = 'a' and n = 3 and n = 4").empty
    assert keyed("s is null").empty
    assert not KeyBounds().empty
    assert KeyBounds(b"b", b"d").overlaps(b"c", None)
    assert not KeyBounds(b"b", b"d").overlaps(b"d", None)
    assert not KeyBounds(b"b", b"d").overlaps(None, b"b")
    assert KeyBounds(b"b", None).overlaps(None, None)
    assert not KeyBounds(b"", b"").overlaps(None, None)


def test_no_python_per_row():
    tree = parse("n in (1, 2) and (s like 'a%' or f <> 0) and not b", SCHEMA)

    def work(rows: int) -> int:
        columns = {i: pa.concat_arrays([c] * (rows // 5)) for i, c in COLUMNS.items()}
        return calls.count(lambda: evaluate(tree, columns.__getitem__, rows))

    assert work(100_000) <= 2 * work(1_000)
