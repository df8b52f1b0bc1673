"""Lowering of the hybrid clock's ceiling in the data directory of a stopped server.

A server that ran while its wall clock was wrong may have written a ceiling that is years ahead. It starts
there, and other servers refuse all its messages.

The ceiling keeps future stamps above all earlier stamps and confirmed reads. Every entry that this server has
acknowledged is in its log or in its files; the new ceiling is not below them. A confirmed read has the time
that a leader sent to this server; if that leader's clock was right, it was at most `clock_max_ahead_ms` ahead
of the present. The new ceiling is that far ahead of now, so above all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nyala.common.errors import Forbidden
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.common.ids import TabletId
from nyala.datadir.identity import CLOCK_FILE
from nyala.env.clock import Clock, HybridClock, write_ceiling
from nyala.env.files import Files
from nyala.env.server_clock import duration
from nyala.replica.superblock import ReplicaStage, Superblocks
from nyala.wal.dump import dump_log


@dataclass(frozen=True, slots=True)
class Lowered:
    """Result of lowering a ceiling; both values are equal if it was not too far ahead.

    Attributes:
        before: the ceiling found.
        after: the ceiling now.
    """

    before: int
    after: int


def lower(
    files: Files,
    directory: str,
    clock: Clock,
    max_ahead_ms: int,
    flush_stamp: Callable[[TabletId, str], int],
) -> Lowered:
    """Lower the ceiling to the largest time that other servers accept, unless an entry is above it; durable.

    Args:
        files: the file system.
        directory: directory of the server, locked.
        clock: clock of this machine; its wall clock has to be right.
        max_ahead_ms: the server's `clock_max_ahead_ms`.
        flush_stamp: returns the stamp of the flush point of a replica's files, by group and directory.

    Raises:
        Forbidden: there are entries with later stamps; nothing was changed.
        Corrupt, BadVersion, OSError: log, superblocks or files cannot be read; nothing was changed.
    """
    path = f"{directory}/{CLOCK_FILE}"
    before = HybridClock(clock, files, path).seen
    after = from_micros(clock.wall_us() + max_ahead_ms * 1000)
    if after >= before:
        return Lowered(before, before)
    records = (r for s in dump_log(files, f"{directory}/wal").segments for r in s.records)
    highest = max((r.stamp for r in records), default=0)
    superblocks = Superblocks(files, directory)
    for group in superblocks.groups():
        found = superblocks.load(group)
        if found is not None and found.stage == ReplicaStage.READY:
            highest = max(highest, flush_stamp(group, f"{directory}/data/{group}"))
    if highest > after:
        ahead_us = to_micros(highest) - clock.wall_us()
        raise Forbidden(
            f"{directory} has entries stamped {duration(ahead_us)} ahead of this machine's wall clock; the "
            "ceiling cannot be lowered below them. If the wall clock is right: replace this server's "
            "replicas, or, where a majority has these entries, raise clock_max_ahead_ms on all servers"
        )
    write_ceiling(files, path, after)
    return Lowered(before, after)
