"""nyala hash v1: a stable 64-bit hash of key bytes, for partitions and key indexes.

Its values are on disk and on the wire and never change. docs/internals/keys-and-hashes.md has the definition
with test vectors. The only module of `common` that loads numba, on first use.
"""

from functools import cache
from types import ModuleType

import numpy as np
import numpy.typing as npt

MAX_SEED = _WORD = (1 << 64) - 1


@cache
def kernels() -> ModuleType:
    """Return the module of kernels; the first call loads numba and compiles, or reads its cache."""
    from nyala.common.kernels import cache as kernel_cache

    with kernel_cache.used():
        from nyala.common.kernels import key_bytes as loaded

    return loaded


def hash_bytes(
    offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], seed: int
) -> npt.NDArray[np.uint64]:
    """Hash each row's bytes; releases the GIL.

    Args:
        offsets: n + 1 offsets; row i is data[offsets[i]:offsets[i + 1]].
        data: the bytes of all rows.
        seed: 0..2**64-1; each use (partition level, index) has its own.
    """
    assert 0 <= seed <= MAX_SEED, f"seed {seed}"
    first, last = int(offsets[0]), int(offsets[-1])
    assert 0 <= first <= last <= len(data), f"offsets {first}..{last} over {len(data)} bytes"
    out = np.empty(len(offsets) - 1, np.uint64)
    kernels().hash_rows(offsets, data, np.uint64(seed), out)
    return out


def hash_one(key: bytes, seed: int) -> int:
    """Hash one key without arrays and kernels, which would dominate the cost of a single look-up."""
    assert 0 <= seed <= MAX_SEED, f"seed {seed}"
    h = _mix(seed ^ (len(key) + 1) * 0x9E3779B97F4A7C15 & _WORD)
    for at in range(0, len(key), 8):
        word = int.from_bytes(key[at : at + 8], "little") * 0x87C37B91114253D5 & _WORD
        word = (word << 31 | word >> 33) & _WORD
        h ^= word * 0x4CF5AD432745937F & _WORD
        h = ((h << 27 | h >> 37) * 5 + 0x52DCE729) & _WORD
    return _mix(h)


def _mix(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & _WORD
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & _WORD
    return h ^ h >> 33


def buckets_of(hashes: npt.NDArray[np.uint64], buckets: int) -> npt.NDArray[np.int32]:
    """Return (h * buckets) >> 64 of each hash, in 0..buckets-1."""
    assert 1 <= buckets < 1 << 31, f"{buckets} buckets"
    count, half = np.uint64(buckets), np.uint64(32)
    low = (hashes & np.uint64(0xFFFFFFFF)) * count >> half
    return (((hashes >> half) * count + low) >> half).astype(np.int32)
