"""Fetches of one table of a query, which DuckDB scans from several threads."""

import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.client.sql.source import TableDataset
from nyala.common.expressions.predicate import evaluate
from nyala.common.schema import from_arrow

SCHEMA = from_arrow(pa.schema([pa.field("k", pa.int64(), nullable=False)]), ["k"])
ROWS = pa.table({"k": [1, 2]}, schema=SCHEMA.arrow)
SECOND_FETCH_S = 0.2
"""Seconds in which a second fetch would begin if one were made."""


def test_scans_of_two_threads_share_one_fetch():
    fetches: list[tuple[str, ...]] = []
    fetched_twice = threading.Event()
    read: list[int] = []

    def scan() -> None:
        read.append(source.scanner().to_table().num_rows)

    other = threading.Thread(target=scan)

    def fetch(names, _where):
        fetches.append(names)
        if len(fetches) == 1:
            other.start()
            fetched_twice.wait(SECOND_FETCH_S)
        else:
            fetched_twice.set()
        return ROWS

    source = TableDataset(SCHEMA, fetch)
    scan()
    other.join()
    assert fetches == [("k",)]
    assert read == [2, 2]


def test_scan_after_a_failed_fetch_fetches_again():
    answers = [OSError("the connection broke"), ROWS]

    def fetch(_names, _where):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    source = TableDataset(SCHEMA, fetch)
    with pytest.raises(OSError, match="the connection broke"):
        source.scanner()
    assert isinstance(source.failure, OSError)
    assert source.scanner().to_table() == ROWS


def test_long_lists_that_differ_in_the_middle_are_fetched_separately():
    def among(values: list[int]) -> pc.Expression:
        """Build the filter that DuckDB makes of `k in (...)`; its text leaves out the middle values."""
        unknown = pc.scalar(pa.scalar(None, pa.bool_()))
        return pc.if_else(pc.field("k").is_valid(), pc.field("k").isin(pa.array(values)), unknown)

    def fetch(names, where):
        fetched.append(names)
        found = pa.record_batch({"k": pa.array(range(40))}, schema=SCHEMA.arrow)
        return pa.table(found).filter(evaluate(where, lambda _: found.column("k"), found.num_rows))

    fetched: list[tuple[str, ...]] = []
    source = TableDataset(SCHEMA, fetch)
    even, odd = [*range(12), 20, *range(30, 40)], [*range(12), 21, *range(30, 40)]
    assert str(among(even)) == str(among(odd))
    for values in (even, odd, even):
        assert source.scanner(filter=among(values)).to_table().column("k").to_pylist() == values
    assert len(fetched) == 2, "equal filters share a fetch"
