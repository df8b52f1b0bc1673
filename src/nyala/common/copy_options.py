"""The tunables of copies of replicas, as `common/options.py` has all others."""

from typing import Annotated, Any

import msgspec


def _number(least: int, most: int, sentence: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=sentence)


class CopyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How replicas are copied from one server to another."""

    copy_rate_bytes: Annotated[
        int,
        _number(
            0, 1 << 40, "All copies into one server take so much a second at most; 0: no limit."
        ),
    ] = 0
    copy_busy_rate_bytes: Annotated[
        int,
        _number(
            0,
            1 << 40,
            "As copy_rate_bytes, into and out of one server while others write to its log.",
        ),
    ] = 100_000_000
    copy_sessions_max: Annotated[
        int, _number(1, 1000, "Copies of replicas out of one server at a time, and into one.")
    ] = 10
    copy_staged_bytes: Annotated[
        int,
        _number(
            1,
            1 << 50,
            "Files of copies under way, into one server and out of it; above it further copies wait.",
        ),
    ] = 128 << 30
    copy_session_ttl_ms: Annotated[
        int,
        _number(100, 3_600_000, "A source keeps files and log for a copy that is silent so long."),
    ] = 60_000
    copy_retry_ms: Annotated[
        int, _number(0, 3_600_000, "A copy is given up when its source is silent for so long.")
    ] = 60_000
    copy_wait_ms: Annotated[
        int,
        _number(0, 86_400_000, "The log is kept so long for a copy that is no member yet."),
    ] = 600_000
    copy_chunk_bytes: Annotated[int, _number(1, 8 << 20, "Of a file, sent under one checksum.")] = (
        4 << 20
    )
