"""nyala hash v1: our own stable 64-bit hash over key bytes, for partitions and for key indexes.

Its values are on disk and on the wire: they never change, whatever library changes beneath. The
definition, with vectors, is docs/internals/keys-and-hashes.md. This is the one place in `common`
that loads numba, on first use.
"""

from functools import cache
from types import ModuleType

import numpy as np
import numpy.typing as npt

MAX_SEED = _WORD = (1 << 64) - 1


@cache
def kernels() -> ModuleType:
    """Return `common/kernels`: loads numba and compiles, or reads its cache, the first time."""
    from nyala.common import kernels as loaded

    return loaded


def hash_bytes(
    offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], seed: int
) -> npt.NDArray[np.uint64]:
    """Hash each row's bytes; runs without the GIL.

    Args:
        offsets: row i is data[offsets[i]:offsets[i + 1]]; n + 1 of them.
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
    """Hash one key, without arrays and kernels: for a look-up of one row they cost more than the rest."""
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
