"""Dependencies that all replicas of a process share, in one value that the host makes."""

from collections.abc import Callable, Sized
from dataclasses import dataclass

from nyala.common.ids import ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.common.option_limits import READ_LEASE_MAX_MS
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.env.server_clock import ServerClock
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage
from nyala.raft.options import RaftOptions
from nyala.replica.clock_offsets import ClockOffsets
from nyala.replica.clocks import Clocks
from nyala.replica.log_disk import LogDiskMonitor
from nyala.replica.memory import MemoryTracker
from nyala.replica.superblock import Superblocks
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.log import Wal

STALL_MS = 100
"""Delay of a tick from which on it is counted as a stall of the event loop, in milliseconds."""
TIMER_EARLY_MS = 1
"""Milliseconds by which a timer of the event loop, and so a tick, may be early: it counts whole ones."""


class Counters:
    """Metrics of all replicas of a process, and of its log. Loop only."""

    def __init__(self, metrics: Metrics, wal: Wal, quiesced: Sized) -> None:
        counter, gauge = metrics.counter, metrics.gauge
        gauge("wal_segment_files", "Files of the log.", read=lambda: wal.stats().segments)
        gauge("wal_written_bytes", "Written since start.", read=lambda: wal.stats().bytes_written)
        gauge("wal_pending_bytes", "Not yet durable.", read=lambda: wal.stats().pending_bytes)
        gauge("wal_record_count", "Written since start.", read=lambda: wal.stats().records)
        gauge("wal_sync_count", "Syncs of rounds since start.", read=lambda: wal.stats().syncs)
        gauge("wal_moved_entries", "Written again.", read=lambda: wal.stats().moved)
        gauge(
            "wal_held_bytes",
            "Log kept for members that are away and for replicas that failed.",
            read=lambda: sum(wal.held_bytes().values()),
        )
        gauge("replica_quiesced_groups", "Groups that sleep here.", read=lambda: len(quiesced))
        self.applied = counter("replica_applied_entries", "Entries applied, of all kinds.")
        self.groups = counter("replica_applied_groups", "Groups in which they were applied.")
        self.elected = counter("replica_elections_won", "Times that a replica here became leader.")
        self.flushed = counter("replica_flushes_done", "Flushes and compactions installed.")
        self.failed = counter("replica_failures_count", "Replicas that became FAILED.")
        self.deleted = counter("replica_deleted_for_good", "Replicas removed with their tombstone.")
        self.refused = counter(
            "replica_refused_messages",
            "Not for this server, of a group that is not here, or contradicting themselves.",
            ["why"],
        )
        self.stalls = counter("loop_stalls_count", f"Event loop late by {STALL_MS} ms or more.")
        self.stalled_ms = counter("loop_stalled_ms", "Milliseconds by which it was, in all.")
        self.throttled = counter("replica_throttled_writes", "Writes that met a full queue.")

    def note_late_tick(self, by_us: int) -> None:
        """Count a tick that came `by_us` microseconds late, if that is a stall."""
        if by_us >= STALL_MS * 1000:
            self.stalls.inc()
            self.stalled_ms.inc(by_us / 1000)


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """Dependencies that all replicas of a process share.

    Attributes:
        env: the environment: clock, tasks, files, calls.
        options: options of the server.
        uuid: uuid of this server.
        directory: the data directory.
        clock: the process's hybrid clock.
        wal: the process's log.
        cmeta: consensus metadata; lane DISK.
        superblocks: lane DISK.
        counters: metrics.
        send: queues a message in the outbox: configuration with the receiver's address, group, message.
        schedule: schedules a group for this iteration of the event loop.
        changed: called when configuration, leader, role or state of a group changed.
        disk_failed: called when the log has failed; every replica of the process becomes FAILED.
        offsets: offsets of other servers' wall clocks from this one's.
        memory: memory use of the process, and its budget.
        clocks: problems of clocks, and the peers that are refused for them.
        log_disk: latency of this server's log compared with those of its peers.
    """

    env: Env
    options: Options
    uuid: ServerUuid
    directory: str
    clock: ServerClock
    wal: Wal
    cmeta: ConsensusMetadata
    superblocks: Superblocks
    counters: Counters
    send: Callable[[Configuration, TabletId, AnyMessage], None]
    schedule: Callable[[TabletId], None]
    changed: Callable[[TabletId], None]
    disk_failed: Callable[[OSError], None]
    offsets: ClockOffsets
    clocks: Clocks
    memory: MemoryTracker
    log_disk: LogDiskMonitor

    @property
    def unavailable_reason(self) -> str:
        """Reason why this process can neither vote nor acknowledge now; empty: it can."""
        failure = self.clock.failure
        if failure is None:
            return ""
        return (
            f"clock ceiling cannot be saved: {failure}; until it is, this server neither votes nor "
            "acknowledges writes: free space on its disk, or replace the disk"
        )

    def machine_directory(self, group: TabletId) -> str:
        """Directory of a group's state machine."""
        return f"{self.directory}/data/{group}"

    def staging_directory(self, group: TabletId) -> str:
        """Directory in which a copy of a group is staged."""
        return f"{self.directory}/copy/{group}"

    def raft_options(self) -> RaftOptions:
        """Return the options of the Raft node."""
        return raft_options(self.options)


def raft_options(options: Options) -> RaftOptions:
    """Return the options of a Raft node: times in ticks, rounded up."""
    tick_ms, lease_ms = options.raft_tick_ms, options.read_lease_ms
    promise_ticks = _ticks(lease_ms, tick_ms) + 1 if lease_ms else 0  # the first may come at once
    shortest_ms = max(1, tick_ms - TIMER_EARLY_MS)
    return RaftOptions(
        election_ticks=_ticks(options.election_timeout_ms, options.raft_tick_ms),
        heartbeat_ticks=_ticks(options.raft_heartbeat_ms, options.raft_tick_ms),
        max_append_bytes=options.raft_append_bytes,
        inflight_bytes=options.raft_inflight_bytes,
        cache_bytes=options.raft_cache_bytes,
        quiesce_heartbeats=-(-options.raft_quiesce_ms // options.raft_heartbeat_ms),
        eager=True,
        promise_ms=max(0, min(lease_ms, (promise_ticks - 1) * (tick_ms - TIMER_EARLY_MS))),
        promise_ticks=promise_ticks,
        restart_ticks=_ticks(READ_LEASE_MAX_MS, shortest_ms) + 1,
    )


def _ticks(time_ms: int, tick_ms: int) -> int:
    return max(1, -(-time_ms // tick_ms))
