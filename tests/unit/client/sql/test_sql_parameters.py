"""Values of parameters of a query: exact, or refused."""

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nyala.client.sql.parameters import MAX_DEPTH
from nyala.client.sql.query import run_sql
from nyala.common.errors import InvalidArgument
from tests.unit.client.support.sql_tables import TablesInMemory


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def shown(value: Any) -> Any:
    found = run_sql("select ? as v", TablesInMemory({}), [value])
    return found.column("v")[0].as_py()


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (2**127 - 1, Decimal(2**127 - 1)),
        (-(2**127), Decimal(-(2**127))),
        (Decimal("9" * 38), Decimal("9" * 38)),
        (Decimal("0." + "7" * 37), Decimal("0." + "7" * 37)),
        (Decimal("1E+37"), Decimal(10**37)),
        (np.int64(-3), -3),
        (np.uint64(2**63), 2**63),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        ([np.int64(1), 2], [1, 2]),
        ({"a": np.int64(1)}, {"a": 1}),
        (np.datetime64("2026-01-02"), date(2026, 1, 2)),
        (np.datetime64("2026-01-02T03:04:05.000006000", "ns"), datetime(2026, 1, 2, 3, 4, 5, 6)),
        (np.datetime64("NaT"), None),
        (pd.Timestamp("2026-01-02T03:04:05.000006"), datetime(2026, 1, 2, 3, 4, 5, 6)),
        ("a'; drop table t; --\0", "a'; drop table t; --\0"),
        (b"\xff\0", b"\xff\0"),
    ],
    ids=str,
)
def test_value_reaches_the_query_exactly(given: Any, value: Any):
    found = shown(given)
    assert (type(found), found) == (type(value), value)


def test_time_difference_of_numpy_is_an_interval():
    assert shown(np.timedelta64(5, "s")).nanoseconds == 5_000_000_000


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (2**127, "parameter 1 is the integer 170"),
        (-(2**127) - 1, "128 bits"),
        ([1, 2**200], "128 bits"),
        ({"a": [2**127]}, "128 bits"),
        (Decimal("9" * 39), "38 digits"),
        (Decimal("1E-38"), "38 digits"),
        (Decimal("1E+38"), "38 digits"),
        (np.datetime64("2026-01-02T03:04:05.000006001", "ns"), "microseconds; round it"),
        (pd.Timestamp("2026-01-02T03:04:05.000006001"), "microseconds; round it"),
        (pd.Timedelta(1, "ns"), "microseconds; round it"),
        (timedelta, "Unable to transform"),
        (nested(MAX_DEPTH + 1), "within each other"),
        (nested(5_000), "within each other"),
        ("\ud800", "UTF-8"),
    ],
)
def test_value_that_would_be_changed_is_refused(given: Any, text: str):
    with pytest.raises(InvalidArgument, match=text):
        shown(given)


def test_error_names_the_parameter():
    with pytest.raises(InvalidArgument, match=r"parameter \$most is the integer"):
        run_sql("select $most", TablesInMemory({}), {"most": 2**127})
    with pytest.raises(InvalidArgument, match="parameter 2 is the decimal"):
        run_sql("select ?, ?", TablesInMemory({}), [1, Decimal("9" * 39)])


@pytest.mark.parametrize("query", [None, 5, b"select 1", "select '\ud800'"])
def test_query_that_is_no_text_is_refused(query: Any):
    with pytest.raises(InvalidArgument):
        run_sql(query, TablesInMemory({}))
