"""Keys: byte order is tuple order, decoding returns the values, and the naive implementation agrees."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import Corrupt
from nyala.common.keys import encoding as keys
from nyala.common.keys import hashing
from tests.properties.support.common_strategies import KINDS, key_rows
from tests.unit.common.support import key_reference


def arrays_of(kinds, rows):
    return [pa.array(list(c), k) for c, k in zip(zip(*rows, strict=True), kinds, strict=True)]


def sortable(row):
    return tuple(v.encode() if isinstance(v, str) else v for v in row)


@given(key_rows())
def test_byte_order_is_tuple_order(case):
    kinds, rows = case
    encoded = keys.encode_keys(arrays_of(kinds, rows), kinds)
    found = [encoded.key_at(i) for i in range(len(rows))]
    assert sorted(range(len(rows)), key=lambda i: (found[i], i)) == sorted(
        range(len(rows)), key=lambda i: (sortable(rows[i]), i)
    )
    assert len(set(found)) == len({sortable(r) for r in rows})


@given(key_rows(), st.data())
def test_decoding_any_slice_returns_the_values(case, data):
    kinds, rows = case
    start = data.draw(st.integers(0, len(rows) - 1))
    arrays = [a.slice(start) for a in arrays_of(kinds, rows)]
    encoded = keys.encode_keys(arrays, kinds)
    assert keys.decode_keys(encoded, kinds) == arrays
    for i, row in enumerate(rows[start:]):
        assert encoded.key_at(i) == key_reference.encode(list(row), kinds)


@given(KINDS, st.lists(st.binary(max_size=24), min_size=1, max_size=4))
def test_any_bytes_are_decoded_or_refused(kinds, texts):
    encoded = keys.from_bytes(texts)
    try:
        arrays = keys.decode_keys(encoded, kinds)
    except Corrupt:
        return
    again = keys.encode_keys(arrays, kinds)
    assert [again.key_at(i) for i in range(len(texts))] == texts


@given(key_rows(), st.data())
def test_prefix_and_successor_bound_all_keys_with_prefix(case, data):
    kinds, rows = case
    shared = data.draw(st.integers(0, len(kinds)))
    encoded = keys.encode_keys(arrays_of(kinds, rows), kinds)
    scalars = [pa.scalar(v, k) for v, k in zip(rows[0][:shared], kinds, strict=False)]
    low = keys.encode_prefix(scalars, kinds)
    high = keys.successor(low) if shared < len(kinds) else low + b"\0"
    for i, row in enumerate(rows):
        key = encoded.key_at(i)
        inside = key >= low and (high is None or key < high)
        assert inside == (sortable(row[:shared]) == sortable(rows[0][:shared]))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.integers(0, 2**64 - 1))
def test_hashes_equal_reference_implementation(texts, seed):
    encoded = keys.from_bytes(texts)
    found = hashing.hash_bytes(encoded.offsets, encoded.data, seed).tolist()
    assert found == [key_reference.hash_v1(t, seed) for t in texts]
