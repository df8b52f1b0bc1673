"""Errors in an expression for a new value name the column and the position in the expression."""

import pyarrow as pa
import pytest

import nyala
from nyala.client.modify.values import Assignments
from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.schema import from_arrow

SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("value", pa.float64())]), ["k"])


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("value +", InvalidArgument, "at character 8: expected a value after +"),
        ("1 + vaule", NotFound, "at character 5: no column 'vaule'; did you mean 'value'"),
        ("abs(value)", InvalidArgument, "at character 1: abs(...) is a function"),
    ],
)
def test_error_names_column_and_position(text, error, words):
    with pytest.raises(error) as caught:
        Assignments(SCHEMA, {"value": nyala.expr(text)})
    assert caught.value.message.startswith(f"the new value of column 'value': {words}")
    assert int(caught.value.details["position"]) == int(words.split()[2].rstrip(":"))
