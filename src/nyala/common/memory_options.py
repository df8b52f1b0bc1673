"""The tunables of memory: the budget of a process, and what its parts may have of it."""

from typing import Annotated, Any

import msgspec

from nyala.common.repair_options import RepairOptions

_MIB, _GIB = 1 << 20, 1 << 30


def _number(least: int, most: int, sentence: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=sentence)


class MemoryOptions(RepairOptions, frozen=True, kw_only=True):
    """What may be in memory; docs/internals/memory.md tells what is counted, and what happens over it."""

    catalog_flush_bytes: Annotated[
        int, _number(1, 64 * _GIB, "A master's catalog memory above this is flushed to disk.")
    ] = 4 * _MIB
    catalog_history_max_age_s: Annotated[
        int, _number(1, 10_000_000, "Versions of catalog rows older than this are forgotten.")
    ] = 60
