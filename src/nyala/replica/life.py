"""The life of one replica: opening, taking part, FAILED, deleted; and its member while it takes part.

Rules: told by the host; on the loop only. FAILED keeps all files, lets go of what it had in memory, and says
nothing to anybody: no vote, no acknowledgement, no answer to a read.
"""

import asyncio
import logging

from nyala.common.errors import NotFound, NyalaError, Unavailable
from nyala.common.ids import NO_OP, TabletId
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, HardState
from nyala.raft.node import RaftNode
from nyala.raft.status import Role
from nyala.replica.context import Around
from nyala.replica.member.bootstrap import Opened
from nyala.replica.member.member import Member
from nyala.replica.status import ReplicaStatus, State
from nyala.replica.superblock import Stage, Superblock
from nyala.replica.tombstone import Tombstone

log = logging.getLogger(__name__)


class Life:
    """What a replica goes through; see `Replica`, which is its face.

    Attributes:
        group: id of the tablet, which is that of the Raft group.
        error: why it is FAILED; None otherwise.
        member: its working parts; None unless it takes part. For the host.
    """

    def __init__(self, around: Around, group: TabletId) -> None:
        self.group = group
        self.error: BaseException | None = None
        self.member: Member | None = None
        self.around = around
        self._ended: Member | None = None
        self._closing = asyncio.Lock()
        self.tombstone: Tombstone | None = None
        self.hard_state = HardState()
        self.last = NO_OP
        self.config = Configuration(())

    @property
    def node(self) -> RaftNode | None:
        """Its core, while it takes part."""
        return None if self.member is None else self.member.node

    @property
    def state(self) -> State:
        """See `State`."""
        if self.tombstone is not None:
            return State.TOMBSTONED
        if self.error is not None:
            return State.FAILED
        member = self.member
        if member is None:
            return State.BOOTSTRAPPING
        node = member.node
        if member.standing.accepting if node.is_leader else node.leader is not None:
            return State.RUNNING
        return State.CONFIGURING

    @property
    def role(self) -> Role:
        """What it is to its group; without a core NON_PARTICIPANT."""
        return Role.NON_PARTICIPANT if self.member is None else self.member.node.role

    @property
    def is_leader(self) -> bool:
        """Whether it leads its group, as far as it knows."""
        return self.member is not None and self.member.node.is_leader

    def taking_part(self) -> Member:
        """Return the working parts. Raises Unavailable (FAILED, still opening), NotFound (deleted)."""
        if self.member is not None:
            return self.member
        if self.tombstone is not None:
            raise NotFound(f"the replica of {self.group} on this server was deleted")
        if self.error is not None:
            raise Unavailable(
                f"the replica of {self.group} on this server has failed: {self.error}"
            )
        raise Unavailable(f"the replica of {self.group} is being opened; ask again")

    # ---- its life, told by the host ----------------------------------------------------------------

    def take_part(self, opened: Opened) -> None:
        """Begin."""
        assert self.member is None, f"{self.group} takes part already"
        self.member = Member(self.around, self.group, opened, self.fail)

    def fail(self, err: BaseException) -> None:
        """End as FAILED: files are kept, memory is not, whoever waits is told."""
        if self.tombstone is not None or self.error is not None:
            return
        log.error("the replica of %s failed", self.group, exc_info=err)
        self.error = err
        self.around.counters.failed.inc()
        self.around.wal.abandon(self.group)
        self._end(f"the replica of {self.group} has failed ({err})")
        if self._ended is not None:
            self.around.env.tasks.spawn(self._release(), f"release {self.group}")
        self.around.changed(self.group)

    def _end(self, why: str, err: NyalaError | None = None) -> None:
        member, self.member = self.member, None
        if member is None:
            return
        core = member.node.core
        self.hard_state, self.config = core.hard, core.configs.active
        self.last = max(core.log.last, core.owed)  # what it lost counts: it had acknowledged that
        self._ended = member
        member.end(why, err)
        self.around.dirty(self.group)  # nobody may sleep on it

    def promises(self) -> Superblock:
        """Return the tombstone of this replica, which takes no part: what it promised, as known last."""
        assert self.member is None, f"{self.group} still takes part"
        known = self.hard_state != HardState()
        members = self.config.members
        return Superblock(self.group, Stage.TOMBSTONED, self.hard_state, self.last, known, members)

    async def stop(self) -> None:
        """Take part no more and close the machine; for `close` and before deletion."""
        why = "the server is stopping, or the replica is being deleted"
        self._end(why, Unavailable(f"{why}; ask another replica"))
        await self._close_ended()

    async def _release(self) -> None:
        """Close the machine of a FAILED replica: its rows would count against the memory budget for ever."""
        try:
            await self._close_ended()
        except (OSError, NyalaError) as err:
            log.warning("the files of failed %s were not closed: %s", self.group, err)

    async def _close_ended(self) -> None:
        async with self._closing:
            ended, self._ended = self._ended, None
            if ended is not None:
                await ended.close()

    def bury(self, superblock: Superblock) -> None:
        """Become TOMBSTONED, as the superblock says; what was promised is kept."""
        assert self.member is None, f"{self.group} still takes part"
        self.tombstone = Tombstone(self.around, superblock)
        self.error = None
        self.around.changed(self.group)

    def hear_buried(self, message: AnyMessage, hlc: int) -> bool:
        """Take a message while not taking part; return whether anything here has an answer to it."""
        return self.tombstone is not None and self.tombstone.hear(message, hlc)


def describe(life: Life) -> ReplicaStatus:
    """Return everything that is worth showing."""
    member, state = life.member, life.state
    if member is None:
        was = life.promises() if life.tombstone is None else life.tombstone.superblock
        return ReplicaStatus(
            group=life.group,
            state=state,
            role=Role.NON_PARTICIPANT,
            term=was.hard_state.term,
            leader=None,
            config=life.config,
            committed_config=life.config,
            last=was.last,
            vote=was.hard_state.vote,
            error="" if life.error is None else str(life.error) or repr(life.error),
        )
    raft, applier = member.node.status(), member.applier
    return ReplicaStatus(
        group=life.group,
        state=state,
        role=raft.role,
        term=raft.term,
        leader=raft.leader,
        config=raft.config,
        committed_config=raft.committed_config,
        commit=raft.commit,
        applied=applier.applied,
        applied_stamp=applier.applied_stamp,
        told=raft.told,
        durable=raft.durable,
        last=raft.last,
        cut=applier.machine.cut.op,
        closed=raft.closed,
        vote=raft.vote,
        unflushed_bytes=applier.machine.unflushed_bytes(),
        peers=raft.peers,
        quiesced=raft.quiesced,
        error=life.around.sick or life.around.memory.strained,
        warning=life.around.slow_log.warning,
    )
