"""Member: the parts of a running replica, which perform the `Ready` of its Raft node.

Rules: on the loop only. An exception of the node or in a lane ends this replica and no other.
"""

import asyncio
from collections.abc import Callable, Container, Sequence

from nyala.common.errors import NyalaError, Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.env.tasks import Lane
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, AppendEntries, Entry
from nyala.raft.ready import NOTHING
from nyala.replica.context import ReplicaContext
from nyala.replica.member.admission import RequestAdmission
from nyala.replica.member.applier import Answer, Applier
from nyala.replica.member.bootstrap import Opened
from nyala.replica.member.closed_time import ClosedTime
from nyala.replica.member.driver import RaftDriver
from nyala.replica.member.flusher import Fail, Flusher
from nyala.replica.member.leadership_watch import LeadershipWatch
from nyala.replica.member.reading.lease_reads import LeaseReads
from nyala.replica.member.reading.pending_reads import PendingReads
from nyala.replica.member.reading.read_lease import ReadLease
from nyala.replica.member.requests import MemberRequests
from nyala.replica.member.transactions.prepared import PreparedTransactions
from nyala.replica.member.transactions.requests import TransactionRequests
from nyala.replica.member.transactions.waiting import WaitingRequests
from nyala.replica.memory import MemoryPart


class ReplicaMember:
    """A running replica.

    Args:
        context: the process.
        group: group of the replica.
        opened: from bootstrap.
        fail: makes this replica FAILED.

    Attributes:
        context: as given.
        group: as given.
    """

    def __init__(
        self, context: ReplicaContext, group: TabletId, opened: Opened, fail: Fail
    ) -> None:
        options = context.options
        self.node = opened.node
        self.applier = Applier(
            context.env.tasks,
            opened.machine,
            opened.sessions,
            group_ops=options.apply_group_ops,
            group_bytes=options.apply_group_bytes,
            deliver=self._applied,
            may_apply=self._may_apply,
        )
        self.flusher = Flusher(context, group, opened.node, self.applier, fail)
        self.driver = RaftDriver(context, group, opened.node, fail)
        self.leadership_watch = LeadershipWatch(opened.node)
        turns = WaitingRequests(context.env.clock)
        reads = PendingReads(turns)
        lease = self.lease = ReadLease(context.env.clock, opened.node, options.read_lease_ms)
        self.closed_time = ClosedTime(context, opened.node, self.leadership_watch, reads, lease)
        prepared = PreparedTransactions(self.applier.prepared)
        watch = self.leadership_watch
        self.admission = RequestAdmission(context, opened.node, self.driver, watch, prepared)
        self.requests = MemberRequests(
            context, group, opened.node, watch, self.admission, reads, prepared, turns, lease
        )
        self.lease_reads = LeaseReads(context, group, watch, prepared, self.applier, lease)
        self.transactions = TransactionRequests(
            context,
            opened.node,
            self.requests,
            self.admission,
            watch,
            prepared,
            turns,
            self._complete_reads,
        )
        self._listeners: dict[Callable[[], None], None] = {}
        self.context = context
        self.group = group
        self._fail = fail
        self._closed = False
        self._task = context.env.tasks.spawn(self._apply(), f"apply {group}")
        self.flusher.count()
        self._count()

    # ---- what happens ------------------------------------------------------------------------------

    def step(self, message: AnyMessage, hlc: int) -> None:
        """Process a message; `hlc` is the clock's reading after it was merged. Raises as `RaftNode.step`.

        A follower that cannot apply fast enough, or whose process is over its memory budget, accepts no
        entries and reports this to its leader, which waits. It still votes and answers heartbeats.
        """
        if isinstance(message, AppendEntries):
            context = self.context
            backlogged = self.applier.backlog_bytes > context.options.write_queue_bytes
            self.node.set_out_of_memory(backlogged or context.memory.full)
        self.node.step(message, hlc)
        if isinstance(message, AppendEntries):
            self.closed_time.received(message)

    def tick(self, hlc: int, absent: Container[ServerUuid]) -> None:
        """Process a tick; `absent` as in `RaftNode.tick`."""
        self.applier.resume()
        self.closed_time.tick()
        self.context.offsets.transfer_leadership(self.node)
        self.context.log_disk.transfer_leadership(self.group, self.node)
        self.requests.tick()
        self.transactions.tick()
        self.node.tick(hlc, absent)

    def idle_ticks(self) -> int:
        """Return the number of ticks that may be processed together; 1: something may be due at the next."""
        waits = self.driver.stalled or self.applier.queued or self.requests.pending
        return 1 if waits or self.transactions.pending else self.node.view.idle_ticks

    def pump(self) -> bool:
        """Perform the node's `Ready`; return whether configuration, role or leader changed."""
        ready = self.driver.pump()
        changed = False
        if ready is not NOTHING:
            if ready.apply:
                self.applier.enqueue(ready.apply, awaited=self.node.is_leader)
            if ready.confirmed is not None:
                self.lease.confirmed(ready.confirmed)
                self.requests.confirmed(ready.confirmed.round)
                self._complete_reads()
            changed = ready.config is not None or ready.config_committed is not None
        self._count()
        change = self.leadership_watch.update()
        if change.deposed:
            self.lease.end()
            self.transactions.on_leadership_lost()
            self.requests.on_leadership_lost()
            self._progressed()
        if change.elected:
            self.context.counters.elected.inc()
        return changed or change.changed

    def unsafe_change_config(self, keep: Sequence[ServerUuid], term: int) -> Configuration:
        """Force a configuration without a majority that is lost for good; return the active one.

        See `RaftNode.unsafe_change_config`: it is committed when one of those kept leads.
        """
        self.node.unsafe_change_config(
            keep, self.admission.clock.next_stamp(self.node.last_stamp), term
        )
        self.context.schedule(self.group)
        return self.node.config

    def anchor(self) -> bool:
        """Advance the anchor in the log; False: a configuration has to be saved first."""
        if self.driver.saving is not None:
            return False
        self.flusher.anchor()
        return True

    def release_log(self) -> None:
        """Release entries that are retained for lagging members, once no configuration has to be saved."""
        self.flusher.release_log()
        self.anchor()

    async def _apply(self) -> None:
        try:
            await self.applier.run()
        except Exception as err:  # apply that raises is the end of this replica, not of the server
            self._fail(err)

    def on_progress(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Register a listener; return the function that removes it.

        It is called after each group of entries that is applied here, when this replica is deposed, and at
        its end.
        """
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    def _applied(self, entries: list[Entry], answers: list[Answer | None]) -> None:
        if self._closed:
            return
        self.requests.applied(entries, answers)
        self.transactions.applied(entries[-1].id.index, self.applier.prepared)
        self.node.applied(entries[-1].id.index)
        if self.node.view.reads_from_disk:
            self.context.schedule(self.group)  # the next entries are to be read
        if self.node.is_leader and not self.leadership_watch.accepting:
            # The first entry of its term may be among them: it accepts writes from then on.
            self.context.schedule(self.group)
        self._complete_reads()
        self._progressed()
        counters = self.context.counters
        counters.applied.inc(len(entries))
        counters.groups.inc()
        self.flusher.applied(entries)
        if self.context.memory.under_pressure:
            self.node.shrink(0)
        self._count()

    def _progressed(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _may_apply(self) -> bool:
        return self.context.memory.may_apply(leads=self.node.is_leader)

    def _count(self) -> None:
        """Account for this group's entries and sessions in the memory tracker."""
        memory = self.context.memory
        memory.set_size(MemoryPart.ENTRIES, self.group, self.node.view.log_bytes)
        memory.set_size(MemoryPart.SESSIONS, self.group, self.applier.sessions.memory_bytes)

    def shrink(self) -> None:
        """Free cached entries beyond the memory limit; followers that need them get them from the log."""
        node, excess = self.node, self.context.memory.excess_bytes
        node.shrink(max(0, node.view.log_bytes - excess))
        self._count()

    def _complete_reads(self) -> None:
        latest = self.requests.complete_reads(self.applier.applied, self.applier.applied_stamp)
        if latest:
            self.closed_time.publish(latest)

    # ---- the end -----------------------------------------------------------------------------------

    def end(self, why: str, err: NyalaError | None = None) -> None:
        """Stop: pending requests fail; files and state machine stay open."""
        self._closed = True
        self.driver.close()
        self._task.cancel()
        self.requests.end(why, err or Unavailable(f"{why}; ask another replica"))
        self._progressed()

    async def close(self) -> None:
        """Close the state machine after `end`, once the work in lanes has finished."""
        await self.flusher.close()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.context.env.tasks.run(Lane.APPLY, self.applier.machine.close)
        self.context.memory.forget(self.group)
