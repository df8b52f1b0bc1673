"""Conversion of literals in a `where` text to the type of their column: exact, or an error.

Columns of integers, decimals, dates and timestamps are compared exactly with any number or time, also one
that the type cannot hold: `int_column < 2.5` means `<= 2`, `int8_column = 300` is false unless null. Columns
of float and double are compared with the literal rounded to their type.
"""

import math
import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from nyala.common.expressions.predicate import Compare, CompareOp, In, Predicate
from nyala.common.expressions.where_tokens import TokenKind, problem
from nyala.common.schema import Column

MAX_EXPONENT = 400
MAX_DECIMAL_DIGITS = 38
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_DATE = r"(\d{4})-(\d\d)-(\d\d)"
_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,18}))?)?"
_MOMENT = re.compile(rf"{_DATE}(?:[ T]{_TIME})?\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal as it is written.

    Attributes:
        kind: "number", "string", "binary", "boolean", "date" or "timestamp".
        text: the text between the quotes, or the digits with their sign.
        at: position in the where text, from 1.
    """

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return f"the {self.kind} {self.text[:40]!r}"


def kind_of(kind: TokenKind) -> str | None:
    """Return the kind of literal of a token kind; None: not a literal."""
    return {TokenKind.NUMBER: "number", TokenKind.STRING: "string", TokenKind.BINARY: "binary"}.get(
        kind
    )


def constant(literal: Literal) -> pa.Scalar:
    """Return a literal as a scalar of a type of its own: int64, decimal or double for a number.

    Raises:
        InvalidArgument: an invalid date or time, a number outside the range of double.
    """
    match literal.kind:
        case "boolean":
            return pa.scalar(literal.text == "true")
        case "string":
            return pa.scalar(literal.text, pa.string())
        case "binary":
            return pa.scalar(bytes.fromhex(literal.text), pa.binary())
        case "number":
            return _number_scalar(literal)
    micros, zoned = microseconds_of(literal)
    if micros.denominator != 1:
        raise problem(f"{literal} has more digits than microseconds; round it", literal.at)
    if literal.kind == "date":
        return pa.scalar(int(micros) // _DAY_US, pa.date32())
    return pa.scalar(int(micros), pa.timestamp("us", "UTC" if zoned else None))


def _number_scalar(literal: Literal) -> pa.Scalar:
    value = _number(literal)
    exact = "e" not in literal.text.lower()
    if exact and "." not in literal.text and -(1 << 63) <= value < 1 << 63:
        return pa.scalar(int(value), pa.int64())
    if exact:
        whole = Decimal(literal.text)
        _, digits, exponent = whole.as_tuple()
        scale = -int(exponent)
        if max(len(digits), scale) <= MAX_DECIMAL_DIGITS:
            return pa.scalar(whole, pa.decimal128(max(len(digits), scale, 1), scale))
    made = float(value)
    if not math.isfinite(made):
        raise problem(f"{literal} is outside the range of double", literal.at)
    return pa.scalar(made, pa.float64())


def compare(column: Column, op: CompareOp, literal: Literal) -> Predicate:
    """Return the comparison of a column with a literal.

    Args:
        column: left side.
        op: operator.
        literal: right side.

    Raises:
        InvalidArgument: the literal cannot be compared with the column's type.
    """
    if not _is_integral(column.type):
        return Compare(column.id, op, _plain_scalar(column, literal))
    exact = _units(column, literal)
    low, high = _limits(column.type)
    whole = math.floor(exact)
    if op in (CompareOp.EQ, CompareOp.NE):
        if whole == exact and low <= whole <= high:
            return Compare(column.id, op, _from_units(whole, column.type))
        never = (
            CompareOp.GT if op is CompareOp.EQ else CompareOp.LE
        )  # than the greatest value: false, or true; null stays
        return Compare(column.id, never, _from_units(high, column.type))
    if op in (
        CompareOp.LT,
        CompareOp.GE,
    ):  # c < x is c <= x - 1 in whole units, c >= x is c > x - 1
        whole = math.ceil(exact) - 1
    above = op in (CompareOp.GT, CompareOp.GE)
    if whole >= high:
        return Compare(
            column.id, CompareOp.GT if above else CompareOp.LE, _from_units(high, column.type)
        )
    if whole < low:
        return Compare(
            column.id, CompareOp.GE if above else CompareOp.LT, _from_units(low, column.type)
        )
    if op in (CompareOp.LT, CompareOp.GE) and exact == whole + 1:
        return Compare(column.id, op, _from_units(whole + 1, column.type))
    return Compare(
        column.id, CompareOp.GT if above else CompareOp.LE, _from_units(whole, column.type)
    )


def in_list(column: Column, literals: list[Literal]) -> Predicate:
    """Return `column in (...)`; values that the column's type cannot hold match no row."""
    if not _is_integral(column.type):
        return In(column.id, pa.array([_plain_scalar(column, v) for v in literals], column.type))
    low, high = _limits(column.type)
    exact = [_units(column, v) for v in literals]
    held = sorted({int(e) for e in exact if e.denominator == 1 and low <= e <= high})
    if not held:
        return Compare(column.id, CompareOp.GT, _from_units(high, column.type))
    return In(column.id, pa.array([_from_units(v, column.type) for v in held], column.type))


def _is_integral(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        t(kind) for t in (types.is_integer, types.is_decimal, types.is_date, types.is_timestamp)
    )


def _limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1


def _from_units(value: int, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal((value < 0, tuple(map(int, str(abs(value)))), -kind.scale)), kind)
    return pa.scalar(value, kind)


def _units(column: Column, literal: Literal) -> Fraction:
    """Return a literal in the units of an integral column: its last digit, days or microseconds."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        if literal.kind != "number":
            raise _mismatch(column, literal)
        scale: int = kind.scale if pa.types.is_decimal(kind) else 0
        return Fraction(_number(literal)) * Fraction(10) ** scale
    if literal.kind not in ("date", "timestamp", "string"):
        raise _mismatch(column, literal)
    micros, zoned = microseconds_of(literal)
    if zoned and getattr(kind, "tz", None) is None:
        raise problem(
            f"column {column.name!r} has type {kind}, without a time zone; omit the time zone",
            literal.at,
        )
    return Fraction(micros, _DAY_US if pa.types.is_date(kind) else 1)


def _number(literal: Literal) -> Decimal:
    try:
        value = Decimal(literal.text)
    except ArithmeticError:  # an exponent outside Decimal's range
        value = Decimal("Infinity")
    if not value:
        return Decimal(0)
    if not value.is_finite() or abs(value.adjusted()) > MAX_EXPONENT:
        raise problem(f"{literal} is outside the range of every column type", literal.at)
    return value


def _plain_scalar(column: Column, literal: Literal) -> pa.Scalar:
    """Return a literal as a scalar of a bool, float, double, string or binary column."""
    kind = column.type
    expected = {pa.bool_(): "boolean", pa.string(): "string", pa.binary(): "binary"}.get(
        kind, "number"
    )
    if literal.kind != expected:
        raise _mismatch(column, literal)
    if expected == "boolean":
        return pa.scalar(literal.text == "true")
    if expected == "string":
        return pa.scalar(literal.text, kind)
    if expected == "binary":
        return pa.scalar(bytes.fromhex(literal.text), kind)
    value = pa.scalar(float(_number(literal)), pa.float64()).cast(kind)
    if not math.isfinite(value.as_py()):
        raise problem(
            f"{literal} is outside the range of column {column.name!r}, {kind}", literal.at
        )
    return value


def _mismatch(column: Column, literal: Literal) -> Exception:
    family = {pa.bool_(): "true or false", pa.string(): "a string: '...'", pa.binary(): "x'...'"}
    wanted = family.get(column.type, "a number")
    if pa.types.is_date(column.type):
        wanted = "date 'YYYY-MM-DD'"
    elif pa.types.is_timestamp(column.type):
        wanted = "timestamp 'YYYY-MM-DD hh:mm:ss'"
    return problem(
        f"column {column.name!r} has type {column.type} and cannot be compared with {literal}; "
        f"write {wanted}",
        literal.at,
    )


def microseconds_of(literal: Literal) -> tuple[Fraction, bool]:
    """Return a date or time in microseconds since the epoch, and whether it has a time zone (else UTC)."""
    found = _MOMENT.fullmatch(literal.text.strip())
    example = "date '2024-02-29'" if literal.kind == "date" else "timestamp '2024-02-29 13:30:00.5'"
    wrong = problem(
        f"{literal} is not a valid date or time; write for instance {example}", literal.at
    )
    if found is None or (literal.kind == "date" and (found[4] or found[8])):
        raise wrong
    year, month, day, hour, minute, second = (int(g or 0) for g in found.groups()[:6])
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        raise wrong from None
    if hour > 23 or minute > 59 or second > 59:
        raise wrong
    seconds = Fraction(days * 86_400 + hour * 3_600 + minute * 60 + second)
    if found[7]:
        seconds += Fraction(int(found[7]), 10 ** len(found[7]))
    return (seconds - _zone_seconds(found[8], wrong)) * 1_000_000, found[8] is not None


def _zone_seconds(zone: str | None, wrong: Exception) -> int:
    if zone is None or zone in ("Z", "UTC"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > 15 or minutes > 59:
        raise wrong
    return (hours * 3_600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
