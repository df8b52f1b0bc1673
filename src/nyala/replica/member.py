"""One member that takes part: core, driver, applier, and the writes and reads that wait for them.

Rules: on the loop only. A stamp is taken in the loop step that assigns its index. Whatever is raised by
the core or in a lane ends this replica and no other (`fail`).
"""

import asyncio

from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    NyalaError,
    Throttled,
    TooLarge,
    Unavailable,
)
from nyala.common.hybrid_time import to_micros
from nyala.common.ids import TabletId
from nyala.env.tasks import Lane
from nyala.raft.messages import AnyMessage, Entry
from nyala.raft.ready import NOTHING
from nyala.replica import session_header, writes
from nyala.replica.applier import Answer, Applier
from nyala.replica.around import Around
from nyala.replica.bootstrap import Opened
from nyala.replica.driver import Driver
from nyala.replica.maintenance import Fail, Keeper
from nyala.replica.reads import Reads
from nyala.replica.standing import Standing
from nyala.replica.status import WriteOutcome
from nyala.replica.writes import Writes

RETRY_AFTER_MS = 20


class Member:
    """A replica that takes part in its group.

    Args:
        around: the process.
        group: of the replica.
        opened: from bootstrap.
        fail: ends this replica.
    """

    def __init__(self, around: Around, group: TabletId, opened: Opened, fail: Fail) -> None:
        options = around.options
        self.node = opened.node
        self.applier = Applier(
            around.env.tasks,
            opened.machine,
            opened.sessions,
            group_ops=options.apply_group_ops,
            group_bytes=options.apply_group_bytes,
            deliver=self._applied,
        )
        self.keeper = Keeper(around, group, self.applier, fail)
        self.driver = Driver(around, group, opened.node, fail)
        self.standing = Standing(opened.node)
        self._around = around
        self._group = group
        self._fail = fail
        self._writes = Writes()
        self._reads = Reads()
        self._closed = False
        self._task = around.env.tasks.spawn(self._apply(), f"apply {group}")

    # ---- what happens ------------------------------------------------------------------------------

    def step(self, message: AnyMessage, hlc: int) -> None:
        """Take a message; `hlc` is the clock's reading after it was merged. Raises as the core does."""
        self.node.step(message, hlc)

    def tick(self, hlc: int) -> None:
        """Let a tick of Raft's time pass."""
        self.node.tick(hlc)
        if self._writes or self._reads:
            now_us = self._around.env.clock.monotonic_us()
            self._writes.expire(now_us)
            self._reads.expire(now_us)

    def pump(self) -> bool:
        """Perform what the core owes; return whether something that others are told changed."""
        ready = self.driver.pump()
        changed = False
        if ready is not NOTHING:
            if ready.apply:
                self.applier.feed(ready.apply)
            if ready.confirmed is not None:
                self._reads.confirmed(ready.confirmed.round)
                self._settle()
            changed = ready.config is not None or ready.config_committed is not None
        seen = self.standing.look()
        if seen.deposed:
            self._writes.deposed(self.node.commit_index)
            self._reads.end(self.not_leader())
        if seen.elected:
            self._around.counters.elected.inc()
        return changed or seen.changed

    def anchor(self) -> None:
        """Let the log go of what neither this replica nor a follower of it needs."""
        if self.driver.saving is None:
            self.keeper.anchor(self.node)

    async def _apply(self) -> None:
        try:
            await self.applier.run()
        except Exception as err:  # apply that raises is the end of this replica, not of the server
            self._fail(err)

    def _applied(self, entries: list[Entry], answers: list[Answer | None]) -> None:
        if self._closed:
            return
        for entry, answer in zip(entries, answers, strict=True):
            self._writes.applied(entry.id, answer)
        self.node.applied(entries[-1].id.index)
        self._settle()
        counters = self._around.counters
        counters.applied.inc(len(entries))
        counters.groups.inc()
        self.keeper.applied(entries)

    def _settle(self) -> None:
        self._reads.settle(self.applier.applied.index, self.applier.applied_stamp)

    # ---- what is asked -----------------------------------------------------------------------------

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
        await self._accepting()
        self._check_room(len(payload))
        around, node = self._around, self.node
        wrapped = session_header.wrap(
            payload, client_id, sequence, first_outstanding, around.options.client_result_ttl_s
        )
        around.clock.merge(node.last_stamp)
        op = node.propose(wrapped, around.clock.now())
        if op is None:
            raise self.not_leader()
        deadline_us = around.env.clock.monotonic_us() + timeout_ms * 1000
        done = self._writes.add(op, len(payload), deadline_us)
        around.dirty(self._group)
        return writes.outcome(await done)

    async def read_point(self, at: int | None, timeout_ms: int) -> int:
        """See `Replica.read_point`."""
        around, node = self._around, self.node
        if not node.is_leader:
            raise self.not_leader()
        clock = around.clock
        if at is None:
            at = clock.now()
        else:
            ahead_us = to_micros(at) - around.env.clock.wall_us()
            limit_ms = around.options.clock_max_ahead_ms
            if ahead_us > limit_ms * 1000 and at > clock.peek():
                raise InvalidArgument(
                    f"the time {at} lies {ahead_us / 1e6:.1f} s in the future of this server; at most "
                    f"clock_max_ahead_ms ({limit_ms}) are allowed"
                )
            clock.merge(at)
        number = node.read_index(at)
        assert number is not None, f"{self._group}: a leader refused a read"
        deadline_us = around.env.clock.monotonic_us() + timeout_ms * 1000
        done = self._reads.add(at, number, node.last.index, deadline_us)
        around.dirty(self._group)
        return await done

    async def _accepting(self) -> None:
        """Wait until an entry of the leader's own term is committed (S4.38)."""
        standing = self.standing
        while not standing.accepting:
            if not self.node.is_leader or self._closed:
                raise self.not_leader()
            await standing.next_change()

    def _check_room(self, size_bytes: int) -> None:
        options, inflight = self._around.options, self._writes.inflight_bytes
        limit = max(options.write_max_bytes, options.catalog_batch_bytes) + (1 << 16)
        if size_bytes > limit:
            raise TooLarge(
                f"the operation has {size_bytes} bytes; at most {limit} are replicated at one go",
                {"limit": str(limit), "size": str(size_bytes)},
            )
        full = inflight and inflight + size_bytes > options.write_queue_bytes
        if full or self.driver.stalled:
            self._around.counters.throttled.inc()
            raise Throttled(
                "the log's queue or its disk is full; wait and send again"
                if self.driver.stalled
                else f"{inflight} bytes of writes are in flight on this tablet; wait and send again",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )

    def not_leader(self) -> NotLeader:
        """Return the error that names the leader as far as it is known."""
        leader = self.node.leader
        if leader is None or leader == self._around.uuid:
            return NotLeader(
                "this replica does not lead its group, and no leader is known; ask again"
            )
        member = self.driver.config.get(leader)
        details = {"leader": str(leader)}
        if member is not None:
            details["address"] = member.address
        where = "" if member is None else f" at {member.address}"
        return NotLeader(f"this replica does not lead its group; {leader}{where} does", details)

    # ---- the end -----------------------------------------------------------------------------------

    def end(self, why: str, err: NyalaError | None = None) -> None:
        """Take part no more: whoever waits is told; files and machine stay open."""
        self._closed = True
        self.driver.close()
        self.standing.close()
        self._task.cancel()
        self._writes.fail(why)
        self._reads.end(err or Unavailable(f"{why}; ask another replica"))

    async def close(self) -> None:
        """After `end`: wait for what runs in the lanes, then close the machine."""
        await self.keeper.close()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._around.env.tasks.run(Lane.APPLY, self.applier.machine.close)
