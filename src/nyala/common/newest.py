"""Mappings with a bound: the newest entries are kept."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

ADDRESSES = 1_000
"""Number of addresses of servers for which state is kept, in mappings that would grow with each new one."""


def put(kept: dict[K, V], key: K, value: V, most: int = ADDRESSES) -> None:
    """Set an entry, which becomes the newest, and drop the oldest ones above a number.

    Args:
        kept: the mapping, oldest entries first.
        key: the entry's key.
        value: the entry's value.
        most: number of entries to keep.
    """
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
