"""Votes of a deleted replica: it answers vote requests from its superblock, and nothing else.

Entries that it acknowledged still count towards commits, so it refuses candidates that lack them; and a group
that needs its vote for a majority gets it. A vote is durable in the superblock before it is sent. A tombstone
never acknowledges entries: it has none. For a while after its deletion it votes for nobody, because the
replica may have promised that to its leader. A replica that was deleted while FAILED does not vote: its
earlier vote may be lost with its files.
"""

import asyncio
import logging
from dataclasses import replace

from nyala.common.option_limits import READ_LEASE_MAX_MS
from nyala.env.tasks import Lane
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, RequestVote
from nyala.raft.node import RaftNode
from nyala.raft.ready import NOTHING, Ready
from nyala.replica.context import ReplicaContext
from nyala.replica.superblock import Superblock

log = logging.getLogger(__name__)

PROMISED_US_PER_MS = 1250
"""Microseconds without votes for each millisecond that the deleted replica may have promised its leader (the
read lease, `raft/roles/reads.py`); a clock that is fast measures more than the true time."""


class Tombstone:
    """A deleted replica that may vote. On the loop only.

    Attributes:
        superblock: as it is on disk.
        config: last known members of its group, without an id.

    Args:
        context: the process.
        superblock: TOMBSTONED, durable.
    """

    def __init__(self, context: ReplicaContext, superblock: Superblock) -> None:
        self.superblock = superblock
        self._context = context
        self.config = Configuration(superblock.members)
        self._node = self._core()
        self._answering = False
        self._answer_task: asyncio.Task[object] | None = None
        self._votes_suspended = False
        clock = context.env.clock
        self._votes_from_us = clock.monotonic_us() + READ_LEASE_MAX_MS * PROMISED_US_PER_MS

    def _core(self) -> RaftNode:
        """Return a Raft node whose log ends where the deleted one did, which decides on votes."""
        return RaftNode(
            self._context.uuid,
            self.config,
            self.superblock.hard_state,
            base=self.superblock.last,
            random=self._context.env.random.randrange,
        )

    def step(self, message: AnyMessage, hlc: int) -> bool:
        """Answer a vote request, once the vote is durable; return False for any other message."""
        if (
            self._votes_suspended
            or not self.superblock.votes
            or not isinstance(message, RequestVote)
            or (
                self._context.env.clock.monotonic_us() < self._votes_from_us
                and not message.override
            )
        ):
            return False
        self._node.step(message, hlc)
        if not self._answering:
            self._answering = True
            name = f"votes of {self.superblock.group}"
            self._answer_task = self._context.env.tasks.spawn(self._answer(), name)
        return True

    async def suspend_votes(self) -> Superblock:
        """Stop voting while a copy replaces this tombstone; return its durable superblock."""
        self._votes_suspended = True
        if self._answer_task is not None:
            await asyncio.gather(self._answer_task, return_exceptions=True)
        return self.superblock

    def resume_votes(self) -> None:
        """Vote again, since the copy failed."""
        self._votes_suspended = False

    async def _answer(self) -> None:
        try:
            while (ready := self._node.ready()) is not NOTHING:
                await self._perform(ready)
        except OSError as err:  # as if the request was lost: the vote was not cast
            log.warning("a vote of deleted %s was not saved: %s", self.superblock.group, err)
            self._node = self._core()
        finally:
            self._answering = False

    async def _perform(self, ready: Ready) -> None:
        context, group = self._context, self.superblock.group
        if ready.persist is not None:
            voted = replace(self.superblock, hard_state=ready.persist)
            await context.env.tasks.run(Lane.DISK, context.superblocks.save, voted)
            self.superblock = voted
            self._node.durable(ready.point)
        for outgoing in ready.send:
            context.send(self.config, group, outgoing.message)
        context.schedule(group)  # the outbox is sent at the end of this iteration
