"""Timing and memory limits of a node; times are in ticks.

The operators' options, in milliseconds, are in `common/options.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Timing and limits of one group.

    Attributes:
        election_ticks: minimum election timeout n; timeouts are drawn from [n, 2n).
        heartbeat_ticks: ticks between heartbeats; must be below `election_ticks`.
        max_append_bytes: limit of the entries in one AppendEntries, at least one entry (etcd: 1 MiB).
        inflight_bytes: limit of unacknowledged entries sent to one peer, at least one message.
        cache_bytes: limit of the applied entries kept in memory.
        quiesce_heartbeats: idle heartbeats after which a group quiesces; 0: never.
        eager: a group that never had a leader starts its first election at once, and one with only its first
            leader's entry quiesces as soon as it can, so that tables of many tablets are created faster, with
            fewer heartbeats.
        promise_ms: length in milliseconds of the promise that a follower states in its replies; see
            `reads.py`.
        promise_ticks: ticks for which it keeps that promise; they last longer than `promise_ms`.
        restart_ticks: ticks for which a new node takes part in no election, because an earlier process may
            have promised it.
    """

    election_ticks: int = 10
    heartbeat_ticks: int = 2
    max_append_bytes: int = 1 << 20
    inflight_bytes: int = 8 << 20
    cache_bytes: int = 16 << 20
    quiesce_heartbeats: int = 0
    eager: bool = False
    promise_ms: int = 0
    promise_ticks: int = 0
    restart_ticks: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ticks < self.election_ticks, f"heartbeats too slow: {self}"
        assert self.max_append_bytes > 0, f"no room for entries: {self}"
        assert self.inflight_bytes > 0, f"no room for entries: {self}"
        assert self.cache_bytes >= 0, f"no room for entries: {self}"
