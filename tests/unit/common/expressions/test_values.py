"""Value expressions: types, exact results, null for a division by zero, positions of errors."""

from datetime import UTC, date, datetime
from decimal import Decimal as D

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.expressions.evaluation import columns_in, evaluate_value, result_type
from nyala.common.expressions.parser import MAX_DEPTH, parse_value
from nyala.common.expressions.tree import MAX_LEVELS

TOP, LOW = 2**63 - 1, -(2**63)
INF, NAN = float("inf"), float("nan")
KINDS = {
    "k": (pa.int64(), [7, TOP, LOW]),
    "n": (pa.int8(), [3, None, -128]),
    "d": (pa.decimal128(5, 2), [D("1.50"), D("999.99"), None]),
    "e": (pa.decimal128(38, 10), [D("1.5"), D(10) ** 27, None]),
    "f": (pa.float32(), [0.5, NAN, 3e38]),
    "g": (pa.float64(), [0.5, INF, -1.0]),
    "s": (pa.string(), ["a", None, ""]),
    "b": (pa.bool_(), [True, False, None]),
}
SCHEMA = schemas.from_arrow(pa.schema([(n, kind) for n, (kind, _) in KINDS.items()]), ["k"])
COLUMNS = {SCHEMA.column(n).id: pa.array(values, kind) for n, (kind, values) in KINDS.items()}


def values(text):
    """Return the type and the values of a text."""
    tree = parse_value(text, SCHEMA)
    found = evaluate_value(tree, COLUMNS.__getitem__, 3)
    assert found.type == result_type(tree)
    return str(found.type), found.to_pylist()


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("n + 1", "int64", [4, None, -127]),
        ("n - 1 - 1", "int64", [1, None, -130]),
        ("-n", "int64", [-3, None, 128]),
        ("2 * -n + 1", "int64", [-5, None, 257]),
        ("2 * (1 + n)", "int64", [8, None, -254]),
        ("2 + 3 * 4 % 5", "int64", [4, 4, 4]),
        ("-2 % 3 * 2", "int64", [-4, -4, -4]),
        ("n % -5", "int64", [3, None, -3]),
        ("k % -1", "int64", [0, 0, 0]),
        ("k % (n - n)", "int64", [None, None, None]),
        ("k - k + k", "int64", [7, TOP, LOW]),
        ("k + k - k", "int64", [7, TOP, LOW]),  # the sum alone overflows
        ("k * 2 % 10", "int64", [4, 4, -6]),
        ("n / 2", "double", [1.5, None, -64.0]),
        ("n / 0", "double", [None, None, None]),
        ("k * k / k", "double", [7.0, 2.0**63, -(2.0**63)]),
        ("k + 0.5", "decimal128(21, 1)", [D("7.5"), D("9223372036854775807.5"), D("-9223372036854775807.5")]),
        ("d * 2", "decimal128(7, 2)", [D("3.00"), D("1999.98"), None]),
        ("d - e", "decimal128(38, 10)", [D(0), D("-999999999999999999999999000.01"), None]),
        ("d * d", "decimal128(11, 4)", [D("2.25"), D("999980.0001"), None]),
        ("d % 0.7", "decimal128(5, 2)", [D("0.10"), D("0.39"), None]),
        ("d % 0", "decimal128(5, 2)", [None, None, None]),
        ("d / 3", "double", [0.5, 333.33, None]),
        ("f + 1", "float", [1.5, NAN, 3.0000000054977558e38]),
        ("f * 1e0", "double", [0.5, NAN, 3.0000000054977558e38]),
        ("f / 2", "float", [0.25, NAN, 1.5000000027488779e38]),
        ("f / 0", "float", [None, None, None]),
        ("g + f", "double", [1.0, NAN, 3.0000000054977558e38]),
        ("g + 0.1", "double", [0.6, INF, -0.9]),
        ("g % 0", "double", [None, None, None]),
        ("-g % 2", "double", [-0.5, NAN, 1.0]),
        ("s || '-' || s", "string", ["a-a", None, "-"]),
        ("'a' || 'b'", "string", ["ab", "ab", "ab"]),
        ("s || null", "string", [None, None, None]),
        ("n + null", "int64", [None, None, None]),
        ("null", "null", [None, None, None]),
        ("b", "bool", [True, False, None]),
        ("'it''s'", "string", ["it's"] * 3),
        ("-0.10", "decimal128(2, 2)", [D("-0.10")] * 3),
        ("9223372036854775808", "decimal128(19, 0)", [D(TOP + 1)] * 3),
        ("1e3", "double", [1000.0] * 3),
        ("x'00ff'", "binary", [b"\0\xff"] * 3),
        ("true", "bool", [True] * 3),
        ("date '2024-02-29'", "date32[day]", [date(2024, 2, 29)] * 3),
        ("timestamp '2024-02-29 01:00'", "timestamp[us]", [datetime(2024, 2, 29, 1)] * 3),
        ("timestamp '2024-02-29 01:00Z'", "timestamp[us, tz=UTC]",
         [datetime(2024, 2, 29, 1, tzinfo=UTC)] * 3),
    ],
)  # fmt: skip
def test_types_and_results(text, kind, expected):
    found = values(text)
    assert found[0] == kind
    assert repr(found[1]) == repr(expected) or found[1] == expected


