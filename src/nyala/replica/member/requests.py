"""What clients ask of one member: writes and reads, from the request to its outcome.

Rules: on the loop only. A stamp is taken in the loop step that assigns its index. Who waits is always
told: the outcome, that it is unknown, or who leads.
"""

import asyncio
from collections.abc import Sequence

from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    NyalaError,
    OutcomeUnknown,
)
from nyala.common.ids import OpId, TabletId
from nyala.env.server_clock import duration
from nyala.raft.changes import Change
from nyala.raft.membership import Configuration
from nyala.raft.messages import Entry
from nyala.raft.node import RaftNode
from nyala.replica.context import Around
from nyala.replica.member import pending_writes, session_header
from nyala.replica.member.applier import Answer
from nyala.replica.member.driver import Driver
from nyala.replica.member.footing import Footing, with_address
from nyala.replica.member.leadership_watch import Standing
from nyala.replica.member.pending_reads import Reads
from nyala.replica.member.pending_writes import Identity, Writes
from nyala.replica.status import WriteOutcome


class Requests(Footing):
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
        super().__init__(around, node, driver, standing)
        self._group = group
        self._writes = Writes()
        self._reads = reads

    async def write(
        self,
        payload: bytes,
        client_id: bytes,
        sequence: int,
        first_outstanding: int,
        timeout_ms: int,
        seen: int = 0,
        since: int | None = None,
    ) -> WriteOutcome:
        """See `Replica.write`."""
        session_header.check(client_id, sequence, first_outstanding, since or 0)
        around, node = self._around, self._node
        deadline_us = around.env.clock.monotonic_us() + timeout_ms * 1000
        await self.accepting(deadline_us, await self._believed(seen, deadline_us))
        identity = Identity(client_id, sequence, session_header.crc_of(payload))
        joined = self._writes.join(identity, deadline_us)
        if joined is not None:
            return _outcome(await joined, identity)
        self.check_room(len(payload), self._writes.inflight_bytes)
        if since is None:
            since = around.clock.peek()
        ttl_s = around.options.client_result_ttl_s
        table_kib = around.memory.table_bytes() >> 10
        wrapped = session_header.wrap(
            payload, client_id, sequence, first_outstanding, ttl_s, since, table_kib
        )
        op = node.propose(wrapped, self.stamp(node.last_stamp))
        if op is None:
            raise self.not_leader()
        done = self._writes.add(op, len(payload), deadline_us, identity)
        around.dirty(self._group)
        return _outcome(await done, identity)

    async def change_config(
        self, changes: Sequence[Change], expected: OpId | None, timeout_ms: int
    ) -> Configuration:
        """See `Replica.change_config`."""
        node = self._node
        deadline_us = self._around.env.clock.monotonic_us() + timeout_ms * 1000
        await self.accepting(deadline_us)
        try:
            op = node.change_config(changes, self.stamp(node.last_stamp), expected)
        except NotLeader as err:
            raise with_address(err, self._driver.config) from err
        finally:  # also when it only handed leadership over
            self._around.dirty(self._group)
        changed = node.core.configs.active
        assert changed.id == op, f"{self._group}: {changed.id} is active after {op}"
        try:
            await self._writes.add(op, 0, deadline_us)
        except OutcomeUnknown as err:
            raise OutcomeUnknown(
                f"the change of members at {op} may or may not take effect: leadership was lost, or the time "
                "was up; read the configuration from the leader, and decide anew"
            ) from err
        return changed

    async def reach(self, at: int, deadline_us: int) -> None:
        """Wait until the clock has reached a time that is to be read at, and that is durable: it moves none.

        Raises:
            InvalidArgument: it lies too far in the future. TimedOut: it comes after the deadline.
            Unavailable: the disk does not take the ceiling.
        """
        if self._node.is_leader:
            _check_ahead(self._around, at)
            await self.reached(at, deadline_us)
            await self.past(at)

    async def _believed(self, seen: int, deadline_us: int) -> int:
        """Wait for a time that a client has seen; return it, or 0 where it lies too far in the future."""
        if self._around.clock.ahead_us(seen) > self._around.clock.limit_us:
            return 0
        await self.reached(seen, deadline_us)
        return seen

    def read_soon(self, at: int | None, timeout_ms: int) -> "asyncio.Future[int]":
        """See `Replica.read_soon`."""
        around, node = self._around, self._node
        if not node.is_leader:
            raise self.not_leader()
        if at is None:
            at = self.stamp(0)
        else:
            self.merge(at)
        number = node.read_index(at)
        assert number is not None, f"{self._group}: a leader refused a read"
        deadline_us = around.env.clock.monotonic_us() + timeout_ms * 1000
        done = self._reads.add(at, number, node.last.index, deadline_us)
        around.dirty(self._group)
        return done

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


def _outcome(answer: Answer | None, identity: Identity) -> WriteOutcome:
    assert answer is not None, f"operation {identity.sequence} came to nothing"
    return pending_writes.outcome(answer)


def _check_ahead(around: Around, at: int) -> None:
    """Refuse a time that is too far in the future to be waited for."""
    clock = around.clock
    ahead_us, limit_ms = clock.ahead_us(at), around.options.clock_max_ahead_ms
    if ahead_us > limit_ms * 1000 and at > clock.peek():
        raise InvalidArgument(
            f"the time {at} lies {duration(ahead_us)} in the future of this server; at most "
            f"clock_max_ahead_ms ({limit_ms}) are waited for. Give an earlier time; if you gave none, clocks "
            "of these servers are that far apart: let a time daemon (NTP) keep them together"
        )
