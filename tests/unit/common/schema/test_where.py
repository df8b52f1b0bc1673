"""The where text: grammar, conversion of literals to columns, errors of invalid text."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.expressions.parser import MAX_DEPTH
from nyala.common.expressions.predicate import (
    TRUE,
    And,
    Compare,
    CompareOp,
    In,
    IsNull,
    Not,
    Or,
    Prefix,
)
from nyala.common.expressions.where import MAX_CONDITIONS, MAX_LIST, MAX_VALUES, parse
from nyala.common.expressions.where_tokens import MAX_TEXT_BYTES

SCHEMA = schemas.from_arrow(
    pa.schema(
        [
            ("s", pa.string()),
            ("n", pa.int8()),
            ("m", pa.int64()),
            ("c", pa.decimal128(4, 1)),
            ("f", pa.float32()),
            ("g", pa.float64()),
            ("b", pa.bool_()),
            ("x", pa.binary()),
            ("date", pa.date32()),
            ("t", pa.timestamp("us")),
            ("z", pa.timestamp("us", "UTC")),
            ('odd "name"', pa.int32()),
            ("größe", pa.int32()),
        ]
    ),
    ["s", "n"],
)
ID = {c.name: c.id for c in SCHEMA.columns}


def one(text):
    """Return (column, sign, Python value) of a text that is one comparison."""
    tree = parse(text, SCHEMA)
    assert isinstance(tree, Compare), tree
    column = SCHEMA.by_id[tree.column_id]
    assert tree.value.type == column.type
    return column.name, tree.op.value, tree.value.as_py()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m = 3", ("m", "=", 3)),
        ("m==3", ("m", "=", 3)),
        ("m != -3", ("m", "<>", -3)),
        ("m<=+3", ("m", "<=", 3)),
        ("3 < m", ("m", ">", 3)),
        ("-3>=m", ("m", "<=", -3)),
        ("m = 1e3", ("m", "=", 1000)),
        ("m = 2.0", ("m", "=", 2)),
        ("m = 9223372036854775807", ("m", "=", 2**63 - 1)),
        ("c = 1.5", ("c", "=", Decimal("1.5"))),
        ("c > .5", ("c", ">", Decimal("0.5"))),
        ("f = 0.5", ("f", "=", 0.5)),
        ("g >= 1.", ("g", ">=", 1.0)),
        ("g = 0.1", ("g", "=", 0.1)),
        ("s = 'it''s'", ("s", "=", "it's")),
        ("s = ''", ("s", "=", "")),
        ("s = 'ü\U0001f98c'", ("s", "=", "ü\U0001f98c")),
        ("'a' = s", ("s", "=", "a")),
        ("b = TRUE", ("b", "=", True)),
        ("b", ("b", "=", True)),
        ("not b", ("b", "<>", True)),
        ("not not b", ("b", "=", True)),
        ("x = X'00Ff'", ("x", "=", b"\0\xff")),
        ("x = x''", ("x", "=", b"")),
        ("date = date '2024-02-29'", ("date", "=", date(2024, 2, 29))),
        ("date '2024-02-29' > date", ("date", "<", date(2024, 2, 29))),
        ("DATE = '2024-02-29'".replace("DATE", "date"), ("date", "=", date(2024, 2, 29))),
        (
            "t > TIMESTAMP '2024-01-01 10:20:30.5'",
            ("t", ">", datetime(2024, 1, 1, 10, 20, 30, 500_000)),
        ),
        ("t = '2024-01-01T10:20'", ("t", "=", datetime(2024, 1, 1, 10, 20))),
        ("t < date '2024-01-01'", ("t", "<", datetime(2024, 1, 1))),
        ("z = '2024-01-01 00:00:00'", ("z", "=", datetime(2024, 1, 1, tzinfo=UTC))),
        ("z = '2024-01-01 01:30:00+01:30'", ("z", "=", datetime(2024, 1, 1, tzinfo=UTC))),
        ("z = '2023-12-31 19:00:00 -05'", ("z", "=", datetime(2024, 1, 1, tzinfo=UTC))),
        ("z = '2024-01-01 00:00:00Z'", ("z", "=", datetime(2024, 1, 1, tzinfo=UTC))),
        ('"odd ""name""" = 1', ('odd "name"', "=", 1)),
        ('"m" = 1', ("m", "=", 1)),
        ("größe = 1", ("größe", "=", 1)),
        ("((m = 3))", ("m", "=", 3)),
        ("m\n=\t3", ("m", "=", 3)),
        ("s like 'abc'", ("s", "=", "abc")),
    ],
)
def test_comparison(text, expected):
    assert one(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # out of range: true or false for all values, and null for null rows
        ("n = 300", ("n", ">", 127)),
        ("n <> 300", ("n", "<=", 127)),
        ("n < 300", ("n", "<=", 127)),
        ("n > 127", ("n", ">", 127)),
        ("n >= 128", ("n", ">", 127)),
        ("n <= 127", ("n", "<=", 127)),
        ("n < -300", ("n", "<", -128)),
        ("n >= -300", ("n", ">=", -128)),
        ("n > -129", ("n", ">=", -128)),
        ("n < -128", ("n", "<", -128)),
        ("n = 1e400", ("n", ">", 127)),
        ("n = 0e999999999", ("n", "=", 0)),
        # fractions
        ("n = 2.5", ("n", ">", 127)),
        ("n <> 2.5", ("n", "<=", 127)),
        ("n < 2.5", ("n", "<=", 2)),
        ("n <= 2.5", ("n", "<=", 2)),
        ("n > 2.5", ("n", ">", 2)),
        ("n >= 2.5", ("n", ">", 2)),
        ("n < -2.5", ("n", "<=", -3)),
        ("n >= -2.5", ("n", ">", -3)),
        ("n <= 127.5", ("n", "<=", 127)),
        ("n < -128.5", ("n", "<", -128)),
        ("n > 1e-300", ("n", ">", 0)),
        ("c = 1.25", ("c", ">", Decimal("999.9"))),
        ("c < 1.25", ("c", "<=", Decimal("1.2"))),
        ("c >= 1000", ("c", ">", Decimal("999.9"))),
        ("c > -1000", ("c", ">=", Decimal("-999.9"))),
        ("date < timestamp '2024-01-01 12:00'", ("date", "<=", date(2024, 1, 1))),
        ("date >= timestamp '2024-01-01 12:00'", ("date", ">", date(2024, 1, 1))),
        ("date = timestamp '2024-01-01 00:00'", ("date", "=", date(2024, 1, 1))),
        ("t < '2024-01-01 00:00:00.0000005'", ("t", "<=", datetime(2024, 1, 1))),
        ("t >= '2024-01-01 00:00:00.0000005'", ("t", ">", datetime(2024, 1, 1))),
    ],
)
def test_lossy_literals_compare_exactly(text, expected):
    assert one(text) == expected


