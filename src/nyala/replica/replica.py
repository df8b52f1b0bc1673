"""Replica: one member of one Raft group, with its lifecycle and its requests.

The host opens, fails and deletes it. A FAILED replica keeps its files and frees its memory. It does not vote,
acknowledge or answer reads. On the loop only.
"""

import asyncio
import logging
from collections.abc import Sequence

from nyala.common.errors import NotFound, NotLeader, NyalaError, Unavailable
from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, HardState
from nyala.raft.node import RaftNode
from nyala.raft.reconfiguration.changes import Change
from nyala.raft.status import Role
from nyala.replica.context import ReplicaContext
from nyala.replica.member.bootstrap import Opened
from nyala.replica.member.description import describe
from nyala.replica.member.flusher import Maintenance
from nyala.replica.member.member import ReplicaMember
from nyala.replica.member.session_header import NO_OWNER
from nyala.replica.member.transactions.requests import TransactionRequests
from nyala.replica.state_machine import StateMachine
from nyala.replica.status import MaintenanceStats, ReplicaStatus, State, WriteOutcome
from nyala.replica.superblock import ReplicaStage, Superblock
from nyala.replica.tombstone import Tombstone
from nyala.replica.witness import Witness

__all__ = ["Maintenance", "Replica", "is_witness"]

log = logging.getLogger(__name__)


