"""Random conditions of `where`, each with the text of the same condition for DuckDB.

DuckDB gives infinity or an error for a division by zero, so its divisors have `nullif`; its `like` has no
escape character by default; its integers are cast to bigint, which `where` does by itself.
"""

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

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
"""Columns of a table for conditions: type and values of each."""
INTEGERS = ("k", "i8", "i16", "i32")
DECIMALS = ("d", "e")
FLOATS = ("f", "g")
KINDS = {
    "number": (*INTEGERS, *DECIMALS, *FLOATS),
    "exact": (*INTEGERS, *DECIMALS),
    "text": ("s", "u"),
    "moment": ("day", "t"),
    "flag": ("b", "c"),
    "bytes": ("x", "y"),
}
LITERALS = {
    "number": ("0", "1", "2", "-1", "3", "100", "127", "0.5", "-2.25", "1.50", "2e0", "0.1", "3000000000"),
    "exact": ("0", "1", "2", "-1", "127", "0.5", "-2.25", "1.50", "3000000000"),
    "text": ("'a'", "'it''s'", "''", "'é\"'", "'aB'", "'b_%'"),
    "moment": ("date '2020-01-02'", "timestamp '1969-12-31 23:59:59.999999'"),
    "flag": ("true", "false"),
    "bytes": (),
}  # fmt: skip
PATTERNS = (
    "a%",
    "%",
    "%a",
    "%a%",
    "_",
    "a_",
    "%_%",
    "\\%",
    "%\\_%",
    "",
    "aB",
    "É%",
    "%''%",
    "a%b_%",
    "\\\\%",
)
SIGNS = ("=", "==", "<>", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Text:
    """A condition or value.

    Attributes:
        ours: the text for `where`.
        duckdb: the text for DuckDB.
    """

    ours: str
    duckdb: str


def same(text: str) -> Text:
    """Return a text that is the same for both."""
    return Text(text, text)


@dataclass
class Conditions:
    """Generator of random conditions.

    Args:
        random: source of the choices.
    """

    random: Random

    def one(self, depth: int = 2) -> Text:
        """Return a condition."""
        if depth and self.random.random() < 0.55:
            return self.joined(depth - 1)
        test = self.random.choice(
            [self.comparison] * 4
            + [self.in_list] * 2
            + [self.pattern] * 2
            + [self.between, self.null]
        )
        return test()

    def joined(self, depth: int) -> Text:
        parts = [self.one(depth) for _ in range(self.random.randrange(1, 4))]
        if len(parts) == 1:
            return Text(f"not ({parts[0].ours})", f"not ({parts[0].duckdb})")
        word = self.random.choice([" and ", " or "])
        texts = [p.ours for p in parts], [p.duckdb for p in parts]
        return Text(*(word.join(f"({t})" for t in each) for each in texts))

    def kind(self, numbers: str = "number") -> str:
        """Return a kind of value; to DuckDB the values of a list have one type, so those are exact."""
        return self.random.choice(
            [numbers] * 5 + [k for k in KINDS if k not in ("number", "exact")]
        )

    def column(self, kind: str) -> Text:
        name = self.random.choice(KINDS[kind])
        wide = name in INTEGERS
        return Text(name, f"{name}::bigint" if wide else name)

    def literal(self, kind: str) -> Text:
        return same(self.random.choice(LITERALS[kind])) if LITERALS[kind] else self.column(kind)

    def value(self, kind: str, depth: int = 2) -> Text:
        """Return a column, a literal or an operation."""
        if depth and kind == "number" and self.random.random() < 0.4:
            op = self.random.choice("+-*/%")
            left, right = self.value(kind, depth - 1), self.value(kind, depth - 1)
            divisor = f"nullif({right.duckdb}, 0)" if op in "/%" else f"({right.duckdb})"
            return Text(f"({left.ours} {op} {right.ours})", f"(({left.duckdb}) {op} {divisor})")
        if depth and kind == "number" and self.random.random() < 0.05:
            inner = self.column(kind)
            return Text(f"-{inner.ours}", f"(-({inner.duckdb}))")
        if depth and kind == "text" and self.random.random() < 0.2:
            left, right = self.value(kind, depth - 1), self.value(kind, depth - 1)
            return Text(f"({left.ours} || {right.ours})", f"({left.duckdb} || {right.duckdb})")
        return self.literal(kind) if self.random.random() < 0.2 else self.column(kind)

    def comparison(self) -> Text:
        kind = self.kind()
        sign = self.random.choice(SIGNS)
        left, right = self.value(kind), self.value(kind)
        return Text(f"{left.ours} {sign} {right.ours}", f"{left.duckdb} {sign} {right.duckdb}")

    def in_list(self) -> Text:
        kind = self.kind("exact")
        left = self.value(kind, kind != "exact")
        values = [self.literal(kind) for _ in range(self.random.randrange(1, 4))]
        if self.random.random() < 0.3:
            values.append(same("null"))
        if self.random.random() < 0.3:
            values.append(self.value(kind, kind != "exact"))
        word = self.random.choice(["in", "not in"])
        lists = (", ".join(v.ours for v in values), ", ".join(v.duckdb for v in values))
        return Text(f"{left.ours} {word} ({lists[0]})", f"{left.duckdb} {word} ({lists[1]})")

    def between(self) -> Text:
        kind = self.kind("exact")
        made = [self.value(kind, kind != "exact") for _ in range(3)]
        word = self.random.choice(["between", "not between"])
        texts = ([m.ours for m in made], [m.duckdb for m in made])
        return Text(*(f"{t[0]} {word} {t[1]} and {t[2]}" for t in texts))

    def pattern(self) -> Text:
        left = self.value("text", 1)
        word = self.random.choice(["like", "not like", "ilike", "not ilike"])
        pattern = self.random.choice(PATTERNS)
        ours = f"{left.ours} {word} '{pattern}'"
        if self.random.random() < 0.3 and "!" not in pattern:
            pattern = pattern.replace("\\\\", "\\").replace("\\%", "!%").replace("\\_", "!_")
            ours = f"{left.ours} {word} '{pattern}' escape '!'"
            return Text(ours, f"{left.duckdb} {word} '{pattern}' escape '!'")
        return Text(ours, f"{left.duckdb} {word} '{pattern}' escape '\\'")

    def null(self) -> Text:
        value = self.value(self.kind(), 1)
        word = self.random.choice(["is null", "is not null"])
        return Text(f"{value.ours} {word}", f"({value.duckdb}) {word}")
