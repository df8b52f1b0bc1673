"""Limits and description of each option, in the order of `options.Options`."""

from collections.abc import Mapping
from typing import Any

import msgspec

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

ENTRY_MAX_BYTES = 48 * MIB
"""Maximum size of a log entry, in bytes, that any option allows: less than a frame of the peer port and a
record of the log (`wire/peers.py`, `wal/segments/format.py`), independent of the options of other servers.
"""

READ_LEASE_MAX_MS = 150
"""Maximum read lease that any option allows, in milliseconds: a restarted server takes part in no election
for so long, because it does not know what it has promised.
"""


def _number(least: int, most: int, sentence: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=sentence)


def _choice(pattern: str, sentence: str) -> Any:
    return msgspec.Meta(pattern=pattern, description=sentence)


LIMITS: Mapping[str, msgspec.Meta] = {
    # ---- copies of replicas
    "copy_rate_bytes": _number(
        0, 1 << 40, "Bytes per second of all copies into one server; 0: unlimited."
    ),
    "copy_busy_rate_bytes": _number(
        0,
        1 << 40,
        "The same, into and out of one server, while other writes use its log.",
    ),
    "copy_sessions_max": _number(
        1, 1000, "Concurrent copies of replicas out of one server, and into one."
    ),
    "copy_staged_bytes": _number(
        1,
        1 << 50,
        "Files of running copies, into one server and out of it; further copies wait.",
    ),
    "copy_session_ttl_ms": _number(
        100,
        3_600_000,
        "Silence of a copy after which its source drops the files and log kept for it.",
    ),
    "copy_retry_ms": _number(0, 3_600_000, "Silence of the source after which a copy fails."),
    "copy_wait_ms": _number(
        0, 86_400_000, "Time for which the log is kept for a copy that is not a member yet."
    ),
    "copy_chunk_bytes": _number(1, 8 << 20, "Size of the pieces of a file; each has a checksum."),
    # ---- repair of tablets
    "repair": msgspec.Meta(
        pattern="^(on|off)$",
        description="Replacement of lost replicas and removal of surplus ones, by the masters.",
    ),
    "repair_interval_ms": _number(
        10, 3_600_000, "Interval at which a master checks which tablets need repair."
    ),
    "member_failed_after_ms": _number(
        100, 604_800_000, "Silence towards its leader after which a replica is replaced."
    ),
    "repairs_per_server": _number(1, 1000, "Concurrent repairs that add a replica to one server."),
    "repairs_max": _number(1, 100_000, "Concurrent repairs that add a replica, in all."),
    # ---- memory (docs/internals/memory.md)
    "memory_budget_bytes": _number(
        64 * MIB, 4096 * GIB, "Memory of everything that is counted; above it writes are throttled."
    ),
    "raft_cache_total_bytes": _number(
        0,
        1024 * GIB,
        "Log entries in memory over all tablets; those of idle tablets are evicted first.",
    ),
    "write_queue_total_bytes": _number(
        1 << 10, 1024 * GIB, "As write_queue_bytes, over all tablets of a server."
    ),
    "scan_memory_bytes": _number(
        1 << 20, 1024 * GIB, "Memory of open scans; above it new scans are throttled."
    ),
    "catalog_flush_bytes": _number(
        1, 64 * GIB, "Memory of a master's catalog above which it is flushed."
    ),
    "catalog_history_max_age_s": _number(
        1, 10_000_000, "Age above which old versions of catalog rows are removed."
    ),
    # ---- consensus
    "raft_tick_ms": _number(
        1, 1000, "Tick of Raft's timers; the next two options are rounded up to it."
    ),
    "raft_heartbeat_ms": _number(1, 10_000, "Interval of a leader's heartbeats."),
    "election_timeout_ms": _number(
        10, 60_000, "Minimum election timeout n; timeouts are drawn from [n, 2n)."
    ),
    "raft_quiesce_ms": _number(
        0,
        3_600_000,
        "Idle time after which a tablet sends no heartbeats until it is used; 0: never.",
    ),
    "read_lease_ms": _number(
        0,
        READ_LEASE_MAX_MS,
        "Time for which a follower that hears its leader promises to elect no other one, so that the leader "
        "answers look-ups and reads of the latest rows by itself; 0: each read asks a majority.",
    ),
    "raft_append_bytes": _number(
        1, 16 * MIB, "Entries in one message to a follower, at least one entry (etcd: 1 MiB)."
    ),
    "raft_inflight_bytes": _number(
        1, GIB, "Unacknowledged entries sent to one follower of one tablet."
    ),
    "raft_cache_bytes": _number(
        0, GIB, "Applied entries kept in memory per tablet for slow followers."
    ),
    # ---- write-ahead log
    "wal_sync": _choice(
        "^(always|interval|never)$",
        "When writes are synced: before the acknowledgement, or later (not durable).",
    ),
    "wal_sync_interval_ms": _number(
        1, 3_600_000, "With wal_sync=interval, the time of writes that a power failure may lose."
    ),
    "wal_reserve_mb": _number(
        0, 1 << 20, "Free disk space reserved for flushes; below it writes are throttled."
    ),
    "wal_cleanup_mb": _number(
        0, 1 << 20, "Part of wal_reserve_mb that the log may use to shrink on a full disk."
    ),
    "wal_segment_mb": _number(1, 1024, "Preallocated length of a log segment (Kudu: 8)."),
    "wal_queue_bytes": _number(
        64 * KIB, GIB, "Entries waiting to be written to the log, over all tablets."
    ),
    "wal_retain_mb": _number(
        0, 1 << 20, "Flushed entries kept for slow followers, over all tablets."
    ),
    "wal_retain_for_peers_mb": _number(
        0, 1 << 20, "Log kept for members that are down; a member that needs more is copied."
    ),
    # ---- slow logs
    "slow_log_factor": _number(
        2,
        1_000,
        "Ratio to the fastest peer's log latency above which a log is slow; leaders move away.",
    ),
    "slow_log_least_ms": _number(1, 60_000, "Latency below which a log is never slow."),
    "slow_log_after_ms": _number(1_000, 60_000, "Time over which log latencies are compared."),
    "slow_log_backoff_ms": _number(
        0, 3_600_000, "Minimum interval at which a tablet's leader moves because of a slow log."
    ),
    # ---- writes
    "write_max_bytes": _number(
        KIB, ENTRY_MAX_BYTES, "Largest batch of one write; a larger one is refused."
    ),
    "write_queue_bytes": _number(
        KIB, 4 * GIB, "Writes in flight per tablet; above it writes are throttled."
    ),
    "write_timeout_ms": _number(1, 3_600_000, "Deadline of a write that sets none."),
    "apply_group_ops": _number(
        1, 1 << 16, "Operations applied in one job (about 2 ms of the apply thread)."
    ),
    "apply_group_bytes": _number(1, GIB, "Payload applied in one job, at least one operation."),
    "client_result_ttl_s": _number(
        1, 10_000_000, "Time for which results of writes are kept for retries, by entry timestamps."
    ),
    "client_results_bytes": _number(
        64 * KIB,
        GIB,
        "Memory of a tablet's results and client sessions kept for retries; the oldest go first.",
    ),
    # ---- staged transactions
    "txn_stage_bytes": _number(
        KIB, 1 << 50, "Staged batches of transactions in one tablet; further ones are throttled."
    ),
    "txn_stage_total_bytes": _number(
        KIB, 1 << 50, "As txn_stage_bytes, over all tablets of a server."
    ),
    # ---- storage
    "flush_bytes": _number(1, 64 * GIB, "Memory of a tablet above which it is flushed."),
    "flush_log_bytes": _number(
        1, 64 * GIB, "Length of a tablet's unflushed log above which it is flushed."
    ),
    "history_max_age_s": _number(
        0, 10_000_000_000, "Age above which old row versions may be removed."
    ),
    # ---- time
    "clock_max_ahead_ms": _number(
        0,
        4_000_000_000_000,
        "Maximum by which a received time may be ahead; a larger step of a clock is a jump.",
    ),
    "clock_max_offset_ms": _number(
        1,
        86_400_000,
        "Difference to a majority's clocks above which a leader transfers leadership.",
    ),
    # ---- reads
    "scan_batch_bytes": _number(
        KIB,
        16 * MIB,
        "Largest size of a scan's batches, if the scan sets none; at most 1/16 of the free memory of scans.",
    ),
    "scan_batch_rows": _number(
        1, 10_000_000, "Maximum rows of a scan's batches, if the scan sets none."
    ),
    "scanners_max": _number(1, 1_000_000, "Concurrent scans on one tablet server."),
    "read_timeout_ms": _number(1, 3_600_000, "Deadline of a read that sets none."),
    "reader_silent_ms": _number(
        100,
        86_400_000,
        "Time without reads after which a Flight client's stream and scan are closed.",
    ),
    # ---- servers
    "server_heartbeat_ms": _number(
        10,
        60_000,
        "Interval of a tablet server's reports to the leader master; to the others a quarter as often.",
    ),
    "tserver_unresponsive_ms": _number(
        100, 3_600_000, "Silence after which a tablet server counts as dead."
    ),
    "report_batch_tablets": _number(
        1, 1_000_000, "Tablets of a report that a master processes in one batch."
    ),
    "order_timeout_ms": _number(
        10, 3_600_000, "Deadline of an order from a master to a tablet server."
    ),
    "order_interval_ms": _number(
        10, 60_000, "Interval at which a master derives the orders that are due."
    ),
    "orders_per_server": _number(1, 1000, "Concurrent orders from a master to one tablet server."),
    "tablet_creation_timeout_ms": _number(
        100, 3_600_000, "Time without a leader after which a new tablet is replaced."
    ),
    "catalog_timeout_ms": _number(10, 3_600_000, "Deadline of one replication of catalog rows."),
    "catalog_batch_bytes": _number(
        KIB,
        ENTRY_MAX_BYTES,
        "Largest batch of catalog rows of one operation; a definition has at most half.",
    ),
    "replicas": _number(1, 7, "Replicas of each tablet of a table that sets none; odd."),
    "tablets_per_table_max": _number(1, 1_000_000, "Maximum tablets of a new table."),
    "locations_ttl_ms": _number(
        100, 86_400_000, "Time for which clients may cache tablet locations."
    ),
    "txn_timeout_s": _number(
        1, 86_400, "Time after which a staged transaction ends that no client has kept alive."
    ),
    "txn_prepare_timeout_ms": _number(
        10,
        600_000,
        "Time in which every tablet of a transaction must be prepared, or the attempt ends.",
    ),
    "job_ledger_days": _number(
        1,
        36_500,
        "Days for which the key of a transaction of a job is kept, so that it takes effect once.",
    ),
    "server_certificate_s": _number(
        10,
        315_360_000,
        "Time for which the certificates are valid that a master issues to servers.",
    ),
    "user_certificate_s": _number(
        10,
        2_592_000,
        "Time for which the certificates are valid that users get when they log in.",
    ),
    "jwt_issuers": msgspec.Meta(
        max_length=4096,
        description="Path of the file, on each master, of the issuers whose tokens (JWT) log users in.",
    ),
    "compute_threads": _number(1, 256, "Threads for flushes, compactions and scans."),
    # ---- shares of each user
    "user_scans_max": _number(
        1,
        1_000_000,
        "Concurrent scans of one user on one tablet server; further ones are throttled.",
    ),
    "user_write_bytes": _number(
        1,
        1024 * GIB,
        "Writes in flight of one user on one tablet server; further ones are throttled.",
    ),
    "user_calls_max": _number(
        1, 1_000_000, "Calls in flight of one user at one public port; further ones are throttled."
    ),
    "user_streams_max": _number(
        1, 1024, "Connections of one user to one stream port; further ones are throttled."
    ),
}
