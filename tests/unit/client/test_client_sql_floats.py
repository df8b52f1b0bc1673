"""SQL: which filters of DuckDB's plan are sent to the servers."""

import pyarrow as pa
import pytest

from nyala.client.sql import _usable
from nyala.common.schema import from_arrow

SCHEMA = from_arrow(
    pa.schema([("k", pa.int64()), ("d", pa.float64()), ("f", pa.float32()), ("s", pa.string())]),
    ["k"],
)


@pytest.mark.parametrize("text", ["k>3", "optional: s='a'", "k IS NOT NULL", "s IN ('a', 'b')"])
def test_what_means_the_same_is_sent(text):
    assert _usable(text, SCHEMA) is not None


@pytest.mark.parametrize(
    "text", ["d>1.0", "f<=2.5", "k>3 AND d>1.0", "d IS NOT NULL OR k=1", "length(s)>2", "nothing=1"]
)
def test_floats_and_what_cannot_be_said_stay_with_duckdb(text):
    """NaN is the greatest number to DuckDB and no number to `where`."""
    assert _usable(text, SCHEMA) is None
