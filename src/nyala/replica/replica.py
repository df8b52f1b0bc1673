"""One replica as servers see it: what it is, and what may be asked of it."""

import asyncio
import logging
from collections.abc import Sequence

from nyala.common.errors import NotLeader
from nyala.common.ids import OpId, ServerUuid
from nyala.raft.changes import Change
from nyala.raft.membership import Configuration
from nyala.replica.life import Life, describe
from nyala.replica.member.flusher import Maintenance
from nyala.replica.state_machine import StateMachine
from nyala.replica.status import ReplicaStatus, Upkeep, WriteOutcome

__all__ = ["Maintenance", "Replica"]

log = logging.getLogger(__name__)


class Replica(Life):
    """One member of one group. Made and ended by `ReplicaHost`; on the loop only."""

    # ---- what it is --------------------------------------------------------------------------------

    @property
    def machine(self) -> StateMachine:
        """What is replicated.

        Raises:
            Unavailable: the replica does not take part (FAILED, or still opening). NotFound: deleted.
        """
        return self.taking_part().applier.machine

    def status(self) -> ReplicaStatus:
        """Return everything that is worth showing."""
        return describe(self)

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
    ) -> WriteOutcome:
        """Replicate an operation once; returns when it is durable on a majority and applied here.

        Args:
            payload: for the state machine.
            client_id: 16 bytes, chosen at random by the client.
            sequence: number of the operation among this client's on this group; a retry has the same.
            first_outstanding: the client has the results of everything below it.
            timeout_ms: how long the caller waits; the operation may take effect later still.
            seen: the highest stamp that the client has seen anywhere; the operation gets one above it, unless
                that lies further in the future than `clock_max_ahead_ms`.
            since: hybrid time before which no attempt was executed, the same for all attempts; 0: not known;
                None: now, from who never sends the same operation twice, or does no harm by it.

        Raises:
            InvalidArgument: the ids are malformed, or the sequence was used with other bytes.
            NotLeader, Throttled, TooLarge, Unavailable, NotFound: nothing was proposed.
            OutcomeUnknown: leadership was lost, or the time was up, while it was in flight.
            SessionExpired: it may have taken effect long ago; it was not executed (again). With details
                `reason` = CLIENT_FORGOTTEN: unless no attempt came before `forgotten_until`.
        """
        member = self.taking_part()
        return await member.requests.write(
            payload, client_id, sequence, first_outstanding, timeout_ms, seen, since
        )

    async def read_point(self, at: int | None, timeout_ms: int) -> int:
        """Return a time T (`at`, once it is not in the future, or now) at which this leader can be read.

        A majority has confirmed since the call that this replica leads, every entry stamped at or
        below T is applied here, and no leader will ever stamp another one.

        Raises:
            InvalidArgument: `at` is further in the future than `clock_max_ahead_ms`.
            NotLeader: another replica leads. Unavailable: FAILED. NotFound: deleted. TimedOut: no majority.
        """
        if at is not None:
            clock = self.around.env.clock
            deadline_us = clock.monotonic_us() + timeout_ms * 1000
            await self.taking_part().requests.reach(at, deadline_us)
            timeout_ms = -(-max(0, deadline_us - clock.monotonic_us()) // 1000)
        return await self.read_soon(at, timeout_ms)

    def read_soon(self, at: int | None, timeout_ms: int) -> "asyncio.Future[int]":
        """As `read_point`, without a task; what can be raised at once is."""
        return self.taking_part().requests.read_soon(at, timeout_ms)

    async def stale_point(
        self, max_age_ms: int, timeout_ms: int, *, least: int = 0
    ) -> tuple[int, int]:
        """Return a time at which this replica can be read, leader or not, and its age in milliseconds.

        Every entry stamped at or below it is applied here, and no leader will ever stamp another one; so it
        has every write that was acknowledged before (by its leader's clock) it was the present.

        Args:
            max_age_ms: how old it may be.
            timeout_ms: a leader whose closed time is older asks its group anew, for so long at most.
            least: earlier times cannot be read any more.

        Raises:
            NotLeader: what this replica has is too old (details: `reason` TOO_OLD); the leader can serve.
            Unavailable: FAILED. NotFound: deleted. TimedOut: no majority answered in time.
        """
        member, clock = self.taking_part(), self.around.env.clock
        found = member.closing.stale(max_age_ms, least)
        if found is not None:
            return found
        if not self.is_leader:
            err = member.requests.not_leader()
            why = f"what this replica has is older than {max_age_ms} ms, or than was asked for; {err.message}"
            raise NotLeader(why, err.details | {"reason": "TOO_OLD"})
        began_us = clock.monotonic_us()
        at = await member.requests.read_soon(None, timeout_ms)
        return at, -(-(clock.monotonic_us() - began_us) // 1000)

    async def maintain(self, prepare: Maintenance) -> bool:
        """Run one compaction of the machine, never beside a flush; False: nothing to do.

        Raises:
            Unavailable, NotFound: it does not take part. OSError: nothing changed.
        """
        return await self.taking_part().keeper.merge(prepare)

    def upkeep(self) -> Upkeep:
        """Return what flushes and merges have cost. Raises as `machine`."""
        return self.taking_part().keeper.upkeep()

    async def flush(self) -> bool:
        """Flush now, whatever its size; durable on return. Raises as `maintain`."""
        return await self.taking_part().keeper.flush()

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
            CasFailed: the configuration is another one. InvalidArgument: see `raft.changes`.
            Unavailable: an earlier change is not committed yet; try again. Or FAILED. NotFound: deleted.
            OutcomeUnknown: leadership was lost, or the time was up, while it was in flight.
        """
        return await self.taking_part().requests.change_config(changes, expected, timeout_ms)

    def transfer(self, to: ServerUuid | None = None) -> ServerUuid:
        """Hand leadership over, to the most up-to-date voter unless one is named; return to whom.

        It is given up when it takes longer than an election timeout.

        Raises:
            NotLeader: it does not lead. InvalidArgument: `to` cannot lead. Unavailable, NotFound.
        """
        member = self.taking_part()
        if not member.node.is_leader:
            raise member.requests.not_leader()
        successor = member.node.transfer(to)
        self.around.dirty(self.group)
        return successor
