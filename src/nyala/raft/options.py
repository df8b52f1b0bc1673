"""Timing and memory limits of a core; times are in ticks.

Rules: values only. The names that operators see, with milliseconds, live in `common/options.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Pace and limits of one group.

    Attributes:
        election_ticks: the minimum election timeout; a timeout is drawn from [n, 2n).
        heartbeat_ticks: ticks between heartbeats; must be below `election_ticks`.
        max_append_bytes: entries in one AppendEntries, one entry at least (etcd: 1 MiB).
        inflight_bytes: unacknowledged entries on the way to one peer, one message at least.
        cache_bytes: entries kept in memory after they are durable and applied.
        quiesce_heartbeats: a group idle for so many heartbeats is put to sleep; 0: never.
        eager: a group that has never had a leader does not wait for silence before its first election,
            and one that holds nothing but its first leader's entry sleeps as soon as it can: tables of
            many tablets are made sooner, and with fewer heartbeats.
    """

    election_ticks: int = 10
    heartbeat_ticks: int = 2
    max_append_bytes: int = 1 << 20
    inflight_bytes: int = 8 << 20
    cache_bytes: int = 16 << 20
    quiesce_heartbeats: int = 0
    eager: bool = False

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ticks < self.election_ticks, f"heartbeats too slow: {self}"
        assert self.max_append_bytes > 0, f"no room for entries: {self}"
        assert self.inflight_bytes > 0, f"no room for entries: {self}"
        assert self.cache_bytes >= 0, f"no room for entries: {self}"
