"""Batches of other servers that wait until the clock's ceiling is durable above their stamps.

Rules: on the loop only. A dropped batch counts as lost in the network: Raft retries.
"""

import logging
from collections import deque
from collections.abc import Callable

from nyala.common.ids import ServerUuid
from nyala.env.server_clock import FarAhead
from nyala.raft.messages import AppendEntries, PeerBatch
from nyala.replica.context import ReplicaContext

log = logging.getLogger(__name__)

MAX_HELD_BYTES = 16 << 20
"""Maximum bytes of held batches; none are held unless the disk is very slow."""
MESSAGE_BYTES = 200


class HeldBatches:
    """Batches above the clock's durable ceiling, released in the order in which they came.

    Args:
        context: the process.
        deliver: called with each batch once the clock has passed its stamp.
    """

    def __init__(self, context: ReplicaContext, deliver: Callable[[PeerBatch], None]) -> None:
        self._context = context
        self._deliver = deliver
        self._batches: deque[PeerBatch] = deque()
        self._bytes = 0
        self._waiting = False

    def add(self, batch: PeerBatch) -> None:
        """Hold a batch until the clock may pass its stamp; drop it if the limit is exceeded."""
        size = _size(batch)
        if self._bytes + size > MAX_HELD_BYTES:
            self._context.counters.refused.labels("clock").inc()
            return
        self._batches.append(batch)
        self._bytes += size
        if not self._waiting:
            self._waiting = True
            self._context.env.tasks.spawn(self._release(), "batches above the clock's ceiling")

    def peer_exited(self, server: ServerUuid) -> None:
        """Drop the batches of a server whose process has exited."""
        if self._batches:
            self._batches = deque(b for b in self._batches if b.sender != server)
            self._bytes = sum(map(_size, self._batches))

    async def _release(self) -> None:
        try:
            while self._batches:
                await self._release_first()
        finally:
            self._waiting = False  # the next batch starts another task

    async def _release_first(self) -> None:
        try:
            await self._context.clock.advance_past(self._batches[0].hlc)
        except (OSError, FarAhead) as err:  # dropped as if the network had lost them
            log.warning("%d batches of peers were dropped: %s", len(self._batches), err)
            self._batches.clear()
        # The first may be another one now, if the sender of the one before has ended.
        while self._batches and not self._context.clocks.is_too_far_ahead(self._batches[0].hlc):
            batch = self._batches.popleft()
            self._bytes -= _size(batch)
            try:
                self._deliver(batch)
            except Exception as bug:  # the batches behind it are of other servers
                log.error("a batch of %s was not delivered", batch.sender, exc_info=bug)
        self._bytes = self._bytes if self._batches else 0


def _size(batch: PeerBatch) -> int:
    entries = (m.entries for _, m in batch.messages if isinstance(m, AppendEntries))
    payloads = sum(len(e.payload) for found in entries for e in found)
    return payloads + MESSAGE_BYTES * (1 + len(batch.messages))
