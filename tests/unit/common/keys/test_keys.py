"""Key bytes: golden vectors, every shape of Arrow array, and damaged bytes."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nyala.common.errors import Corrupt
from nyala.common.keys import encoding as keys
from nyala.common.types import arrow_type
from tests.unit.common.support import calls, key_reference

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "keys.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: "-".join(c["types"]) + "-" + c["key"][:12])
def test_golden_keys(case):
    kinds = [arrow_type(name) for name in case["types"]]
    values = [
        key_reference.from_json(*pair) for pair in zip(case["values"], case["types"], strict=True)
    ]
    arrays = [pa.array([v], t) for v, t in zip(values, kinds, strict=True)]
    encoded = keys.encode_keys(arrays, kinds)
    assert encoded.key_at(0).hex() == case["key"]
    assert key_reference.encode(values, kinds).hex() == case["key"]
    assert keys.decode_keys(encoded, kinds) == arrays
    assert keys.encode_key([a[0] for a in arrays], kinds).hex() == case["key"]


def test_golden_keys_of_one_type_stand_in_order():
    by_types: dict[str, list[str]] = {}
    for case in GOLDEN:
        if len(case["types"]) == 1:
            by_types.setdefault(case["types"][0], []).append(case["key"])
    assert len(by_types) == 11
    assert all(found == sorted(found) for found in by_types.values())


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, -2, 3, 2**62]),
        pa.array(["", "a", "a\0b", "long" * 50]),
        pa.array([b"\0", b"\0\1", b"", b"\xff"]),
        pa.array(
            [Decimal("1.5"), Decimal("-1.5"), Decimal(0), Decimal("99.9")], pa.decimal128(9, 1)
        ),
        pa.array([date(1, 1, 1), date(1970, 1, 1), date(9999, 1, 1), date(2024, 2, 29)]),
    ],
    ids=lambda a: str(a.type),
)
def test_slices_and_chunks_encode_equal_to_their_rows(array):
    kinds = [array.type, pa.int8()]
    second = pa.array([4, 3, 2, 1], pa.int8())
    for first in (array, pa.chunked_array([array.slice(0, 1), array.slice(1)])):
        for start in range(4):
            encoded = keys.encode_keys([first.slice(start), second.slice(start)], kinds)
            expected = [
                key_reference.encode([array[i].as_py(), second[i].as_py()], kinds)
                for i in range(start, 4)
            ]
            assert [encoded.key_at(i) for i in range(len(encoded))] == expected
            assert encoded.offsets[0] == 0


def test_no_rows_and_empty_strings():
    for kinds in (
        [pa.int64()],
        [pa.string()],
        [pa.string(), pa.binary()],
        [pa.int8(), pa.string()],
        [pa.decimal128(38, 10)],
        [pa.decimal128(5, 2), pa.string()],
    ):
        encoded = keys.encode_keys([pa.array([], t) for t in kinds], kinds)
        assert len(encoded) == 0
        assert [len(a) for a in keys.decode_keys(encoded, kinds)] == [0] * len(kinds)
    encoded = keys.encode_keys([pa.array(["", ""])], [pa.string()])
    assert encoded.key_at(1) == b""
    assert keys.decode_keys(encoded, [pa.string()])[0].to_pylist() == ["", ""]


def test_nulls_lengths_and_types_are_not_checked_by_encoder():
    with pytest.raises(AssertionError, match="1 nulls in a key"):
        keys.encode_keys([pa.array([1, None])], [pa.int64()])
    with pytest.raises(AssertionError, match="1 rows, not 2"):
        keys.encode_keys([pa.array([1, 2]), pa.array(["a"])], [pa.int64(), pa.string()])
    with pytest.raises(AssertionError, match="int64, not int32"):
        keys.encode_keys([pa.array([1])], [pa.int32()])
    with pytest.raises(AssertionError, match="double cannot be in a key"):
        keys.encode_keys([pa.array([1.0])], [pa.float64()])


@pytest.mark.parametrize(
    ("kinds", "key"),
    [
        ([pa.int64()], b"1234567"),
        ([pa.int64()], b"123456789"),
        ([pa.int8(), pa.int8()], b"1"),
        ([pa.string(), pa.int8()], b"a\0"),
        ([pa.string(), pa.int8()], b"a"),
        ([pa.string(), pa.int8()], b"a\0\2\0\0\1"),
        ([pa.string(), pa.int8()], b"a\0\0"),
        ([pa.string(), pa.int8()], b"a\0\0\x80\x80"),
        ([pa.string()], b"\xff\xfe"),
        ([pa.string(), pa.string()], b"\xff\0\0a"),
        ([pa.decimal128(2, 0)], b"\xff" * 16),
    ],
    ids=repr,
)
def test_damaged_keys_are_refused(kinds, key):
    values = [{pa.string(): "a", pa.decimal128(2, 0): Decimal(0)}.get(t, 0) for t in kinds]
    arrays = [pa.array([v], t) for v, t in zip(values, kinds, strict=True)]
    good = keys.encode_keys(arrays, kinds)
    damaged = keys.concat([good, keys.from_bytes([key])])
    with pytest.raises(Corrupt):
        keys.decode_keys(damaged, kinds)
    assert len(keys.decode_keys(good, kinds)) == len(kinds)


def test_take_concat_and_arrow_preserve_keys():
    encoded = keys.from_bytes([b"b", b"", b"aa", b"c\0"])
    assert [encoded.take([2, 0, 0]).key_at(i) for i in range(3)] == [b"aa", b"b", b"b"]
    assert len(encoded.take([])) == 0
    both = keys.concat([encoded, encoded.take([3])])
    assert [both.key_at(i) for i in range(5)] == [b"b", b"", b"aa", b"c\0", b"c\0"]
    assert len(keys.concat([])) == 0
    arrow = both.as_arrow()
    assert arrow.to_pylist() == [b"b", b"", b"aa", b"c\0", b"c\0"]
    again = keys.KeyBytes.from_arrow(arrow.slice(2, 2))
    assert [again.key_at(i) for i in range(2)] == [b"aa", b"c\0"]


def test_prefix_and_successor_bound_keys_with_prefix():
    kinds = [pa.string(), pa.int8()]
    prefix = keys.encode_prefix([pa.scalar("a")], kinds)
    whole = keys.encode_key([pa.scalar("a"), pa.scalar(127, pa.int8())], kinds)
    after = keys.encode_key([pa.scalar("a\0"), pa.scalar(-128, pa.int8())], kinds)
    assert whole.startswith(prefix)
    end = keys.successor(prefix)
    assert end is not None
    assert prefix < whole < end <= after
    assert keys.successor(b"a\xff\xff") == b"b"
    assert keys.successor(b"\xff") is None
    assert keys.successor(b"") is None
    assert keys.encode_prefix([], kinds) == b""


def test_fixed_width():
    assert keys.fixed_width([pa.int8(), pa.decimal128(3, 0), pa.date32()]) == 21
    assert keys.fixed_width([pa.int8(), pa.string()]) is None


def test_no_python_per_row():
    kinds = [pa.string(), pa.int64(), pa.binary()]

    def work(rows: int) -> int:
        text = pa.array(np.arange(rows)).cast(pa.string())
        arrays = [text, pa.array(np.arange(rows)), text.cast(pa.binary())]

        def both() -> None:
            keys.decode_keys(keys.encode_keys(arrays, kinds).take(np.arange(rows)), kinds)

        return calls.count(both)

    assert work(100_000) <= 2 * work(1_000)
