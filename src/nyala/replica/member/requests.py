"""Writes, reads and changes of configuration on one member, from the request to its outcome.

Used on the event loop only. A stamp is assigned in the same step of the loop as its log index. A caller gets
the outcome, `OutcomeUnknown`, or `NotLeader` with the leader if it is known.
"""

import asyncio
from collections.abc import Sequence

from nyala.common.errors import InvalidArgument, NotLeader, NyalaError, OutcomeUnknown
from nyala.common.ids import OpId, TabletId
from nyala.env.server_clock import duration
from nyala.raft.membership import Configuration
from nyala.raft.messages import Entry
from nyala.raft.node import RaftNode
from nyala.raft.reconfiguration.changes import Change
from nyala.replica.context import ReplicaContext
from nyala.replica.member import pending_writes, session_header
from nyala.replica.member.admission import RequestAdmission, full_disk
from nyala.replica.member.applier import Answer
from nyala.replica.member.leadership_watch import LeadershipWatch
from nyala.replica.member.pending_writes import PendingWrites, WriteId
from nyala.replica.member.reading.pending_reads import PendingReads, ReadKind
from nyala.replica.member.reading.read_lease import ReadLease
from nyala.replica.member.transactions.prepared import PreparedTransactions
from nyala.replica.member.transactions.waiting import WaitingRequests
from nyala.replica.status import WriteOutcome


