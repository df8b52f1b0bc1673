"""Event loop of all groups of a process: incoming messages, ticks, and the `Ready` of each scheduled group.

A group that is scheduled in an iteration is processed once at its end, however often it was scheduled: its
entries become one reservation in the log, its messages go out in the batches of all groups. A quiesced group
costs nothing until it is scheduled. On the loop only.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from nyala.common.errors import Corrupt
from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.messages import AnyMessage, AppendEntries, PeerBatch, Suffix
from nyala.replica.context import ReplicaContext
from nyala.replica.member.held_batches import HeldBatches
from nyala.replica.multiraft.failure_detector import FailureDetector
from nyala.replica.multiraft.outbox import Outbox
from nyala.replica.multiraft.quiesced_groups import QuiescedGroups, without_quiesce_offer
from nyala.replica.multiraft.retention import Retention
from nyala.replica.multiraft.senders import Senders
from nyala.replica.multiraft.ticker import Ticker
from nyala.replica.replica import Replica
from nyala.replica.state_machine import Transport

log = logging.getLogger(__name__)

COLLECT_MS = 1000
"""Interval at which clocks are compared, anchors advanced, and the log's oldest segments collected, in
milliseconds.
"""
IDLE_MS = 200
"""Longest time for which ticks are counted together, in milliseconds."""
MAX_SHRUNK_GROUPS = 256
"""Maximum number of groups that free cached entries in one tick."""
MAX_FLUSHED_GROUPS = 50
"""Maximum number of groups that are flushed at a time because they pin the oldest segment."""


class EventLoop:
    """The event loop of a process' groups.

    Args:
        replicas: replicas of the process, by group; the host adds and removes them.
        outbox: sent at the end of each iteration.
        detector: liveness of servers, and the quiesced groups that rely on it.
    """

    def __init__(
        self, replicas: Mapping[TabletId, Replica], outbox: Outbox, detector: FailureDetector
    ) -> None:
        self._replicas = replicas
        self._outbox = outbox
        self._failure_detector = detector
        self._quiesced = QuiescedGroups(replicas, outbox, detector, self.schedule)
        self._due: dict[TabletId, None] = {}
        self._to_anchor: dict[TabletId, None] = {}  # since their anchors were moved on
        self._scheduled = self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._since_collection_ms = 0
        self._context: ReplicaContext
        self._ticker: Ticker
        self._retention: Retention
        self._held: HeldBatches

    def start(self, context: ReplicaContext, transport: Transport, senders: Senders) -> None:
        """Start receiving messages and ticking.

        Args:
            context: the process.
            transport: to and from the other servers.
            senders: decides which servers' messages count.
        """
        self._context, self._senders = context, senders
        self._retention = Retention(context, self._replicas)
        self._held = HeldBatches(context, self._deliver)
        context.clock.keep(context.env.tasks)
        transport.receive(self.receive, self.peer_exited)
        for group in self._replicas:
            self.schedule(group)
        self._ticker = Ticker(
            context.env,
            context.options.raft_tick_ms,
            idle=self._idle_ticks,
            process=self._on_ticks,
            note_late=context.counters.note_late_tick,
        )

    def stop(self) -> None:
        """Stop receiving and sending."""
        self._stopped = True
        self._ticker.stop()

    def active_groups(self) -> list[TabletId]:
        """Return the groups that are not quiesced."""
        return list(self._quiesced.active)

    def disk_failed(self, err: OSError) -> None:
        """Fail all replicas, since the log has failed: none may vote or acknowledge.

        The process keeps running.
        """
        for replica in self._replicas.values():
            replica.fail(err)

    def receive(self, batch: PeerBatch) -> None:
        """Receive a batch; messages for another server, or for no replica here, are dropped."""
        context = self._context
        if self._stopped or batch.to != context.uuid:
            context.counters.refused.labels("destination").inc()
            return
        context.log_disk.note(batch)
        passed = context.clocks.merge(batch)
        if passed:
            self._deliver(batch)
        elif passed is None:
            context.counters.refused.labels("clock").inc()
        else:
            self._held.add(batch)

    def _deliver(self, batch: PeerBatch) -> None:
        if self._stopped:
            return
        context = self._context
        self._ticker.catch_up()
        self._outbox.learn(batch.sender, batch.address)
        self._quiesced.wake(self._failure_detector.receive(batch))
        latest = self._failure_detector.is_latest(batch)
        hlc = context.clock.peek()
        for group, message in batch.messages:
            replica = self._replicas.get(group)
            if replica is not None and not self._senders.admits(replica, batch.sender):
                continue
            if replica is None or replica.member is None:
                if replica is None or not replica.step_tombstone(message, hlc):
                    context.counters.refused.labels("group").inc()
                continue
            if _stamped(message) > hlc and context.clocks.is_too_far_ahead(_stamped(message)):
                context.counters.refused.labels("clock").inc()
                continue
            try:
                replica.member.step(message if latest else without_quiesce_offer(message), hlc)
                self._quiesced.update(group, replica.member.node)
            except Corrupt as err:
                log.warning("a message of %s from %s was dropped: %s", group, batch.sender, err)
                context.counters.refused.labels("corrupt").inc()
            except Exception as bug:  # a broken invariant ends this replica, not the server
                replica.fail(bug)
            self.schedule(group)

    def peer_exited(self, server: ServerUuid) -> None:
        """Note that a server's process has exited."""
        self._ticker.catch_up()
        self._held.peer_exited(server)
        self._quiesced.peer_exited(server)

    def schedule(self, group: TabletId) -> None:
        """Schedule a group to be processed at the end of this iteration."""
        self._due[group] = None
        self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._ticker.catch_up()
        self._scheduled = False
        if self._stopped:
            return
        due, self._due = self._due, {}
        for group in due:
            replica = self._replicas.get(group)
            if replica is None:
                continue
            if replica.member is None:
                self._quiesced.on_replica_ended(group, replica)
                continue
            self._to_anchor[group] = None
            try:
                changed = replica.member.pump()
                if replica.member is not None:
                    self._quiesced.update(group, replica.member.node)
            except Exception as bug:  # a broken invariant ends this replica, not the server
                replica.fail(bug)
                continue
            if changed:
                self._context.changed(group)
        self._outbox.flush()
        self._ticker.changed()

    def _idle_ticks(self) -> int:
        """Return the number of ticks that may be processed together when the last of them has passed."""
        context = self._context
        if context.memory.excess_bytes or context.clock.failure is not None:
            return 1
        return self._quiesced.idle_ticks(IDLE_MS // context.options.raft_tick_ms)

    def _on_ticks(self, ticks: int) -> None:
        """Process ticks of all groups that are not quiesced; collect the log when that is due."""
        self._context.clock.refresh()
        hlc = self._context.clock.peek()
        for _ in range(ticks):
            if self._quiesced.tick(hlc):
                self._schedule_pump()
        if self._context.memory.excess_bytes:
            self._shrink()
        self._since_collection_ms += ticks * self._context.options.raft_tick_ms
        if self._since_collection_ms >= COLLECT_MS:
            self._since_collection_ms = 0
            self._collect()

    def _shrink(self) -> None:
        """Free entries cached for slow followers: first those of groups that were idle longest."""
        memory = self._context.memory
        for group in memory.idle(MAX_SHRUNK_GROUPS):
            if not memory.excess_bytes:
                return
            replica = self._replicas.get(group)
            if replica is not None and replica.member is not None:
                replica.member.shrink()

    def _collect(self) -> None:
        """Compare the clocks, advance anchors; when the log is over its size, collect its oldest segments."""
        self._context.clocks.update()
        self._context.clock.physical.has_no_peers = _have_no_peers(self._replicas.values())
        groups, self._to_anchor = self._to_anchor, {}
        for group in groups:
            replica = self._replicas.get(group)
            if replica is not None and replica.member is not None and not replica.member.anchor():
                self._to_anchor[group] = None
        _flush_pinning(self._replicas, self._retention.collect())


def _stamped(message: AnyMessage) -> int:
    """Return the highest stamp in a message: of its entries, or the closed time; 0: none."""
    if not isinstance(message, AppendEntries | Suffix):
        return 0
    closed = message.closed if isinstance(message, AppendEntries) else 0
    return max(closed, message.entries[-1].stamp) if message.entries else closed


def _have_no_peers(replicas: Iterable[Replica]) -> bool:
    """Return whether there are replicas, and no other server has replicas of their groups."""
    found = False
    for replica in replicas:
        if replica.tombstone is None:
            config = replica.config if replica.node is None else replica.node.config
            if len(config.members) != 1:
                return False
            found = True
    return found


def _flush_pinning(replicas: Mapping[TabletId, Replica], pinning: Iterable[TabletId]) -> None:
    """Flush groups whose unflushed entries pin the log's oldest segment."""
    relieved = 0
    for group in pinning:
        replica = replicas.get(group)
        if replica is not None and replica.member is not None:
            relieved += replica.member.flusher.flush_if_pinning()
        if relieved == MAX_FLUSHED_GROUPS:
            return
