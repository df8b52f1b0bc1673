"""One member of one group: drives its core, applies what is committed, answers writes and reads.

Signatures first.
"""

from collections.abc import Callable

from nyala.common.ids import ServerUuid, TabletId
from nyala.replica.state_machine import StateMachine
from nyala.replica.status import ReplicaStatus, State, WriteOutcome

Maintenance = Callable[[], Callable[[], Callable[[], None]] | None]
"""`prepare` (lane APPLY) -> None, or `build` (lane COMPUTE) -> `install` (lane APPLY)."""


class Replica:
    """One member of one group. Made by `ReplicaHost`; on the loop only."""

    group: TabletId

    @property
    def machine(self) -> StateMachine:
        """What is replicated. Raises Unavailable while there is none (FAILED, TOMBSTONED)."""
        raise AssertionError

    @property
    def state(self) -> State:
        """See `State`."""
        raise AssertionError

    @property
    def is_leader(self) -> bool:
        """Whether it leads its group, as far as it knows."""
        raise AssertionError

    def status(self) -> ReplicaStatus:
        """Everything that is worth showing. `status().role/.term/.leader/.config` as in raft Status."""
        raise AssertionError

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

        Raises:
            InvalidArgument: the ids are malformed, or the sequence was used with other bytes.
            NotLeader, Throttled, Unavailable: nothing was proposed.
            OutcomeUnknown: leadership was lost, or the time was up, while it was in flight.
            SessionExpired: it may have taken effect long ago; it was not executed (again).
        """
        raise AssertionError

    async def read_point(self, at: int | None, timeout_ms: int) -> int:
        """Return a time T (`at`, or now) at which this leader can be read (design section 8).

        Raises:
            InvalidArgument: `at` is further in the future than `clock_max_ahead_ms`.
            NotLeader: another replica leads. Unavailable: FAILED. TimedOut: no majority answered in time.
        """
        raise AssertionError

    async def maintain(self, prepare: Maintenance) -> bool:
        """Run one flush or compaction of the machine, never two at a time; False: nothing to do."""
        raise AssertionError

    async def flush(self) -> bool:
        """Flush now, whatever its size; durable on return."""
        raise AssertionError

    def transfer(self, to: ServerUuid) -> None:
        """Hand leadership over. Raises NotLeader, InvalidArgument."""
        raise AssertionError