class MemberRequests:
    """The writes and reads of one member.

    Args:
        context: the process.
        group: id of the member's group.
        node: its Raft node.
        leadership_watch: detector of changes of its leadership.
        admission: admits requests.
        reads: pending reads.
        prepared: prepared transactions, for which writes and reads wait.
        turns: takes note of the writes that wait for them.
        lease: the read lease, whose rounds are those of the reads.
    """

    def __init__(
        self,
        context: ReplicaContext,
        group: TabletId,
        node: RaftNode,
        leadership_watch: LeadershipWatch,
        admission: RequestAdmission,
        reads: PendingReads,
        prepared: PreparedTransactions,
        turns: WaitingRequests,
        lease: ReadLease,
    ) -> None:
        self._context, self._group = context, group
        self._node, self._leadership_watch = node, leadership_watch
        self._admission, self._clock = admission, admission.clock
        self._writes, self._reads, self._lease = PendingWrites(), reads, lease
        self._prepared = prepared
        self._turns = turns

    async def write(
        self,
        payload: bytes,
        client_id: bytes,
        sequence: int,
        first_outstanding: int,
        timeout_ms: int,
        seen: int = 0,
        since: int | None = None,
        staged: bool = False,
        owner: int = session_header.NO_OWNER,
    ) -> WriteOutcome:
        """Replicate an operation once; see `Replica.write`.

        Args:
            payload: operation for the state machine.
            client_id: 16 bytes.
            sequence: number of the operation among this client's on this group.
            first_outstanding: sequence number below which the client has received all results.
            timeout_ms: how long the caller waits.
            seen: highest stamp that the client has seen.
            since: hybrid time before which no attempt was executed; 0: not known; None: now.
            staged: it is a STAGE, which does not wait for prepared transactions.
            owner: of the client, as in `session_header.Header`.
        """
        session_header.check(client_id, sequence, first_outstanding, since or 0)
        context = self._context
        if since is not None:
            _check_since(context, since)
        deadline_us = context.env.clock.monotonic_us() + timeout_ms * 1000
        seen = await self._wait_until_seen(seen, deadline_us)
        await self._admission.accepting(deadline_us, seen)
        identity = WriteId(client_id, sequence, session_header.crc_of(payload), owner)
        done = self._writes.join(identity, deadline_us)
        if done is None and self._prepared.writes_wait and not staged:
            done = await self._wait_for_prepared(identity, deadline_us, seen)
        if done is None:
            self._admission.check_capacity(len(payload), self._writes.inflight_bytes)
            since = context.clock.peek() if since is None else since
            index = self.append(payload, client_id, sequence, first_outstanding, since, owner=owner)
            done = self.follow(index, len(payload), deadline_us, identity)
        try:
            return _outcome(await done, identity)
        finally:
            del done  # its error has this frame, and so the payload

    async def _wait_for_prepared(
        self, identity: WriteId, deadline_us: int, seen: int
    ) -> "asyncio.Future[Answer | None] | None":
        """Wait until no prepared transaction holds up a write (W); return its future if it is in flight."""
        done, number = None, self._turns.begin()
        try:
            while done is None and self._prepared.writes_wait:
                await self._admission.wait_for_prepared(deadline_us)
                await self._admission.accepting(deadline_us, seen)
                done = self._writes.join(identity, deadline_us)
        finally:
            self._turns.end(number)
        return done

    def append(
        self, payload: bytes, client_id: bytes, sequence: int, first_outstanding: int, since: int,
        above: int = 0, owner: int = session_header.NO_OWNER,
    ) -> int:  # fmt: skip
        """Append an operation to the log of this leader, which accepts; return its index.

        Args:
            payload: operation for the state machine.
            client_id: 16 bytes.
            sequence: as of `write`.
            first_outstanding: as of `write`.
            since: as of `write`; not None.
            above: hybrid time above which the entry is stamped.
            owner: as of `write`.

        Raises:
            NotLeader: leadership is being transferred. Unavailable: see `RequestClock.next_stamp`.
        """
        context, node = self._context, self._node
        ttl_s = context.options.client_result_ttl_s
        table_kib = context.memory.table_bytes() >> 10
        wrapped = session_header.wrap(
            payload, client_id, sequence, first_outstanding, ttl_s, since, table_kib, owner
        )
        op = node.propose(wrapped, self._clock.next_stamp(max(node.last_stamp, above)))
        if op is None:
            raise self._admission.not_leader()
        context.schedule(self._group)
        return op.index

    def join(self, identity: WriteId, deadline_us: int) -> "asyncio.Future[Answer | None] | None":
        """Return a future of an operation in flight; None: it is not in flight."""
        return self._writes.join(identity, deadline_us)

    def follow(
        self, index: int, size_bytes: int, deadline_us: int, identity: WriteId
    ) -> "asyncio.Future[Answer | None]":
        """Return a future of the entry that was just appended.

        Args:
            index: of the entry.
            size_bytes: of its payload.
            deadline_us: monotonic deadline of the caller.
            identity: by which `join` finds it.
        """
        return self._writes.add(OpId(self._node.term, index), size_bytes, deadline_us, identity)

    async def change_config(
        self, changes: Sequence[Change], expected: OpId | None, timeout_ms: int
    ) -> Configuration:
        """Change the group's members; see `Replica.change_config`.

        Args:
            changes: at most one for each server.
            expected: op id that the active configuration must have; None: any.
            timeout_ms: how long the caller waits.
        """
        node = self._node
        deadline_us = self._context.env.clock.monotonic_us() + timeout_ms * 1000
        await self._admission.accepting(deadline_us)
        try:
            op = node.change_config(changes, self._clock.next_stamp(node.last_stamp), expected)
        except NotLeader as err:
            raise self._admission.with_address(err) from err
        finally:  # also if the change only started a transfer of leadership
            self._context.schedule(self._group)
        changed = node.config
        assert changed.id == op, f"{self._group}: {changed.id} is active after {op}"
        try:
            await self._writes.add(op, 0, deadline_us)
        except OutcomeUnknown as err:
            raise OutcomeUnknown(
                f"the change of members at {op} may or may not take effect: leadership was lost, or the "
                "timeout has passed; read the configuration from the leader, and repeat the change if needed"
            ) from err
        return changed

    async def wait_readable(self, at: int, deadline_us: int) -> None:
        """Wait until the clock has reached the time of a read, with a durable ceiling above it.

        Raises:
            InvalidArgument: the time is too far in the future. TimedOut: it is after the deadline.
                Unavailable: the ceiling cannot be made durable.
        """
        if self._node.is_leader:
            _check_ahead(self._context, at)
            await self._clock.wait_until(at, deadline_us)
            await self._clock.advance_past(at)

    async def _wait_until_seen(self, seen: int, deadline_us: int) -> int:
        """Wait until the clock has reached a stamp that a client has seen, and return the stamp.

        A stamp too far in the future is not waited for; 0 is returned.
        """
        if self._context.clock.ahead_us(seen) > self._context.clock.limit_us:
            return 0
        await self._clock.wait_until(seen, deadline_us)
        return seen

    def start_read(self, at: int | None, timeout_ms: int) -> "asyncio.Future[int]":
        """See `Replica.start_read`."""
        context, node = self._context, self._node
        if not node.is_leader:
            raise self._admission.not_leader()
        kind = ReadKind.LATEST if at is None else ReadKind.SNAPSHOT
        if at is None:
            at = self._clock.next_stamp(0)
        else:
            self._clock.merge(at)
        deadline_us = context.env.clock.monotonic_us() + timeout_ms * 1000
        number = self._lease.join_round(at)
        assert number is not None, f"{self._group}: a leader refused a read"
        done = self._reads.add(at, number, node.last.index, deadline_us, kind)
        context.schedule(self._group)
        return done

    # ---- events ------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """True if a request may reach its deadline at a tick."""
        return bool(self._writes or self._reads or self._leadership_watch.watched)

    def tick(self) -> None:
        """Fail the requests whose deadline has passed."""
        if self._writes or self._reads:
            now_us = self._context.env.clock.monotonic_us()
            self._writes.expire(now_us, lambda: full_disk(self._context))
            self._reads.expire(now_us)
        self._leadership_watch.tick()

    def applied(self, entries: Sequence[Entry], answers: Sequence[Answer | None]) -> None:
        """Complete the writes whose entries were applied."""
        for entry, answer in zip(entries, answers, strict=True):
            self._writes.applied(entry.id, answer)

    def confirmed(self, number: int) -> None:
        """Note that a majority has confirmed the read rounds up to this one."""
        self._reads.confirmed(number)

    def complete_reads(self, applied: OpId, applied_stamp: int) -> int:
        """Complete the reads that are due; return the latest time that may be closed; 0: none was due."""
        return self._reads.complete(applied.index, applied_stamp, self._prepared.readable)

    def on_leadership_lost(self) -> None:
        """Fail pending requests after the loss of leadership."""
        self._writes.on_leadership_lost(self._node.commit_index)
        self._reads.end(self._admission.not_leader())

    def end(self, why: str, err: NyalaError) -> None:
        """End: writes in flight fail with `OutcomeUnknown`, reads fail with `err`."""
        self._admission.close()
        self._leadership_watch.close()
        self._writes.fail(why)
        self._reads.end(err)