class Replica:
    """One member of one group. Made and ended by `ReplicaHost`; on the loop only.

    Args:
        context: the process.
        group: id of the tablet, which is that of the Raft group.

    Attributes:
        group: as given.
        error: why it is FAILED; None otherwise.
        member: its parts while it runs; None otherwise. For the host.
        tombstone: set when it was deleted.
    """

    def __init__(self, context: ReplicaContext, group: TabletId) -> None:
        self.group = group
        self.error: BaseException | None = None
        self.member: ReplicaMember | None = None
        self.context = context
        self._ended: ReplicaMember | None = None
        self._closing = asyncio.Lock()
        self.tombstone: Tombstone | None = None
        self.hard_state = HardState()
        self.last = NO_OP
        self.config = Configuration(())

    @property
    def node(self) -> RaftNode | None:
        """Raft node while it runs; None otherwise."""
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
        serves = member.leadership_watch.accepting if node.is_leader else node.leader is not None
        return State.RUNNING if serves else State.CONFIGURING

    @property
    def role(self) -> Role:
        """Raft role; NON_PARTICIPANT while it does not run."""
        return Role.NON_PARTICIPANT if self.member is None else self.member.node.role

    @property
    def is_leader(self) -> bool:
        """True if it leads its group, as far as it knows."""
        return self.member is not None and self.member.node.is_leader

    def running_member(self) -> ReplicaMember:
        """Return the running member.

        Raises:
            Unavailable: FAILED, or still opening. NotFound: deleted.
        """
        if self.member is not None:
            return self.member
        if self.tombstone is not None:
            raise NotFound(f"the replica of {self.group} on this server was deleted")
        if self.error is not None:
            raise Unavailable(f"the replica of {self.group} here has failed: {self.error}")
        raise Unavailable(f"the replica of {self.group} is being opened; ask again")

    @property
    def machine(self) -> StateMachine:
        """State machine of this replica.

        Raises:
            Unavailable: the replica does not take part (FAILED, or still opening). NotFound: deleted.
        """
        return self.running_member().applier.machine

    def status(self) -> ReplicaStatus:
        """Return the status."""
        return _describe_ended(self) if self.member is None else describe(self.member, self.state)

    # ---- what it does ------------------------------------------------------------------------------

    async def write(
        self,
        payload: bytes,
        *,
        client_id: bytes,
        sequence: int,
        first_outstanding: int,
        timeout_ms: int,
        seen: int = 0,
        since: int | None = None,
        staged: bool = False,
        owner: int = NO_OWNER,
    ) -> WriteOutcome:
        """Replicate an operation once; returns when it is durable on a majority and applied here.

        Args:
            payload: for the state machine.
            client_id: 16 bytes, chosen at random by the client.
            sequence: number of the operation among this client's on this group; a retry has the same.
            first_outstanding: the client has the results of everything below it.
            timeout_ms: how long the caller waits; the operation may take effect later still.
            seen: the highest stamp that the client has received from any server; the operation gets one above
                it, unless that lies further in the future than `clock_max_ahead_ms`.
            since: hybrid time before which no attempt was executed, the same for all attempts; 0: not known;
                None: now, for callers whose operations are never sent twice, or are idempotent.
            staged: it is a STAGE, which does not wait for prepared transactions.
            owner: of the client: NO_OWNER, SERVERS, or a user, as `session_header.owner_of` numbers them.

        Raises:
            InvalidArgument: the ids are malformed, or the sequence was used with other bytes; with details
                `latest_since`: `since` is too far in the future, and it was not executed.
            NotLeader, Throttled, TooLarge, Unavailable, NotFound: nothing was proposed.
            OutcomeUnknown: leadership was lost, or the time was up, while it was in flight.
            SessionExpired: it may have taken effect long ago; it was not executed (again). With details
                `reason` = CLIENT_FORGOTTEN: unless no attempt came before `forgotten_until`.
        """
        write = self.running_member().requests.write
        return await write(
            payload, client_id, sequence, first_outstanding, timeout_ms, seen, since, staged, owner
        )

    @property
    def transactions(self) -> TransactionRequests:
        """Operations of transactions. Raises as `machine`."""
        return self.running_member().transactions

    async def read_point(self, at: int | None, timeout_ms: int) -> int:
        """Return a time T (`at`, once it is not in the future, or now) at which this leader can be read.

        A majority has confirmed since the call that this replica leads, every entry stamped at or
        below T is applied here, and no leader will ever stamp another one.

        Raises:
            InvalidArgument: `at` is further in the future than `clock_max_ahead_ms`.
            NotLeader: another replica leads. Unavailable: FAILED. NotFound: deleted. TimedOut: no majority.
        """
        if at is not None:
            clock = self.context.env.clock
            deadline_us = clock.monotonic_us() + timeout_ms * 1000
            await self.running_member().requests.wait_readable(at, deadline_us)
            timeout_ms = -(-max(0, deadline_us - clock.monotonic_us()) // 1000)
        return await self.start_read(at, timeout_ms)

    def read_now(self) -> int:
        """Return a time at which this leader can be read at once under its read lease, with the latest rows.

        It is the stamp of the last entry applied, which is committed: later leaders stamp above it.

        Returns:
            0 if there is no lease, or a transaction is prepared: `start_read` then waits for what is needed.

        Raises:
            Unavailable, NotFound: as `machine`.
        """
        return self.running_member().lease_reads.read_now()

    async def latest_point(self, timeout_ms: int) -> int:
        """Return a time at which this leader's latest rows can be read, by its lease or after a read round.

        Unlike `read_point`, it need not wait for entries that are not acknowledged yet. Raises the same.
        """
        return self.read_now() or await self.start_read(None, timeout_ms)

    def start_read(self, at: int | None, timeout_ms: int) -> "asyncio.Future[int]":
        """As `read_point`, without a task; errors that are known at once are raised directly."""
        return self.running_member().requests.start_read(at, timeout_ms)

    async def stale_point(
        self, max_age_ms: int, timeout_ms: int, *, min_time: int = 0
    ) -> tuple[int, int]:
        """Return a time at which this replica can be read, leader or not, and its age in milliseconds.

        Every entry stamped at or below it is applied here, and no leader will ever stamp another one. So the
        replica has every write that was acknowledged before that time by its leader's clock.

        Args:
            max_age_ms: largest age.
            timeout_ms: deadline of a leader whose closed time is older and that has to confirm a new one.
            min_time: lowest time, below which history has been removed.

        Raises:
            NotLeader: this replica's closed time is too old (details: `reason` TOO_OLD); the leader can
                serve.
            Unavailable: FAILED. NotFound: deleted. TimedOut: no majority answered in time.
        """
        member, clock = self.running_member(), self.context.env.clock
        found = member.closed_time.read_time(max_age_ms, min_time)
        if found is not None:
            return found
        if not self.is_leader:
            err = member.admission.not_leader()
            why = f"what this replica has is older than {max_age_ms} ms, or than was asked for; {err.message}"
            raise NotLeader(why, err.details | {"reason": "TOO_OLD"})
        began_us = clock.monotonic_us()
        at = await member.requests.start_read(None, timeout_ms)
        return at, -(-(clock.monotonic_us() - began_us) // 1000)

    async def maintain(self, prepare: Maintenance) -> bool:
        """Run one compaction, never during a flush; False: nothing to do.

        Raises:
            Unavailable, NotFound: it does not take part. OSError: nothing changed.
        """
        return await self.running_member().flusher.compact(prepare)

    def maintenance_stats(self) -> MaintenanceStats:
        """Return the cost of flushes and compactions. Raises as `machine`."""
        return self.running_member().flusher.maintenance_stats()

    async def flush(self) -> bool:
        """Flush now; durable on return. Raises as `maintain`."""
        return await self.running_member().flusher.flush()

    async def change_config(
        self, changes: Sequence[Change], expected: OpId | None, timeout_ms: int
    ) -> Configuration:
        """Change the group's members: any number of non-voters and attributes, one voter at most.

        Args:
            changes: at most one for each server.
            expected: op id that the active configuration must have; None: any.
            timeout_ms: how long the caller waits; the change may be committed later still.

        Returns:
            The new configuration, which is committed.

        Raises:
            NotLeader: nothing was changed. With details `reason` = STEPPING_DOWN this leader was to remove
                itself, and hands leadership to `leader` first: send it there.
            CasFailed: the configuration is another one. InvalidArgument: see `changes.edited`.
            Unavailable: an earlier change is not committed yet; try again. Or FAILED. NotFound: deleted.
            OutcomeUnknown: leadership was lost, or the time was up, while it was in flight.
        """
        return await self.running_member().requests.change_config(changes, expected, timeout_ms)

    def transfer(self, to: ServerUuid | None = None) -> ServerUuid:
        """Transfer leadership to a voter, by default the most up-to-date one; return it.

        The transfer is cancelled if it takes longer than an election timeout.

        Raises:
            NotLeader: it does not lead. InvalidArgument: `to` cannot lead. Unavailable, NotFound.
        """
        member = self.running_member()
        if not member.node.is_leader:
            raise member.admission.not_leader()
        successor = member.node.transfer(to)
        self.context.schedule(self.group)
        return successor

    # ---- lifecycle, driven by the host ----------------------------------------------------------------

    def start(self, opened: Opened) -> None:
        """Run the replica with the parts that were opened."""
        assert self.member is None, f"{self.group} takes part already"
        self.member = ReplicaMember(self.context, self.group, opened, self.fail)

    def fail(self, err: BaseException) -> None:
        """Become FAILED: files are kept, memory is freed, callers that wait get errors."""
        if self.tombstone is not None or self.error is not None:
            return
        log.error("the replica of %s failed", self.group, exc_info=err)
        self.error = err
        self.context.counters.failed.inc()
        self.context.wal.abandon(self.group)
        self._end(f"the replica of {self.group} has failed ({err})")
        if self._ended is not None:
            self.context.env.tasks.spawn(self._release(), f"release {self.group}")
        self.context.changed(self.group)

    def _end(self, why: str, err: NyalaError | None = None) -> None:
        member, self.member = self.member, None
        if member is None:
            return
        node = member.node
        self.hard_state, self.last = node.view.hard_state, node.view.acknowledged
        self.config = node.config
        self._ended = member
        member.end(why, err)
        self.context.schedule(self.group)  # quiesced peers have to be notified

    def tombstone_record(self) -> Superblock:
        """Return the tombstone of this replica, which does not run: its vote and last op id."""
        assert self.member is None, f"{self.group} still takes part"
        known, members = self.hard_state != HardState(), self.config.members
        promises = self.hard_state, self.last, known, members
        return Superblock(self.group, ReplicaStage.TOMBSTONED, *promises)

    async def stop(self) -> None:
        """Stop and close the state machine; before the process ends, and before deletion."""
        why = "the server is stopping, or the replica is being deleted"
        self._end(why, Unavailable(f"{why}; ask another replica"))
        await self._close_ended()

    async def _release(self) -> None:
        """Close the machine of a FAILED replica, so that its rows do not count against the memory budget."""
        try:
            await self._close_ended()
        except (OSError, NyalaError) as err:
            log.warning("the files of failed %s were not closed: %s", self.group, err)

    async def _close_ended(self) -> None:
        async with self._closing:
            ended, self._ended = self._ended, None
            if ended is not None:
                await ended.close()

    def become_tombstone(self, superblock: Superblock) -> None:
        """Become TOMBSTONED, as the superblock says; vote and last op id are kept."""
        assert self.member is None, f"{self.group} still takes part"
        self.tombstone = Tombstone(self.context, superblock)
        self.error = None
        self.context.changed(self.group)

    def step_tombstone(self, message: AnyMessage, hlc: int) -> bool:
        """Pass a message to the tombstone; return whether it answers."""
        return self.tombstone is not None and self.tombstone.step(message, hlc)


def is_witness(replica: Replica) -> bool:
    """Return whether a replica runs as a witness: with a log and without data."""
    member = replica.member
    return member is not None and isinstance(member.applier.machine, Witness)


def _describe_ended(replica: Replica) -> ReplicaStatus:
    """Return the status of a replica that does not run."""
    was = replica.tombstone_record() if replica.tombstone is None else replica.tombstone.superblock
    return ReplicaStatus(
        group=replica.group,
        state=replica.state,
        role=Role.NON_PARTICIPANT,
        term=was.hard_state.term,
        leader=None,
        config=replica.config,
        committed_config=replica.config,
        last=was.last,
        vote=was.hard_state.vote,
        error="" if replica.error is None else str(replica.error) or repr(replica.error),
    )
