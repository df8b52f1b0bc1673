"""The fast path of a few plain dicts gives the same batch, or the same error."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common import batches
from nyala.common.batches import to_batches
from nyala.common.errors import NyalaError
from nyala.common.schema import from_arrow

SCHEMA = from_arrow(
    pa.schema(
        [("k", pa.int64()), ("i", pa.int8()), ("s", pa.string()), ("f", pa.float64()),
         ("b", pa.binary()), ("t", pa.bool_()), ("n", pa.decimal128(5, 2))]
    ),
    ["k"],
)  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-300, 300), st.integers(), st.floats(), st.binary(max_size=4),
    st.text(max_size=4), st.just("\ud800"),
)  # fmt: skip
ROWS = st.lists(
    st.dictionaries(st.sampled_from([*"kisfbtn", "x"]), VALUES, max_size=8), min_size=1, max_size=3
)


def outcome(rows: list[dict[str, object]], few: int) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "FEW", few)
        try:
            return [(b.schema, b.to_pydict()) for b in to_batches(rows, SCHEMA)]
        except NyalaError as err:
            return type(err), str(err)


@given(ROWS)
def test_fast_and_general_paths_give_equal_batches(rows):
    assert repr(outcome(rows, 64)) == repr(outcome(rows, 0))


def test_rows_of_exact_types_use_fast_path(monkeypatch):
    row = {"s": "x", "k": 1, "i": -128, "f": 0.5, "b": b"", "t": None}
    (long,) = to_batches([row] * 100, SCHEMA)

    def cast(*_):
        raise AssertionError("the long way casts each column")

    monkeypatch.setattr(batches, "exact_cast", cast)
    (short,) = to_batches([row, row], SCHEMA)
    assert short.schema == long.schema
    assert short.to_pylist() == [{name: row[name] for name in "kisfbt"}] * 2


@pytest.mark.parametrize("row", [{"k": True}, {"k": 1.0}, {"k": 1, "i": 300}, {"k": 1, "s": b"x"}, {"s": "x"},
                                 {"k": 1, "x": 1}, {"k": 1, "n": 1}, {}])  # fmt: skip
def test_other_rows_equal_general_path(row):
    assert repr(outcome([row], 64)) == repr(outcome([row], 0))
