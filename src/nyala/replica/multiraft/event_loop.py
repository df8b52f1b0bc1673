"""From turn to turn of the loop: messages in, ticks, and at each turn's end what every touched core owes.

However often a core is touched in one turn, it is looked at once, at the turn's end: its entries become one
reservation in the log, its messages travel with those of all other groups. A group that sleeps costs nothing
until something touches it. On the loop only.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from nyala.common.errors import Corrupt
from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.messages import AnyMessage, AppendEntries, PeerBatch, Suffix
from nyala.replica.context import Around
from nyala.replica.member.held_batches import Held
from nyala.replica.multiraft.failure_detector import Liveness
from nyala.replica.multiraft.outbox import Outbox
from nyala.replica.multiraft.quiesced_groups import Sleepers, unvouched
from nyala.replica.multiraft.retention import Retention
from nyala.replica.replica import Replica
from nyala.replica.state_machine import Transport

log = logging.getLogger(__name__)

COLLECT_MS = 1000
"""How often the log's anchors are moved on and its oldest segments collected."""
SHRUNK_AT_ONCE = 256
"""So many groups let go of entries in one tick."""
RELIEVED_AT_ONCE = 50
"""So many groups that hold the oldest segment are being flushed for it at a time."""


class Turns:
    """Runs the cores of a process.

    Args:
        replicas: all of them; the host adds and removes.
        outbox: sent at the end of each turn.
        liveness: which servers live, and which groups sleep on that.
    """

    def __init__(
        self, replicas: Mapping[TabletId, Replica], outbox: Outbox, liveness: Liveness
    ) -> None:
        self._replicas = replicas
        self._outbox = outbox
        self._liveness = liveness
        self._sleepers = Sleepers(replicas, outbox, liveness, self.mark)
        self._dirty: dict[TabletId, None] = {}
        self._touched: dict[TabletId, None] = {}  # since their anchors were moved on
        self._scheduled = False
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._ticker: asyncio.Task[object] | None = None
        self._around: Around
        self._retention: Retention
        self._held: Held

    def start(self, around: Around, transport: Transport) -> None:
        """Begin to take part: messages are taken, time passes."""
        self._around = around
        self._retention = Retention(around, self._replicas)
        self._held = Held(around, self._take)
        around.clock.keep(around.env.tasks)
        transport.receive(self.receive, self.lose)
        for group in self._replicas:
            self.mark(group)
        self._ticker = around.env.tasks.spawn(self._tick(), "replica ticks")

    def stop(self) -> None:
        """End: nothing is taken or sent any more."""
        self._stopped = True
        if self._ticker is not None:
            self._ticker.cancel()

    def up(self) -> list[TabletId]:
        """Return the groups that do not sleep."""
        return list(self._sleepers.up)

    def disk_failed(self, err: OSError) -> None:
        """The log is broken: nothing here may vote or acknowledge any more. The process lives."""
        for replica in self._replicas.values():
            replica.fail(err)

    def receive(self, batch: PeerBatch) -> None:
        """Take what another server sent; what is not for this server or for no member is dropped."""
        around = self._around
        if self._stopped or batch.to != around.uuid:
            around.counters.refused.labels("destination").inc()
            return
        around.slow_log.note(batch)
        passed = around.clocks.merge(batch)
        if passed:
            self._take(batch)
        elif passed is None:
            around.counters.refused.labels("clock").inc()
        else:
            self._held.add(batch)

    def _take(self, batch: PeerBatch) -> None:
        if self._stopped:
            return
        around = self._around
        self._outbox.learn(batch.sender, batch.address)
        self._sleepers.rouse(self._liveness.hear(batch))
        vouched = self._liveness.vouched(batch)
        hlc = around.clock.peek()
        for group, message in batch.messages:
            replica = self._replicas.get(group)
            if replica is None or replica.member is None:
                if replica is None or not replica.hear_buried(message, hlc):
                    around.counters.refused.labels("group").inc()
                continue
            if _stamped(message) > hlc and around.clocks.far(_stamped(message)):
                around.counters.refused.labels("clock").inc()
                continue
            try:
                replica.member.step(message if vouched else unvouched(message), hlc)
                self._sleepers.look(group, replica.member.node)
            except Corrupt as err:
                log.warning("a message of %s from %s was dropped: %s", group, batch.sender, err)
                around.counters.refused.labels("corrupt").inc()
            except Exception as bug:  # a broken invariant ends this replica, not the server
                replica.fail(bug)
            self.mark(group)

    def lose(self, server: ServerUuid) -> None:
        """Take it that a server's process has ended."""
        self._held.lose(server)
        self._sleepers.lose(server)

    def mark(self, group: TabletId) -> None:
        """Look at a group's core at the end of this turn."""
        self._dirty[group] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        dirty, self._dirty = self._dirty, {}
        for group in dirty:
            replica = self._replicas.get(group)
            if replica is None:
                continue
            if replica.member is None:
                self._sleepers.ended(group, replica)
                continue
            self._touched[group] = None
            try:
                changed = replica.member.pump()
                if replica.member is not None:
                    self._sleepers.look(group, replica.member.node)
            except Exception as bug:  # a broken invariant ends this replica, not the server
                replica.fail(bug)
                continue
            if changed:
                self._around.changed(group)
        self._outbox.flush()

    async def _tick(self) -> None:
        tasks, tick_ms = self._around.env.tasks, self._around.options.raft_tick_ms
        clock = self._around.env.clock
        since_collection_ms = 0
        while True:
            due_us = clock.monotonic_us() + tick_ms * 1000
            await tasks.sleep_ms(tick_ms)
            self._around.counters.late(clock.monotonic_us() - due_us)
            self._around.clocks.look()
            self._around.clock.refresh()
            hlc = self._around.clock.peek()
            self._sleepers.rouse(self._liveness.tick())
            for group in list(self._sleepers.up):
                replica = self._replicas[group]
                if replica.member is not None:
                    try:
                        replica.member.tick(hlc, self._liveness)
                    except Exception as bug:  # a broken invariant ends this replica, not the server
                        replica.fail(bug)
                self.mark(group)
            if self._sleepers.greet():
                self._schedule()
            if self._around.memory.excess_bytes:
                self._shrink()
            since_collection_ms += tick_ms
            if since_collection_ms >= COLLECT_MS:
                since_collection_ms = 0
                self._collect()

    def _shrink(self) -> None:
        """Let go of entries kept for slow followers: first those of groups that were idle longest."""
        memory = self._around.memory
        for group in memory.idle(SHRUNK_AT_ONCE):
            if not memory.excess_bytes:
                return
            replica = self._replicas.get(group)
            if replica is not None and replica.member is not None:
                replica.member.shrink()

    def _collect(self) -> None:
        """Move anchors on; when the log is over its size, let go of its oldest segments."""
        touched, self._touched = self._touched, {}
        for group in touched:
            replica = self._replicas.get(group)
            if replica is not None and replica.member is not None and not replica.member.anchor():
                self._touched[group] = None
        _relieve(self._replicas, self._retention.collect())


def _stamped(message: AnyMessage) -> int:
    """Return the highest stamp that a core takes from a message: of its entries, or closed; 0: none."""
    if not isinstance(message, AppendEntries | Suffix):
        return 0
    closed = message.closed if isinstance(message, AppendEntries) else 0
    return max(closed, message.entries[-1].stamp) if message.entries else closed


def _relieve(replicas: Mapping[TabletId, Replica], pinning: Iterable[TabletId]) -> None:
    """Flush groups whose unflushed tails hold the log's oldest segment, and all that came after it."""
    relieved = 0
    for group in pinning:
        replica = replicas.get(group)
        if replica is not None and replica.member is not None:
            relieved += replica.member.keeper.relieve_log()
        if relieved == RELIEVED_AT_ONCE:
            return