@pytest.mark.parametrize("text", ["k + 1", "k * k", "-k", "k - 200 - k - k"])
def test_stored_integers_out_of_range_are_refused(text):
    with pytest.raises(InvalidArgument, match="outside the range of int64; multiply by 1e0"):
        values(text)


def test_chunked_columns_and_no_rows():
    chunked = {i: pa.chunked_array([c.slice(0, 2), c.slice(2)]) for i, c in COLUMNS.items()}
    tree = parse_value("n * 2 + d", SCHEMA)
    assert columns_in(tree) == {SCHEMA.column("n").id, SCHEMA.column("d").id}
    found = evaluate_value(tree, chunked.__getitem__, 3)
    assert found.to_pylist() == [D("7.50"), None, None]
    empty = {i: c.slice(0, 0) for i, c in COLUMNS.items()}
    for text in ("n % n", "k / 2", "s || s", "5", "d % 2", "null"):
        assert len(evaluate_value(parse_value(text, SCHEMA), empty.__getitem__, 0)) == 0


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("", 1, "is empty"),
        ("n +", 4, "expected a value after +, found end of the text"),
        ("n n", 3, "is unexpected here"),
        ("n = 3", 3, "is unexpected here"),
        ("(n", 3, "to close the parenthesis of character 1"),
        ("s + 1", 3, "+ takes numbers; the column has type string"),
        ("1 * b", 3, "* takes numbers"),
        ("n * (s || 'a')", 3, "the result of || has type string"),
        ("-s", 1, "takes numbers"),
        ("s || 1", 3, "|| joins strings; the literal has type int64"),
        ("n - -", 6, "expected a number after -"),
        ("1 + vaule", 5, "no column 'vaule'"),
        ("1 + abs(k)", 5, "abs(...) is a function"),
        ("k * k * k * k", 11, "can have 79 digits"),
        ("date '2023-02-29'", 1, "is not a valid date or time"),
        ("timestamp '2024-01-01 00:00:00.0000001'", 1, "more digits than microseconds"),
        ("1e309", 1, "outside the range of double"),
        ("(" * (MAX_DEPTH + 1) + "1", MAX_DEPTH + 1, "nested more than"),
        ("g" + " + 1" * MAX_LEVELS, 4 * MAX_LEVELS - 1, "at most 99 operators"),
    ],
    ids=lambda v: repr(v)[:30],
)  # fmt: skip
def test_refused_with_its_position(text, at, words):
    with pytest.raises((InvalidArgument, NotFound)) as caught:
        parse_value(text, SCHEMA)
    assert words in caught.value.message
    assert caught.value.details["position"] == str(at)
    assert f"at character {at}: " in caught.value.message


def test_decimals_that_no_column_stores_are_refused():
    tiny = parse_value("0.00000000000000000001 * 0.0000000000000000001", SCHEMA)
    with pytest.raises(InvalidArgument, match="39 digits after the point"):
        result_type(tiny)