def _outcome(answer: Answer | None, identity: WriteId) -> WriteOutcome:
    assert answer is not None, f"operation {identity.sequence} has no result"
    return pending_writes.outcome(answer)


def _check_since(context: ReplicaContext, since: int) -> None:
    """Check that a client's `since` is not far in the future: the session table keeps it for all clients."""
    ahead_us, limit_us = context.clock.ahead_us(since), context.clock.limit_us
    if ahead_us > limit_us and since > context.clock.peek():
        raise InvalidArgument(
            f"since={since} is {duration(ahead_us)} ahead of this server's clock; at most "
            f"clock_max_ahead_ms ({limit_us // 1000}) are possible. Give one from client.now()",
            {"latest_since": str(context.clock.peek())},
        )


def _check_ahead(context: ReplicaContext, at: int) -> None:
    """Check that a time is not too far in the future to wait for."""
    clock = context.clock
    ahead_us, limit_ms = clock.ahead_us(at), context.options.clock_max_ahead_ms
    if ahead_us > limit_ms * 1000 and at > clock.peek():
        raise InvalidArgument(
            f"the time {at} is {duration(ahead_us)} ahead of this server's clock; a read waits for at most "
            f"clock_max_ahead_ms ({limit_ms}). Give an earlier time; if you gave none, the clocks of the "
            "servers differ by that much: synchronise them with NTP"
        )
