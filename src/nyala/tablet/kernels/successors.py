"""Numba kernel of the change feed: which version of a key follows another one without a gap.

Rules as in key_index.py.
"""

# mypy: allow-untyped-decorators

from typing import Any

from numba import njit, types

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_U64 = types.Array(types.uint64, 1, "C", readonly=True)
_OUT_I64 = types.Array(types.int64, 1, "C")
_OUT_U8 = types.Array(types.uint8, 1, "C")


@njit(types.void(_I64, _U64, _U64, _I64, _OUT_I64, _OUT_I64, _OUT_U8), nogil=True, cache=True)
def find_successors(
    numbers: Any, ins: Any, ends: Any, order: Any, last: Any, before: Any, followed: Any
) -> None:
    """Write for each version the one of its key that ended as it began, and which ones are followed so.

    Args:
        numbers: number of each version's key; versions of a key do not overlap.
        ins: hybrid time at which each version begins.
        ends: hybrid time at which each version ends; 0: it has not.
        order: versions, in order of `ins`.
        last: -1 for each key; written to.
        before: -1 for each version; the version before it is written to it.
        followed: 0 for each version; 1 is written for those that another one follows without a gap.
    """
    for i in range(len(order)):
        version = order[i]
        key = numbers[version]
        old = last[key]
        if old >= 0 and ends[old] == ins[version]:
            before[version] = old
            followed[old] = 1
        last[key] = version
