"""nyala hash v1: golden vectors, the naive implementation, avalanche, buckets, and when numba is loaded."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nyala.common.keys import encoding as keys
from nyala.common.keys import hashing
from tests.unit.common.support import key_reference

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "hashes.json").read_text())


def test_golden_hashes():
    assert len(GOLDEN) > 60
    for case in GOLDEN:
        key, seed = bytes.fromhex(case["key"]), int(case["seed"], 16)
        found = hashing.hash_one(key, seed)
        assert f"{found:016x}" == case["hash"], case
        assert hashing.buckets_of(np.array([found], np.uint64), 7)[0] == case["bucket_of_7"], case


def test_row_hash_depends_only_on_row_bytes():
    texts = [b"x" * n for n in range(40)]
    encoded = keys.from_bytes(texts)
    found = hashing.hash_bytes(encoded.offsets, encoded.data, 5)
    assert found.tolist() == [key_reference.hash_v1(t, 5) for t in texts]
    shifted = hashing.hash_bytes(encoded.offsets[7:], encoded.data, 5)
    assert shifted.tolist() == found[7:].tolist()
    assert len(set(found.tolist())) == 40


def test_each_input_bit_moves_half_of_the_output_bits():
    rng = np.random.default_rng(4)
    for size in (8, 13):
        base = rng.integers(0, 256, (64, size), dtype=np.uint8)
        for bit in range(8 * size):
            flipped = base.copy()
            flipped[:, bit // 8] ^= 1 << bit % 8
            change = _hash_rows(base) ^ _hash_rows(flipped)
            moved = np.unpackbits(change.view(np.uint8)).mean()
            assert 0.44 < moved < 0.56, (size, bit, moved)


def _hash_rows(rows):
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    return hashing.hash_bytes(offsets, rows.reshape(-1), 1)


def test_consecutive_keys_spread_evenly_and_seeds_differ():
    encoded = keys.encode_keys([pa.array(np.arange(80_000))], [pa.int64()])
    first, second = (hashing.hash_bytes(encoded.offsets, encoded.data, s) for s in (1, 2))
    for hashes in (first, second, first ^ second):
        counts = np.bincount(hashing.buckets_of(hashes, 8), minlength=8)
        assert len(counts) == 8
        assert abs(counts - 10_000).max() < 500


@pytest.mark.parametrize("buckets", [1, 2, 7, 1024, 2**31 - 1])
def test_buckets_are_the_high_word_of_the_product(buckets):
    hashes = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 0x123456789ABCDEF0]
    found = hashing.buckets_of(np.array(hashes, np.uint64), buckets)
    assert found.tolist() == [h * buckets >> 64 for h in hashes]


def test_offsets_outside_the_data_are_refused():
    data = np.zeros(4, np.uint8)
    with pytest.raises(AssertionError, match=r"offsets 0\.\.5 over 4 bytes"):
        hashing.hash_bytes(np.array([0, 5], np.int64), data, 0)
    with pytest.raises(AssertionError, match="seed -1"):
        hashing.hash_bytes(np.array([0, 4], np.int64), data, -1)


def test_numba_is_loaded_on_first_use_only():
    script = (
        "import sys\n"
        "import nyala.common.keys.encoding, nyala.common.partitioning.partition\n"
        "import nyala.common.expressions.where, nyala.common.batches\n"
        "early = [m for m in ('numba', 'pandas', 'polars', 'duckdb') if m in sys.modules]\n"
        "nyala.common.keys.hashing.kernels()\n"
        "assert not early, early\n"
        "assert 'numba' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