def test_lists_omit_unrepresentable_literals():
    tree = parse("n in (1, 2.5, 300, 1.0, -1)", SCHEMA)
    assert tree == In(ID["n"], pa.array([-1, 1], pa.int8()))
    assert one("n in (300, 0.5)") == ("n", ">", 127)
    assert parse("s not in ('b', 'a')", SCHEMA) == Not(In(ID["s"], pa.array(["b", "a"])))
    assert parse("x in (x'01')", SCHEMA) == In(ID["x"], pa.array([b"\1"]))
    assert parse("b in (true)", SCHEMA) == In(ID["b"], pa.array([True]))


def test_structure():
    tree = parse("m = 1 or m = 2 and not (s is null or s like 'a\\_\\%\\\\%')", SCHEMA)
    assert isinstance(tree, Or)
    second = tree.children[1]
    assert isinstance(second, And)
    assert second.children[1:] == (Not(IsNull(ID["s"])), Not(Prefix(ID["s"], "a_%\\")))
    assert parse("TRUE AND m IS NOT NULL", SCHEMA) == Not(IsNull(ID["m"]))
    assert parse("true", SCHEMA) == TRUE
    between = parse("m between 1 and 2 and b", SCHEMA)
    assert isinstance(between, And)
    assert [getattr(c, "op", None) for c in between.children] == [
        CompareOp.GE,
        CompareOp.LE,
        CompareOp.EQ,
    ]
    assert isinstance(parse("m not between 1 and 2", SCHEMA), Or)


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("", 1, "is empty"),
        ("   ", 1, "is empty"),
        ("m", 2, "expected a comparison after column 'm'"),
        ("m =", 4, "expected a column or a literal after =, found end of the text"),
        ("m = 3 4", 7, "is unexpected here"),
        ("m = 3)", 6, "is unexpected here"),
        ("(m = 3", 7, "to close the parenthesis of character 1"),
        ("m = = 3", 5, "expected a column or a literal"),
        ("m = s", 3, "type int64 does not compare with one of string"),
        ("m + 1 = 'a'", 7, "strings are in single quotes"),
        ("t = z", 3, "does not compare"),
        ("m + vaule > 1", 5, "no column 'vaule'"),
        ("m + (b and b) > 1", 6, "a condition is not a value"),
        ("m + 1", 1, "a value is not a condition"),
        ("(m + 1) and b", 2, "a value is not a condition"),
        ("m + b > 1", 3, "+ takes numbers"),
        ("m between symmetric 1 and 2", 11, "write the lower end first"),
        ("m between 1 and s", 17, "does not compare"),
        ("m in (1, s)", 10, "does not compare"),
        ("m in (1, n + null)", 14, "nothing equals null"),
        ("s = null || 'a'", 5, "nothing equals null"),
        ("m not is null", 7, "expected a comparison after not"),
        ('s = "a"', 5, "strings are in single quotes"),
        ("m = null", 5, "is null or is not null"),
        ("m in ()", 7, "expected a literal in the list"),
        ("m in 3", 6, "expected '(' after in"),
        ("m in (1 2)", 9, "to close the list"),
        ("m is 3", 6, "expected 'null' after is"),
        ("m between 1 or 2", 13, "between the two ends"),
        ("m not 3", 7, "expected a comparison"),
        ("b not", 6, "expected a comparison"),
        ("3", 1, "is not a condition"),
        ("'a'", 1, "is not a condition"),
        ("and m = 1", 1, "expected a column, a literal"),
        ("m = 1 and", 10, "found end of the text"),
        ("m = -", 6, "expected a number after -"),
        ("m = --3", 6, "expected a number, a column or ( after -"),
        ("m = 'a'", 5, "write a number"),
        ("s = 3", 5, "write a string"),
        ("s = x'00'", 5, "write a string"),
        ("x = 'a'", 5, "write x'...'"),
        ("b = 1", 5, "write true or false"),
        ("date = 3", 8, "write date"),
        ("t = 3", 5, "write timestamp"),
        ("m = date '2024-01-01'", 5, "write a number"),
        ("f = 1e39", 5, "outside the range of column 'f'"),
        ("g = 1e309", 5, "outside the range"),
        ("m = 1e401", 5, "outside the range of every column type"),
        ("m = 1e99999999999999999999", 5, "outside the range of every column type"),
        ("m = " + "9" * 401, 5, "at most 400 characters"),
        ("date = '2023-02-29'", 8, "is not a valid date or time"),
        ("date = '2024-1-1'", 8, "is not a valid date or time"),
        ("date = date '2024-01-01 10:00'", 8, "is not a valid date or time"),
        ("date = date '0000-01-01'", 8, "is not a valid date or time"),
        ("t = timestamp '2024-01-01 24:00'", 5, "is not a valid date or time"),
        ("t = timestamp '2024-01-01 10:60'", 5, "is not a valid date or time"),
        ("z = timestamp '2024-01-01 10:00+99:00'", 5, "is not a valid date or time"),
        ("t = timestamp '2024-01-01 10:00Z'", 5, "omit the time zone"),
        ("t = timestamp 5", 15, "expected a quoted text"),
        ("t in (timestamp 5)", 17, "expected a quoted text"),
        ("x = x'0'", 5, "even number of hex digits"),
        ("x = x'0g'", 5, "even number of hex digits"),
        ("s = 'abc", 5, "no closing '"),
        ('"abc = 1', 1, 'no closing "'),
        ("m = 3; drop", 6, "';' is not allowed here"),
        ("m = \0", 5, "is not allowed here"),
        ("m = \ud800", 5, "is not allowed here"),
        ("s = '\ud800'", 5, "lone surrogate"),
        ("m | 3", 3, "is not allowed here"),
        ("__import__('os')", 1, "__import__(...) is a function, and there are none here"),
        ("b or lower(s) = 'a'", 6, "lower(...) is a function, and there are none here; use ilike"),
        ("s like '_" + "a" * 1_000 + "'", 8, "at most 1000 characters"),
        ("s like 'a%' escape 'xy'", 20, "one quoted character after escape"),
        ("s like 'a%' escape '%'", 20, "one quoted character after escape"),
        ("s like 'ax' escape 'x'", 8, "x may precede only %, _ or another x"),
        ("m ilike 'a'", 9, "ilike needs a string column"),
        ("m + 1 like 'a'", 12, "the value has type int64"),
        ("s like 'a\\'", 8, "\\ may precede"),
        ("s like 'a\\b%'", 8, "\\ may precede"),
        ("s like 3", 8, "expected a quoted pattern after like"),
        ("m like 'a%'", 8, "needs a string column"),
        (
            "(" * (MAX_DEPTH + 1) + "m = 1" + ")" * (MAX_DEPTH + 1),
            MAX_DEPTH + 1,
            "are nested more than",
        ),
        ("m in (" + "1," * MAX_LIST + "1)", 6 + 2 * MAX_LIST + 1, "at most 100000 values"),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_refused_with_its_position(text, at, words):
    with pytest.raises((InvalidArgument, NotFound)) as caught:
        parse(text, SCHEMA)
    assert caught.value.details["position"] == str(at)
    assert f"at character {at}: " in caught.value.message
    assert words in caught.value.message
    assert len(caught.value.message) < 400


