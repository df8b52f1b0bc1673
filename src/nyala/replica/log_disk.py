"""Comparison of the log's disk with those of other servers, and the transfer of leadership from a slow one.

A write waits for its leader's disk, however fast the followers' are. So each server measures how long a round
of its log takes, over `slow_log_after_ms`, and sends it in every batch. It is slow when a round took
`slow_log_factor` times as long as at the fastest peer, at least `slow_log_least_ms`, and most of the time was
spent waiting. Then its leaders transfer leadership to a voter that is not slow, each at most once in
`slow_log_backoff_ms`. Where all disks are slow, no leadership moves. On the loop only.
"""

import logging

from nyala.common.ids import ServerUuid, TabletId
from nyala.common.options import Options
from nyala.env.clock import Clock
from nyala.raft.messages import PeerBatch
from nyala.raft.node import RaftNode
from nyala.wal.latency import Latency

log = logging.getLogger(__name__)

MAX_LATENCY_MS = 0xFFFF
"""Largest latency that a batch can carry, in milliseconds."""
BUSY_SHARE = 0.75
SAMPLE_US = 100_000
"""Minimum interval between two samples of the latency, in microseconds."""


class LogDiskMonitor:
    """Slowness of the log of one process.

    Args:
        clock: clock of this process.
        options: the four `slow_log_*`.
        latency: latency of this process's log.
    """

    def __init__(self, clock: Clock, options: Options, latency: Latency) -> None:
        self._clock = clock
        self._options = options
        self._latency = latency
        self._peers: dict[
            ServerUuid, tuple[int, int]
        ] = {}  # by server: monotonic time, milliseconds
        self._not_before_us: dict[TabletId, int] = {}
        self._sampled_us = -SAMPLE_US
        self._slow = False
        self.own_ms = 0

    def __len__(self) -> int:
        """Number of servers whose latencies are kept."""
        return len(self._peers)

    def note(self, batch: PeerBatch) -> None:
        """Note the latency that another server's batch reports."""
        if batch.log_ms:
            self._peers[batch.sender] = self._clock.monotonic_us(), batch.log_ms

    def peer_latencies_ms(self) -> dict[ServerUuid, int]:
        """Return the recent latencies of other servers' logs, in milliseconds."""
        since_us = self._clock.monotonic_us() - 2 * self._options.slow_log_after_ms * 1000
        return {u: ms for u, (at_us, ms) in self._peers.items() if at_us > since_us}

    def mean_ms(self) -> int:
        """Return the mean latency of this server's log in milliseconds, rounded up; 0: no recent round."""
        self._sample()
        return self.own_ms

    @property
    def slow(self) -> bool:
        """True if this server's log is far slower than that of a peer."""
        self._sample()
        return self._slow

    @property
    def warning(self) -> str:
        """Warning for operators; empty: none."""
        if not self.slow:
            return ""
        best = min(self.peer_latencies_ms().values(), default=0)
        return (
            f"the log's disk is slow: a round of writes takes {self.own_ms} ms here and {best} ms at the "
            "fastest peer; leaders on this server transfer leadership. "
            "Check the disk, or move the replicas to other servers"
        )

    def _sample(self) -> None:
        now_us = self._clock.monotonic_us()
        if now_us - self._sampled_us < SAMPLE_US:
            return
        self._sampled_us = now_us
        options = self._options
        recent = self.peer_latencies_ms()
        self._peers = {u: p for u, p in self._peers.items() if u in recent}
        load = self._latency.load(options.slow_log_after_ms * 1000)
        self.own_ms = min(MAX_LATENCY_MS, -(-load.mean_us // 1000))
        best = min(recent.values(), default=MAX_LATENCY_MS)
        slow = load.busy >= BUSY_SHARE and self.own_ms >= self._limit_ms(best)
        if slow != self._slow:
            self._slow = slow
            log.warning(
                "the log's disk %s: %d ms for a round",
                "is slow" if slow else "is no longer slow",
                self.own_ms,
            )

    def _limit_ms(self, other_ms: int) -> int:
        options = self._options
        return max(options.slow_log_least_ms, options.slow_log_factor * other_ms)

    def transfer_leadership(self, group: TabletId, node: RaftNode) -> None:
        """Transfer leadership if the log here is slow, and that of an up-to-date voter is not."""
        if not self.slow or not node.is_leader or node.view.transferring:
            return
        now_us = self._clock.monotonic_us()
        if now_us < self._not_before_us.get(group, 0):
            return
        peers, successors = self.peer_latencies_ms(), node.view.successors()
        fast = [u for u in successors if u in peers and self.own_ms >= self._limit_ms(peers[u])]
        if not fast:
            return
        to = max(fast, key=lambda u: (successors[u], -peers[u]))
        self._not_before_us = {g: t for g, t in self._not_before_us.items() if t > now_us}
        self._not_before_us[group] = now_us + self._options.slow_log_backoff_ms * 1000
        log.warning(
            "a round of this server's log takes %d ms, one of %s %d ms: it leads %s next",
            self.own_ms, to, peers[to], group,
        )  # fmt: skip
        node.transfer(to)
