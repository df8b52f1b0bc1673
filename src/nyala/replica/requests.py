"""What clients ask of one member: writes and reads, from the request to its outcome.

Rules: on the loop only. A stamp is taken in the loop step that assigns its index. Who waits is always
told: the outcome, that it is unknown, or who leads.
"""

from collections.abc import Sequence

from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    NyalaError,
    Throttled,
    TooLarge,
    Unavailable,
)
from nyala.common.hybrid_time import to_micros
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.raft.membership import Configuration
from nyala.raft.messages import Entry
from nyala.raft.node import RaftNode
from nyala.replica import session_header, writes
from nyala.replica.applier import Answer
from nyala.replica.around import Around
from nyala.replica.driver import Driver
from nyala.replica.reads import Reads
from nyala.replica.standing import Standing
from nyala.replica.status import WriteOutcome
from nyala.replica.writes import Writes

RETRY_AFTER_MS = 20


class Requests:
    """The writes and reads of one member.

    Args:
        around: the process.
        group: of the member.
        node: its core.
        driver: knows whether the log takes more, and the configuration.
        standing: knows whether the core accepts writes.
        reads: those that wait.
    """

    def __init__(
        self,
        around: Around,
        group: TabletId,
        node: RaftNode,
        driver: Driver,
        standing: Standing,
        reads: Reads,
    ) -> None:
        self._around = around
        self._group = group
        self._node = node
        self._driver = driver
        self._standing = standing
        self._writes = Writes()
        self._reads = reads
        self._closed = False

    async def write(
        self,
        payload: bytes,
        client_id: bytes,
        sequence: int,
        first_outstanding: int,
        timeout_ms: int,
    ) -> WriteOutcome:
        """See `Replica.write`."""
        session_header.check(client_id, sequence, first_outstanding)
        around, node = self._around, self._node
        deadline_us = around.env.clock.monotonic_us() + timeout_ms * 1000
        await self._accepting(deadline_us)
        self._check_room(len(payload))
        wrapped = session_header.wrap(
            payload, client_id, sequence, first_outstanding, around.options.client_result_ttl_s
        )
        op = node.propose(wrapped, self._stamp(node.last_stamp))
        if op is None:
            raise self.not_leader()
        done = self._writes.add(op, len(payload), deadline_us)
        around.dirty(self._group)
        return writes.outcome(await done)

    async def read_point(self, at: int | None, timeout_ms: int) -> int:
        """See `Replica.read_point`."""
        around, node = self._around, self._node
        if not node.is_leader:
            raise self.not_leader()
        if at is None:
            at = self._stamp(0)
        else:
            _check_ahead(around, at)
            self._stamp(at)
        number = node.read_index(at)
        assert number is not None, f"{self._group}: a leader refused a read"
        deadline_us = around.env.clock.monotonic_us() + timeout_ms * 1000
        done = self._reads.add(at, number, node.last.index, deadline_us)
        around.dirty(self._group)
        return await done

    async def _accepting(self, deadline_us: int) -> None:
        """Wait until an entry of the leader's own term is committed (S4.38)."""
        standing, clock = self._standing, self._around.env.clock
        while not standing.accepting:
            if not self._node.is_leader or self._closed:
                raise self.not_leader()
            if clock.monotonic_us() >= deadline_us:
                raise Unavailable(
                    "this leader has not committed an entry of its term yet; ask again"
                )
            await standing.next_change()

    def _stamp(self, above: int) -> int:
        """Return a new stamp, above `above` and all before it."""
        clock = self._around.clock
        try:
            clock.merge(above)
            return clock.now()
        except OSError as err:  # a full disk: nothing was proposed or promised
            raise Unavailable(
                f"the hybrid clock's ceiling cannot be made durable: {err}; make room on the disk"
            ) from err

    def _check_room(self, size_bytes: int) -> None:
        options, inflight = self._around.options, self._writes.inflight_bytes
        limit = max(options.write_max_bytes, options.catalog_batch_bytes) + (1 << 16)
        if size_bytes > limit:
            raise TooLarge(
                f"the operation has {size_bytes} bytes; at most {limit} are replicated at one go",
                {"limit": str(limit), "size": str(size_bytes)},
            )
        full = inflight and inflight + size_bytes > options.write_queue_bytes
        if full or self._driver.stalled:
            self._around.counters.throttled.inc()
            raise Throttled(
                "the log's queue or its disk is full; wait and send again"
                if self._driver.stalled
                else f"{inflight} bytes of writes are in flight on this tablet; wait and send again",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )

    def not_leader(self) -> NotLeader:
        """Return the error that names the leader as far as it is known."""
        return _not_leader(self._around, self._node.leader, self._driver.config)

    # ---- what happens ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let deadlines pass."""
        if self._writes or self._reads:
            now_us = self._around.env.clock.monotonic_us()
            self._writes.expire(now_us)
            self._reads.expire(now_us)
        self._standing.tick()

    def applied(self, entries: Sequence[Entry], answers: Sequence[Answer | None]) -> None:
        """Answer the writes whose entries were applied."""
        for entry, answer in zip(entries, answers, strict=True):
            self._writes.applied(entry.id, answer)

    def confirmed(self, number: int) -> None:
        """A majority has confirmed the read rounds up to this one."""
        self._reads.confirmed(number)

    def settle(self, applied: OpId, applied_stamp: int) -> int:
        """Answer the reads that are due; return the latest of their times, 0: none was."""
        return self._reads.settle(applied.index, applied_stamp)

    def deposed(self) -> None:
        """Leadership is lost."""
        self._writes.deposed(self._node.commit_index)
        self._reads.end(self.not_leader())

    def end(self, why: str, err: NyalaError) -> None:
        """The member ends: outcomes in flight are unknown, reads fail with `err`."""
        self._closed = True
        self._standing.close()
        self._writes.fail(why)
        self._reads.end(err)


def _not_leader(around: Around, leader: ServerUuid | None, config: Configuration) -> NotLeader:
    if leader is None or leader == around.uuid:
        return NotLeader("this replica does not lead its group, and no leader is known; ask again")
    member = config.get(leader)
    details = {"leader": str(leader)}
    if member is not None:
        details["address"] = member.address
    where = "" if member is None else f" at {member.address}"
    return NotLeader(f"this replica does not lead its group; {leader}{where} does", details)


def _check_ahead(around: Around, at: int) -> None:
    """Refuse a time that is too far in the future, before it moves any clock."""
    ahead_us = to_micros(at) - around.env.clock.wall_us()
    limit_ms = around.options.clock_max_ahead_ms
    if ahead_us > limit_ms * 1000 and at > around.clock.peek():
        raise InvalidArgument(
            f"the time {at} lies {ahead_us / 1e6:.1f} s in the future of this server; at most "
            f"clock_max_ahead_ms ({limit_ms}) are allowed"
        )