def test_unknown_columns_are_not_found():
    with pytest.raises(
        NotFound, match=r"at character 7: no column 'nope'; the columns are: s, n, m"
    ):
        parse("b and nope = 1", SCHEMA)
    with pytest.raises(NotFound, match=r"no column 'abc'; .*; strings are in single quotes"):
        parse("s = abc", SCHEMA)
    with pytest.raises(NotFound, match="no column 'M'; did you mean 'm'"):
        parse("M = 1", SCHEMA)
    with pytest.raises(NotFound, match="no column 'dtae'; did you mean 'date'"):
        parse("dtae = 1", SCHEMA)


@pytest.mark.full
def test_limits_on_the_whole_text():
    with pytest.raises(InvalidArgument, match="1048576 bytes"):
        parse("m = 1" + " " * MAX_TEXT_BYTES, SCHEMA)
    with pytest.raises(InvalidArgument, match="1048576 bytes"):
        parse("s = '" + "é" * (MAX_TEXT_BYTES // 2) + "'", SCHEMA)
    with pytest.raises(InvalidArgument, match="not int"):
        parse(5, SCHEMA)  # type: ignore[arg-type]
    parse("not " * 16_000 + "b", SCHEMA)
    for word, kind in (("m > {}", Or), ("m = {}", In)):
        wide = parse(" or ".join(word.format(i) for i in range(5_000)), SCHEMA)
        assert isinstance(wide, kind)
        assert len(wide.children if isinstance(wide, Or) else wide.values) == 5_000
    with pytest.raises(InvalidArgument, match="at most 1000 values"):
        parse("m + 0 in (" + "1," * MAX_VALUES + "1)", SCHEMA)
    with pytest.raises(InvalidArgument, match="at most 100000 conditions"):
        parse("b or " * MAX_CONDITIONS + "b is null or b is null", SCHEMA)
    deep = "(" * MAX_DEPTH + "m = 1" + ")" * MAX_DEPTH
    assert parse(deep, SCHEMA) == parse("m = 1", SCHEMA)
