"""Limits that a process has reached: memory, log, disk and copies; sentences for `nyala cluster ksck`.

Each is reported for as long as its cause lasts. On the loop only.
"""

from collections.abc import Iterator

from nyala.common.metrics import Metrics
from nyala.common.options import MIB
from nyala.replica.context import ReplicaContext
from nyala.replica.copy.manager import CopyManager
from nyala.replica.memory import SESSIONS_SHARE


def reached(context: ReplicaContext, copies: CopyManager) -> Iterator[str]:
    """Yield a sentence for each limit that is exceeded: the limit, what waits for it, and what to do."""
    if context.memory.over_budget_reason:
        yield context.memory.over_budget_reason
    excess = context.memory.sessions_excess_bytes
    if excess > context.memory.budget_bytes // SESSIONS_SHARE:
        yield (
            f"what is kept for retries of clients has {excess // MIB} MiB more than the part of "
            f"memory_budget_bytes for it, 1/{SESSIONS_SHARE}: tablets keep less from their next writes on; "
            "lower client_results_bytes or client_result_ttl_s, or raise the budget"
        )
    yield from _log(context)
    yield from _copies(context, copies)


def _log(context: ReplicaContext) -> Iterator[str]:
    options, stats = context.options, context.wal.stats()
    if stats.disk_error is not None:
        yield (
            f"the log cannot grow, and writes are refused here: {stats.disk_error}; free space on its disk, "
            "and it goes on by itself"
        )
    if stats.segments <= max(2, options.wal_retain_mb // options.wal_segment_mb):
        return
    held = sum(context.wal.held_bytes().values())
    if held > options.wal_retain_for_peers_mb * MIB:
        yield (
            f"the log keeps {held} bytes for members that are away and for replicas that failed, more than "
            f"wal_retain_for_peers_mb ({options.wal_retain_for_peers_mb}) allows: those who need the most "
            "will need a copy"
        )
    size_mb = stats.segments * options.wal_segment_mb
    max_mb = options.wal_retain_mb + options.wal_retain_for_peers_mb
    if size_mb > max_mb:
        pinned_by = f" for {stats.pinned_by[0]}" if stats.pinned_by else ""
        yield (
            f"the log has {size_mb} MiB, more than wal_retain_mb and wal_retain_for_peers_mb ({max_mb} "
            f"together), and its oldest segment stays{pinned_by}: flushes are behind; look at that tablet "
            "and at the disk"
        )


def _copies(context: ReplicaContext, copies: CopyManager) -> Iterator[str]:
    limit = context.options.copy_staged_bytes
    if copies.quota.waiting:
        yield (
            f"{copies.quota.waiting} copies to this server wait: the files of others take "
            f"{copies.quota.used_bytes} bytes, and copy_staged_bytes is {limit}"
        )
    if copies.sessions.quota.refusing:
        yield (
            f"copies that are asked of this server have to wait: the files of others take "
            f"{copies.sessions.quota.used_bytes} bytes, and copy_staged_bytes is {limit}"
        )


def expose(metrics: Metrics, copies: CopyManager) -> None:
    """Register metrics of the disk space that copies use."""
    gauge = metrics.gauge
    staged, held = copies.quota, copies.sessions.quota
    gauge("copy_staged_bytes", "Files of copies to here.", read=lambda: staged.used_bytes)
    gauge("copy_held_bytes", "Files kept for copies from here.", read=lambda: held.used_bytes)
    gauge("copy_waiting_count", "Copies to here that wait.", read=lambda: staged.waiting)
