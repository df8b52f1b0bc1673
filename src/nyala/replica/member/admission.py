"""Admission of requests to a leader: what has to hold before anything is proposed, with errors for clients.

On the event loop only.
"""

from nyala.common.errors import NotLeader, Throttled, TooLarge, Unavailable
from nyala.common.ids import ServerUuid
from nyala.common.options import ENTRY_SLACK_BYTES
from nyala.raft.membership import Configuration
from nyala.raft.node import RaftNode
from nyala.replica.context import ReplicaContext
from nyala.replica.member.driver import RaftDriver
from nyala.replica.member.leadership_watch import LeadershipWatch
from nyala.replica.member.request_clock import RequestClock
from nyala.replica.member.transactions.prepared import PreparedTransactions

RETRY_AFTER_MS = 20


class RequestAdmission:
    """Admission of requests to one member.

    Args:
        context: the process.
        node: the member's Raft node.
        driver: has the configuration, and the state of the log's queue.
        leadership_watch: reports whether the node accepts writes.
        prepared: prepared transactions, for which writes wait.

    Attributes:
        clock: the hybrid clock, as requests use it.
    """

    def __init__(
        self,
        context: ReplicaContext,
        node: RaftNode,
        driver: RaftDriver,
        leadership_watch: LeadershipWatch,
        prepared: PreparedTransactions,
    ) -> None:
        self.clock = RequestClock(context)
        self._context = context
        self._node = node
        self._driver = driver
        self._leadership_watch = leadership_watch
        self._prepared = prepared
        self._closed = False

    async def accepting(self, deadline_us: int, above: int = 0) -> None:
        """Wait until an entry of the leader's own term is applied (S4.38).

        Checks before a proposal (schema, sessions, catalog) then see everything that earlier leaders
        committed.

        Args:
            deadline_us: monotonic deadline.
            above: also wait until stamps above it, and above the log's last entry, can be assigned.

        Raises:
            NotLeader: it does not lead. Unavailable: not in time, or the clock's ceiling cannot be saved.
        """
        leadership_watch, clock = self._leadership_watch, self._context.env.clock
        while True:
            while not leadership_watch.accepting:
                if not self._node.is_leader or self._closed:
                    raise self.not_leader()
                if clock.monotonic_us() >= deadline_us:
                    why = full_disk(self._context) or "retry"
                    raise Unavailable(
                        f"this leader has not applied an entry of its term yet; {why}"
                    )
                await leadership_watch.next_change()
            if self._context.clock.merge(max(above, self._node.last_stamp)):
                return
            await self.clock.advance_past(max(above, self._node.last_stamp))

    def check_capacity(self, size_bytes: int, inflight: int) -> None:
        """Check size and queue limits for an operation.

        Raises:
            TooLarge: it exceeds the limit. Throttled: the log's queue, the disk or the memory is full.
        """
        options = self._context.options
        limit = max(options.write_max_bytes, options.catalog_batch_bytes) + ENTRY_SLACK_BYTES
        if size_bytes > limit:
            raise TooLarge(
                f"the operation has {size_bytes} bytes; at most {limit} are replicated in one entry: send "
                "smaller batches, or raise write_max_bytes on all servers",
                {"limit": str(limit), "size": str(size_bytes)},
            )
        self._context.memory.check()
        full = inflight and inflight + size_bytes > options.write_queue_bytes
        if full or self._driver.stalled:
            self._context.counters.throttled.inc()
            raise Throttled(
                full_disk(self._context) or "the log's queue is full; wait and send again"
                if self._driver.stalled
                else f"{inflight} bytes of writes are in flight on this tablet; wait and send again",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )

    def not_leader(self) -> NotLeader:
        """Return the error of a replica that does not lead, with the leader if it is known."""
        leader = self._node.leader
        if leader is None or leader == self._context.uuid:
            why = full_disk(self._context) or "retry"
            return NotLeader(f"this replica does not lead its group, and no leader is known; {why}")
        return _not_leader(leader, self._driver.config)

    async def wait_for_prepared(self, deadline_us: int) -> None:
        """Wait until no prepared transaction holds up writes (W), or for a change of leadership.

        Raises:
            Throttled: not before the deadline; nothing was proposed. NotLeader: the member has ended.
        """
        watch, clock = self._leadership_watch, self._context.env.clock
        while self._prepared.writes_wait and watch.accepting:
            if self._closed:
                raise self.not_leader()
            if clock.monotonic_us() >= deadline_us:
                raise Throttled(
                    "a transaction is prepared in this tablet and its outcome did not arrive in time; "
                    "nothing was written: send it again. If it stays so, check the masters: "
                    "nyala cluster ksck",
                    {"retry_after_ms": str(RETRY_AFTER_MS)},
                )
            await watch.next_change()

    def check_leads(self, term: int) -> None:
        """Check that the member leads in a term, and has not ended.

        Raises:
            NotLeader: it does not, or has.
        """
        if self._closed or not self._leadership_watch.accepting or self._node.term != term:
            raise self.not_leader()

    def with_address(self, err: NotLeader) -> NotLeader:
        """Return an error of the node with the address of the leader that it names."""
        return _with_address(err, self._driver.config)

    def close(self) -> None:
        """End: whoever waits is refused."""
        self._closed = True


def full_disk(context: ReplicaContext) -> str:
    """Return why this server's log cannot grow, and what to do about it; empty: it can."""
    err = context.wal.disk_error
    if err is None:
        return ""
    return f"the log of this server cannot grow ({err}): free space on its disk, and it goes on by itself"


def _not_leader(leader: ServerUuid, config: Configuration) -> NotLeader:
    member = config.get(leader)
    details = {"leader": str(leader)}
    if member is not None:
        details["address"] = member.address
    where = "" if member is None else f" at {member.address}"
    return NotLeader(f"this replica does not lead its group; {leader}{where} does", details)


def _with_address(err: NotLeader, config: Configuration) -> NotLeader:
    """Return the error with the address of the leader that it names."""
    member = None if err.leader is None else config.get(ServerUuid(err.leader))
    address = {} if member is None else {"address": member.address}
    return NotLeader(err.message, {**err.details, **address})
