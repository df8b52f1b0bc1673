"""Closed time: hybrid times that a leader closes for its followers, and their age at the reader.

A leader that could answer a read at T may publish T: a majority has confirmed it with clocks at or above T,
every entry at or below T is applied, and no prepared transaction can become visible there. It publishes the
times of clients' reads. It also runs rounds of its own, at most one a heartbeat interval and on the
heartbeats themselves, while entries lie above the last closed time or stale reads arrive. The closed time of
an idle group does not advance.
"""

from nyala.common.errors import Unavailable
from nyala.common.hybrid_time import to_micros
from nyala.raft.messages import AppendEntries
from nyala.raft.node import RaftNode
from nyala.replica.context import ReplicaContext
from nyala.replica.member.leadership_watch import LeadershipWatch
from nyala.replica.member.reading.pending_reads import PendingReads, ReadKind
from nyala.replica.member.reading.read_lease import ReadLease

KEEP_FRESH_MS = 10_000
"""Time for which a leader advances its closed time after a stale read that failed, in milliseconds."""
NO_DEADLINE_US = 1 << 62


class ClosedTime:
    """The closed time of one member. On the loop only.

    Args:
        context: the process.
        node: the core.
        leadership_watch: observer of the member's leadership.
        reads: pending reads; a round that closes a time is one of them.
        lease: the read lease, which such a round extends.
    """

    def __init__(
        self,
        context: ReplicaContext,
        node: RaftNode,
        leadership_watch: LeadershipWatch,
        reads: PendingReads,
        lease: ReadLease,
    ) -> None:
        self._lease = lease
        self._context = context
        self._node = node
        self._leadership_watch = leadership_watch
        self._reads = reads
        self._round_running = False
        self._requested_until_us = 0
        self._known = _ClosedAt(0, 0)  # the closed time that can be read
        self._pending = _ClosedAt(0, 0)  # the next one, valid once more entries are applied

    # ---- a leader ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Start a round if one is due. Called before the node's tick, whose heartbeats carry the round."""
        node = self._node
        if (
            not self._leadership_watch.accepting
            or self._round_running
            or not node.view.heartbeat_due
        ):
            return
        if node.last_stamp > node.closed or self._is_requested():
            self._begin()

    def _is_requested(self) -> bool:
        return self._context.env.clock.monotonic_us() < self._requested_until_us

    def _begin(self) -> None:
        node = self._node
        try:
            at = self._context.clock.now()
        except Unavailable:  # a full or slow disk: no stamp can be assigned now
            return
        number = self._lease.join_round(at)
        assert number is not None, "who accepts leads"
        self._round_running = True
        done = self._reads.add(at, number, node.last.index, NO_DEADLINE_US, ReadKind.CLOSING)
        done.add_done_callback(lambda read: self._ended(read.exception()))

    def _ended(self, _lost_leadership: BaseException | None) -> None:
        self._round_running = False

    def publish(self, at: int) -> None:
        """Publish the time of an answered read to the followers, with the next messages."""
        node = self._node
        if node.is_leader and at > node.closed:
            node.publish_closed(at)
            self._known = self._closed_at(at, self._context.clock.peek())

    # ---- a follower --------------------------------------------------------------------------------

    def received(self, message: AppendEntries) -> None:
        """Record a received closed time. Called after the node has processed the message."""
        pending = self._node.view.closed_pending or self._node.closed
        if pending > self._pending.closed:
            self._advance()
            self._pending = self._closed_at(pending, message.hlc)

    def _closed_at(self, closed: int, now: int) -> "_ClosedAt":
        """Return a closed time with the monotonic time at which it was the present."""
        age_us = max(0, to_micros(now) - to_micros(closed))
        return _ClosedAt(closed, self._context.env.clock.monotonic_us() - age_us)

    def _advance(self) -> None:
        if self._known.closed < self._pending.closed <= self._node.closed:
            self._known = self._pending

    # ---- readers -----------------------------------------------------------------------------------

    def read_time(self, max_age_ms: int, min_time: int) -> tuple[int, int] | None:
        """Return a time that can be read here now, and its age in milliseconds, rounded up.

        The age is the larger of two: by this server's monotonic clock since the message arrived, and by its
        hybrid clock, which includes the time of the message in the network.

        Args:
            max_age_ms: largest age.
            min_time: lowest time, below which history has been removed.

        Returns:
            None if there is no such time; a leader then advances its closed time for a while.
        """
        self._advance()
        known, context = self._known, self._context
        by_hybrid_us = to_micros(context.clock.peek()) - to_micros(known.closed)
        age_us = max(by_hybrid_us, context.env.clock.monotonic_us() - known.at_us)
        age_ms = max(0, -(-age_us // 1000))
        if known.closed and known.closed >= min_time and age_ms <= max_age_ms:
            return known.closed, age_ms
        if self._node.is_leader:
            self._requested_until_us = context.env.clock.monotonic_us() + KEEP_FRESH_MS * 1000
        return None


class _ClosedAt:
    """A closed time, and the monotonic time at which it was the present."""

    __slots__ = ("at_us", "closed")

    def __init__(self, closed: int, at_us: int) -> None:
        self.closed = closed
        self.at_us = at_us
