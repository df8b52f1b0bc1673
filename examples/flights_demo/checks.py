"""Checks that are counted and shown, and the comparison of two tables row for row."""

import threading
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

SHOWN = 3


@dataclass
class Checks:
    """What was checked and how it went. Any thread may add."""

    lines: list[tuple[bool, str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, good: bool, what: str, detail: str = "") -> None:
        """Note one check: what must hold, and what was seen."""
        with self._lock:
            self.lines.append((good, what, detail))

    @property
    def good(self) -> bool:
        """Whether something was checked and all of it held."""
        return bool(self.lines) and all(good for good, _, _ in self.lines)


def differences(actual: pa.Table, expected: pa.Table, keys: list[str]) -> str:
    """Return nothing if two tables hold the same rows, else the first differences in words.

    Args:
        actual: as read; its column names and types count.
        expected: cast to them.
        keys: names of the key columns, by which both are sorted.
    """
    expected = expected.select(actual.schema.names)
    wanted = pa.schema([pa.field(f.name, f.type) for f in actual.schema])
    order = [(k, "ascending") for k in keys]
    expected = expected.cast(wanted).sort_by(order).combine_chunks()
    actual = actual.cast(wanted).sort_by(order).combine_chunks()
    if actual.num_rows != expected.num_rows:
        return f"{actual.num_rows:,} rows where {expected.num_rows:,} are expected"
    if actual.equals(expected):
        return ""
    said = []
    for name in wanted.names:
        left, right = actual[name].combine_chunks(), expected[name].combine_chunks()
        same = pc.fill_null(pc.equal(left, right), False)
        both_null = pc.and_(left.is_null(), right.is_null())
        rows = pc.indices_nonzero(pc.invert(pc.or_(same, both_null)))
        for row in rows[:SHOWN].to_pylist():
            key = ", ".join(str(actual[k][row]) for k in keys)
            said.append(f"{name} of ({key}) is {left[row]}, expected {right[row]}")
        if len(rows) > SHOWN:
            said.append(f"and {len(rows) - SHOWN:,} more rows differ in {name}")
    return "; ".join(said[: 2 * SHOWN]) or "the same values, other types"
