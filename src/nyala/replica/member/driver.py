"""Driver of one Raft node: performs each `Ready` in order, on the log, the peers and the consensus metadata.

Rules (raft/ready.py): a Ready is one reservation in the log, in the order of the Readys; a message
is sent when what it asserts is durable, and may overtake one that still waits. On the loop only.
"""

import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from nyala.common.errors import LogGap, Throttled, Unavailable
from nyala.common.ids import TabletId
from nyala.env.tasks import Lane
from nyala.raft.membership import Configuration
from nyala.raft.messages import DurablePoint, Entry
from nyala.raft.node import RaftNode
from nyala.raft.ready import NOTHING, Outgoing, ReadRequest, Ready
from nyala.replica.context import ReplicaContext
from nyala.wal.segments.allocator import FULL

log = logging.getLogger(__name__)

RETRY_MS = 1000
MAX_WAITING = 256
"""Maximum number of messages that wait for the disk, which may be full or hang for days. Older ones count as
lost in the network: a newer reply acknowledges what they did, and requests are repeated.
"""
SAVE_TRIES = 10
"""Number of failures to save metadata, on a disk that is not full, after which the replica fails: the log
retains everything from the configuration change on until they are saved.
"""
READ_TRIES = 10
"""Number of failures to read entries from the log, for one request, after which the replica fails."""


class RaftDriver:
    """Driver of one Raft node.

    Args:
        context: the process.
        group: group of the core.
        node: the core.
        fail: makes this replica FAILED.
    """

    def __init__(
        self,
        context: ReplicaContext,
        group: TabletId,
        node: RaftNode,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.config = node.config
        self.saving: Configuration | None = None
        self._context = context
        self._group = group
        self._node = node
        self._fail = fail
        self._durable = DurablePoint()
        self._unwritten: Ready | None = None
        self._waiting: list[Outgoing] = []
        self._closed = False

    @property
    def stalled(self) -> bool:
        """True if the node has to wait, since the log's queue or the disk is full."""
        return self._unwritten is not None

    def pump(self) -> Ready:
        """Perform the node's next `Ready`; return it for the remaining parts."""
        if self._unwritten is not None and not self._write(self._unwritten):
            self._wait(self._node.take_messages())
            return NOTHING
        ready = self._node.ready()
        if ready is not NOTHING:
            if ready.append or ready.persist is not None:
                self._write(ready)
            if ready.config is not None:
                self.config = ready.config
            self._wait(ready.send)
            for request in ready.read:
                self._spawn(self._catch_up(request), "catch up")
            if ready.config_committed is not None:
                self._spawn(self._save(ready.config_committed), "consensus metadata")
        if self._waiting:
            self._release()
        return ready

    def close(self) -> None:
        """Stop: send nothing more, and ignore durable writes."""
        self._closed = True
        self._waiting.clear()

    # ---- the log -----------------------------------------------------------------------------------

    def _write(self, ready: Ready) -> bool:
        wal = self._context.wal
        try:
            slot = wal.reserve(self._group, ready.append, ready.persist)
        except (Throttled, Unavailable):  # retried when something is durable, and each tick
            self._unwritten = ready
            return False
        self._unwritten = None
        wal.append_async(slot, partial(self._written, ready.point))
        return True

    def _written(self, point: DurablePoint, err: OSError | None) -> None:
        if self._closed:
            return
        if err is not None:
            self._context.disk_failed(err)
            return
        self._durable = point
        try:
            self._node.durable(point)
        except Exception as bug:  # a broken invariant is the end of this replica, not of the server
            self._fail(bug)
            return
        self._context.schedule(self._group)

    async def _catch_up(self, request: ReadRequest) -> None:
        """Read entries that a slow peer lacks and that are no longer in memory."""
        entries = await self._read(request)
        if self._closed:
            return
        matching = itertools.takewhile(lambda e: self._node.view.holds(e.id), entries)
        self._node.entries_read(request.peer, list(matching))
        self._context.schedule(self._group)

    async def _read(self, request: ReadRequest) -> list[Entry]:
        """Return entries of the log; none if it no longer has them. An error may be transient (EMFILE)."""
        failures = 0
        while True:
            try:
                return await self._context.wal.read(
                    self._group, request.first_index, request.max_bytes
                )
            except LogGap:
                return []
            except OSError as err:
                failures += 1
                if failures == READ_TRIES or self._closed:
                    raise
                log.warning("entries of %s were not read, trying again: %s", self._group, err)
                await self._context.env.tasks.sleep_ms(RETRY_MS)

    # ---- peers -------------------------------------------------------------------------------------

    def _wait(self, messages: Sequence[Outgoing]) -> None:
        self._waiting.extend(messages)
        del self._waiting[:-MAX_WAITING]

    def _release(self) -> None:
        """Send the messages whose condition is durable; heartbeat replies do not wait for a slow disk."""
        waiting, self._waiting = self._waiting, []
        for outgoing in waiting:
            if not self._durable.covers(outgoing.after):
                self._waiting.append(outgoing)
            else:
                self._context.send(self.config, self._group, outgoing.message)

    # ---- consensus metadata ------------------------------------------------------------------------

    async def _save(self, config: Configuration) -> None:
        """Save a committed configuration durably; the log retains its entry until then (`saving`)."""
        context, failures = self._context, 0
        self.saving = config
        while self.saving is config and not self._closed:
            hard_state = self._node.view.hard_state
            try:
                await context.env.tasks.run(
                    Lane.DISK, context.cmeta.save, self._group, hard_state, config
                )
            except OSError as err:  # a full disk may have free space again
                failures += err.errno not in FULL
                if failures == SAVE_TRIES:
                    raise
                log.warning("metadata of %s was not saved, trying again: %s", self._group, err)
                await context.env.tasks.sleep_ms(RETRY_MS)
            else:
                if self.saving is config:  # otherwise a later one is being saved
                    self.saving = None

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._context.env.tasks.spawn(self._guarded(work), f"{what} {self._group}")

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as err:  # of its files, or a bug: only this replica ends
            if not self._closed:
                self._fail(err)
