"""Limits and description of every option, in the order of `options.Options`."""

from collections.abc import Mapping
from typing import Any

import msgspec

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

ENTRY_MAX_BYTES = 48 * MIB
"""The most that any option lets into one entry of a log: less than a frame of the peer port and a record of
the log take (`wire/peers.py`, `wal/format.py`), whatever options the other servers have."""


def _number(least: int, most: int, sentence: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=sentence)


def _choice(pattern: str, sentence: str) -> Any:
    return msgspec.Meta(pattern=pattern, description=sentence)


LIMITS: Mapping[str, msgspec.Meta] = {
    # ---- copies of replicas
    "copy_rate_bytes": _number(
        0, 1 << 40, "All copies into one server take so much a second at most; 0: no limit."
    ),
    "copy_busy_rate_bytes": _number(
        0,
        1 << 40,
        "As copy_rate_bytes, into and out of one server while others write to its log.",
    ),
    "copy_sessions_max": _number(
        1, 1000, "Copies of replicas out of one server at a time, and into one."
    ),
    "copy_staged_bytes": _number(
        1,
        1 << 50,
        "Files of copies under way, into one server and out of it; above it further copies wait.",
    ),
    "copy_session_ttl_ms": _number(
        100, 3_600_000, "A source keeps files and log for a copy that is silent so long."
    ),
    "copy_retry_ms": _number(
        0, 3_600_000, "A copy is given up when its source is silent for so long."
    ),
    "copy_wait_ms": _number(
        0, 86_400_000, "The log is kept so long for a copy that is no member yet."
    ),
    "copy_chunk_bytes": _number(1, 8 << 20, "Of a file, sent under one checksum."),
    # ---- repair of tablets
    "repair": msgspec.Meta(
        pattern="^(on|off)$",
        description="Whether masters replace lost replicas, and remove those that are too many.",
    ),
    "repair_interval_ms": _number(
        10, 3_600_000, "A master looks this often at which tablets need repair."
    ),
    "member_failed_after_ms": _number(
        100, 604_800_000, "A replica that its leader has not heard for so long is replaced."
    ),
    "repairs_per_server": _number(
        1, 1000, "Replicas that are given to one server at a time by repair."
    ),
    "repairs_max": _number(
        1, 100_000, "Replicas that are given to servers at a time in all by repair."
    ),
    # ---- memory (docs/internals/memory.md)
    "memory_budget_bytes": _number(
        64 * MIB, 4096 * GIB, "Memory of all that is counted; above it writes are throttled."
    ),
    "raft_cache_total_bytes": _number(
        0, 1024 * GIB, "Entries in memory over all tablets; idle tablets' go first."
    ),
    "write_queue_total_bytes": _number(
        1 << 10, 1024 * GIB, "As write_queue_bytes, over all tablets of a server."
    ),
    "scan_memory_bytes": _number(
        1 << 20, 1024 * GIB, "Memory of open scans; above it further ones are throttled."
    ),
    "catalog_flush_bytes": _number(
        1, 64 * GIB, "A master's catalog memory above this is flushed to disk."
    ),
    "catalog_history_max_age_s": _number(
        1, 10_000_000, "Versions of catalog rows older than this are forgotten."
    ),
    # ---- consensus
    "raft_tick_ms": _number(
        1, 1000, "Step of Raft's timers; the two times below are rounded up to it."
    ),
    "raft_heartbeat_ms": _number(
        1, 10_000, "A leader that has nothing else to say speaks this often."
    ),
    "election_timeout_ms": _number(
        10, 60_000, "Least silence of a leader before an election; drawn from [n, 2n)."
    ),
    "raft_quiesce_ms": _number(
        0, 3_600_000, "A tablet idle for so long sends no heartbeats until used; 0: never."
    ),
    "raft_append_bytes": _number(
        1, 16 * MIB, "Entries in one message to a follower, one at least (etcd: 1 MiB)."
    ),
    "raft_inflight_bytes": _number(
        1, GIB, "Unacknowledged entries on the way to one follower of one tablet."
    ),
    "raft_cache_bytes": _number(
        0, GIB, "Applied entries kept in memory per tablet for slow followers."
    ),
    # ---- write-ahead log
    "wal_sync": _choice(
        "^(always|interval|never)$",
        "When a write is synced: before it is acknowledged, or later (then: no promises).",
    ),
    "wal_sync_interval_ms": _number(
        1, 3_600_000, "With wal_sync=interval, a power cut loses no more than this."
    ),
    "wal_reserve_mb": _number(
        0, 1 << 20, "Free disk space left for flushes: below it, writes are throttled."
    ),
    "wal_cleanup_mb": _number(
        0, 1 << 20, "Of wal_reserve_mb, what the log may use to shrink on a full disk."
    ),
    "wal_segment_mb": _number(1, 1024, "Preallocated length of a log segment (Kudu: 8)."),
    "wal_queue_bytes": _number(
        64 * KIB, GIB, "Entries on their way to the disk, over all tablets."
    ),
    "wal_retain_mb": _number(
        0, 1 << 20, "Flushed entries kept for slow followers, shared by all tablets."
    ),
    "wal_retain_for_peers_mb": _number(
        0, 1 << 20, "Log kept for members that are away; those that need more are copied."
    ),
    # ---- slow logs
    "slow_log_factor": _number(
        2, 1_000, "A log whose rounds take so many times a peer's is slow: leaders leave."
    ),
    "slow_log_least_ms": _number(1, 60_000, "A log whose rounds take less is never slow."),
    "slow_log_after_ms": _number(
        1_000, 60_000, "Rounds of the log are compared over so long a time."
    ),
    "slow_log_backoff_ms": _number(
        0, 3_600_000, "A tablet's leader leaves a slow log no more often than this."
    ),
    # ---- writes
    "write_max_bytes": _number(
        KIB, ENTRY_MAX_BYTES, "Largest write of one batch; a larger one is refused."
    ),
    "write_queue_bytes": _number(
        KIB, 4 * GIB, "Writes in flight per tablet; above it they are throttled."
    ),
    "write_timeout_ms": _number(1, 3_600_000, "Deadline of a write that names none."),
    "apply_group_ops": _number(
        1, 1 << 16, "Operations applied at one go (about 2 ms of the apply lane)."
    ),
    "apply_group_bytes": _number(1, GIB, "Payload applied at one go, one operation at least."),
    "client_result_ttl_s": _number(
        1, 10_000_000, "Results of writes are kept so long for retries, by entry stamps."
    ),
    "client_results_bytes": _number(
        64 * KIB,
        GIB,
        "Memory of a tablet's results and clients kept for retries; beyond it the oldest go.",
    ),
    # ---- storage
    "flush_bytes": _number(1, 64 * GIB, "A tablet's memory above this is flushed to disk."),
    "flush_log_bytes": _number(
        1, 64 * GIB, "A tablet whose unflushed log is longer than this is flushed."
    ),
    "history_max_age_s": _number(
        0, 10_000_000_000, "Row versions older than this may be forgotten."
    ),
    # ---- time
    "clock_max_ahead_ms": _number(
        0,
        4_000_000_000_000,
        "A time that others tell may be so far in the future; a longer step of a clock is a jump.",
    ),
    "clock_max_offset_ms": _number(
        1, 86_400_000, "A leader whose clock is further from a majority's hands over."
    ),
    # ---- reads
    "scan_batch_bytes": _number(KIB, 16 * MIB, "Size of the batches of a scan that asks for none."),
    "scan_batch_rows": _number(1, 10_000_000, "Most rows in a batch of a scan that asks for none."),
    "scanners_max": _number(1, 1_000_000, "Scans open at a time on one tablet server."),
    "read_timeout_ms": _number(1, 3_600_000, "Deadline of a read that names none."),
    "reader_silent_ms": _number(
        100,
        86_400_000,
        "A Flight client that takes nothing for so long loses its stream, and the scan.",
    ),
    # ---- servers
    "server_heartbeat_ms": _number(
        10, 60_000, "A tablet server reports to every master this often."
    ),
    "tserver_unresponsive_ms": _number(
        100, 3_600_000, "A tablet server silent for longer counts as dead."
    ),
    "report_batch_tablets": _number(
        1, 1_000_000, "Tablets that a master takes from a report at one go."
    ),
    "order_timeout_ms": _number(
        10, 3_600_000, "Deadline of an order from a master to a tablet server."
    ),
    "order_interval_ms": _number(
        10, 60_000, "A master derives the orders that are due this often."
    ),
    "orders_per_server": _number(1, 1000, "Orders under way from a master to one tablet server."),
    "tablet_creation_timeout_ms": _number(
        100, 3_600_000, "A new tablet without a leader for so long is replaced by another one."
    ),
    "catalog_timeout_ms": _number(10, 3_600_000, "Deadline of one replication of catalog rows."),
    "catalog_batch_bytes": _number(
        KIB, ENTRY_MAX_BYTES, "Largest batch of catalog rows of one operation."
    ),
    "replicas": _number(1, 7, "Copies of each tablet of a table that names no number; odd."),
    "tablets_per_table_max": _number(1, 1_000_000, "Tablets of one new table."),
    "locations_ttl_ms": _number(100, 86_400_000, "Clients may keep tablet locations this long."),
    "compute_threads": _number(1, 256, "Threads for flushes, compactions and scans."),
}
