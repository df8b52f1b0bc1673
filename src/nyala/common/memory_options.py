"""The tunables of memory: the budget of a process, and what its parts may have of it."""

from typing import Annotated, Any

import msgspec

from nyala.common.repair_options import RepairOptions

_MIB, _GIB = 1 << 20, 1 << 30


def _number(least: int, most: int, sentence: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=sentence)


class MemoryOptions(RepairOptions, frozen=True, kw_only=True):
    """What may be in memory; docs/internals/memory.md tells what is counted, and what happens over it."""

    memory_budget_bytes: Annotated[
        int,
        _number(
            64 * _MIB, 4096 * _GIB, "Memory of all that is counted; above it writes are throttled."
        ),
    ] = 4 * _GIB
    raft_cache_total_bytes: Annotated[
        int,
        _number(0, 1024 * _GIB, "Entries in memory over all tablets; idle tablets' go first."),
    ] = 256 * _MIB
    write_queue_total_bytes: Annotated[
        int,
        _number(1 << 10, 1024 * _GIB, "As write_queue_bytes, over all tablets of a server."),
    ] = 256 * _MIB
    scan_memory_bytes: Annotated[
        int,
        _number(1 << 20, 1024 * _GIB, "Memory of open scans; above it further ones are throttled."),
    ] = _GIB
    catalog_flush_bytes: Annotated[
        int, _number(1, 64 * _GIB, "A master's catalog memory above this is flushed to disk.")
    ] = 4 * _MIB
    catalog_history_max_age_s: Annotated[
        int, _number(1, 10_000_000, "Versions of catalog rows older than this are forgotten.")
    ] = 60
