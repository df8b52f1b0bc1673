"""One replica as servers see it: its state through its life, and its member while it takes part.

Rules: made and ended by `ReplicaHost`; on the loop only. FAILED keeps all files and says nothing to
anybody: no vote, no acknowledgement, no answer to a read.
"""

import logging

from nyala.common.errors import NotFound, NyalaError, Unavailable
from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.raft.membership import Configuration
from nyala.raft.messages import HardState
from nyala.raft.node import RaftNode
from nyala.raft.status import Role
from nyala.replica.around import Around
from nyala.replica.bootstrap import Opened
from nyala.replica.maintenance import Maintenance
from nyala.replica.member import Member
from nyala.replica.state_machine import StateMachine
from nyala.replica.status import ReplicaStatus, State, WriteOutcome

__all__ = ["Maintenance", "Replica"]

log = logging.getLogger(__name__)


class Replica:
    """One member of one group.

    Attributes:
        group: id of the tablet, which is that of the Raft group.
        error: why it is FAILED; None otherwise.
        member: its working parts; None unless it takes part. For the host.
    """

    def __init__(self, around: Around, group: TabletId) -> None:
        self.group = group
        self.error: BaseException | None = None
        self.member: Member | None = None
        self._around = around
        self._ended: Member | None = None
        self._tombstone = False
        self._hard_state = HardState()
        self._last = NO_OP
        self._config = Configuration(())

    # ---- what it is --------------------------------------------------------------------------------

    @property
    def node(self) -> RaftNode | None:
        """Its core, while it takes part."""
        return None if self.member is None else self.member.node

    @property
    def machine(self) -> StateMachine:
        """What is replicated.

        Raises:
            Unavailable: the replica does not take part (FAILED, or still opening). NotFound: deleted.
        """
        return self._taking_part().applier.machine

    @property
    def state(self) -> State:
        """See `State`."""
        if self._tombstone:
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
    def is_leader(self) -> bool:
        """Whether it leads its group, as far as it knows."""
        return self.member is not None and self.member.node.is_leader

    def status(self) -> ReplicaStatus:
        """Return everything that is worth showing."""
        member, state = self.member, self.state
        if member is None:
            return ReplicaStatus(
                group=self.group,
                state=state,
                role=Role.NON_PARTICIPANT,
                term=self._hard_state.term,
                leader=None,
                config=self._config,
                committed_config=self._config,
                last=self._last,
                error="" if self.error is None else str(self.error) or repr(self.error),
            )
        raft, applier = member.node.status(), member.applier
        return ReplicaStatus(
            group=self.group,
            state=state,
            role=raft.role,
            term=raft.term,
            leader=raft.leader,
            config=raft.config,
            committed_config=raft.committed_config,
            commit=raft.commit,
            applied=applier.applied,
            applied_stamp=applier.applied_stamp,
            durable=raft.durable,
            last=raft.last,
            cut=applier.machine.cut.op,
            unflushed_bytes=applier.machine.unflushed_bytes(),
            peers=raft.peers,
        )

    # ---- what it does ------------------------------------------------------------------------------

    async def write(
        self,
        payload: bytes,
        *,
        client_id: bytes,
        sequence: int,
        first_outstanding: int,
        timeout_ms: int,
    ) -> WriteOutcome:
        """Replicate an operation once; returns when it is durable on a majority and applied here.

        Args:
            payload: for the state machine.
            client_id: 16 bytes, chosen at random by the client.
            sequence: number of the operation among this client's on this group; a retry has the same.
            first_outstanding: the client has the results of everything below it.
            timeout_ms: how long the caller waits; the operation may take effect later still.

        Raises:
            InvalidArgument: the ids are malformed, or the sequence was used with other bytes.
            NotLeader, Throttled, TooLarge, Unavailable, NotFound: nothing was proposed.
            OutcomeUnknown: leadership was lost, or the time was up, while it was in flight.
            SessionExpired: it may have taken effect long ago; it was not executed (again).
        """
        member = self._taking_part()
        return await member.write(payload, client_id, sequence, first_outstanding, timeout_ms)

    async def read_point(self, at: int | None, timeout_ms: int) -> int:
        """Return a time T (`at`, or now) at which this leader can be read (design section 8).

        A majority has confirmed since the call that this replica leads, every entry stamped at or
        below T is applied here, and no leader will ever stamp another one.

        Raises:
            InvalidArgument: `at` is further in the future than `clock_max_ahead_ms`.
            NotLeader: another replica leads. Unavailable: FAILED. NotFound: deleted.
            TimedOut: no majority answered in time.
        """
        return await self._taking_part().read_point(at, timeout_ms)

    async def maintain(self, prepare: Maintenance) -> bool:
        """Run one flush or compaction of the machine, never two at a time; False: nothing to do.

        Raises:
            Unavailable, NotFound: it does not take part. OSError: nothing changed.
        """
        return await self._taking_part().keeper.run(prepare)

    async def flush(self) -> bool:
        """Flush now, whatever its size; durable on return. Raises as `maintain`."""
        return await self._taking_part().keeper.flush()

    def transfer(self, to: ServerUuid) -> None:
        """Hand leadership over; given up when it takes longer than an election timeout.

        Raises:
            NotLeader: it does not lead. InvalidArgument: `to` cannot lead. Unavailable, NotFound.
        """
        self._taking_part().node.transfer(to)
        self._around.dirty(self.group)

    def _taking_part(self) -> Member:
        if self.member is not None:
            return self.member
        if self._tombstone:
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
        self.member = Member(self._around, self.group, opened, self.fail)

    def fail(self, err: BaseException) -> None:
        """End as FAILED: files are kept, whoever waits is told."""
        if self._tombstone or self.error is not None:
            return
        log.error("the replica of %s failed", self.group, exc_info=err)
        self.error = err
        self._around.counters.failed.inc()
        self._end(f"the replica of {self.group} has failed ({err})")
        self._around.changed(self.group)

    def _end(self, why: str, err: NyalaError | None = None) -> None:
        member, self.member = self.member, None
        if member is None:
            return
        status = member.node.status()
        self._hard_state = member.node.core.hard
        self._last, self._config = status.last, status.config
        self._ended = member
        member.end(why, err)

    def promises(self) -> tuple[HardState, OpId]:
        """Return term, vote and last op id as known last, for the tombstone."""
        if self.member is not None:
            return self.member.node.core.hard, self.member.node.last
        return self._hard_state, self._last

    async def stop(self) -> None:
        """Take part no more and close the machine; for `close` and before deletion."""
        why = "the server is stopping, or the replica is being deleted"
        self._end(why, Unavailable(f"{why}; ask another replica"))
        ended, self._ended = self._ended, None
        if ended is not None:
            await ended.close()

    def bury(self, hard_state: HardState, last: OpId) -> None:
        """Become TOMBSTONED; what was promised is kept."""
        assert self.member is None, f"{self.group} still takes part"
        self._tombstone = True
        self._hard_state, self._last = hard_state, last
        self._around.changed(self.group)
