"""All replicas of one process: one write-ahead log, one tick, one batch per peer and loop turn.

Signatures first.
"""

from collections.abc import Callable

from nyala.common.ids import ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.raft.membership import Configuration
from nyala.replica.replica import Replica
from nyala.replica.state_machine import StateMachine, Transport
from nyala.wal.log import Wal

CreateMachine = Callable[[str], StateMachine]
"""Makes the machine of a new replica in this directory (`<dir>/data/<group>`, empty); lane COMPUTE."""
OpenMachine = Callable[[TabletId, str], StateMachine]
"""Opens the machine of an existing replica from this directory; lane COMPUTE."""


class ReplicaHost:
    """Owns all replicas of a process. Made by `open`; on the loop only."""

    wal: Wal

    @classmethod
    async def open(
        cls,
        env: Env,
        options: Options,
        directory: str,
        uuid: ServerUuid,
        transport: Transport,
        clock: HybridClock,
        open_machine: OpenMachine,
        *,
        metrics: Metrics | None = None,
        on_change: Callable[[TabletId], None] | None = None,
    ) -> "ReplicaHost":
        """Open the log and every replica of a formatted data directory, and begin to take part.

        A replica that cannot be opened is FAILED with its error kept; the others go on.
        `on_change(group)` is called on the loop when configuration, leader, role or state changed.

        Raises:
            Corrupt, OSError: the log as a whole cannot be used.
        """
        raise AssertionError

    async def create_replica(
        self, group: TabletId, config: Configuration, create_machine: CreateMachine
    ) -> Replica:
        """Make a new replica, durable on return; it takes part at once.

        Raises:
            AlreadyPresent: the group has a replica here, or had one (tombstone).
            InvalidArgument: this server is not in `config`. OSError, Throttled.
        """
        raise AssertionError

    async def delete_replica(self, group: TabletId) -> None:
        """Delete a replica's data and log; its vote and last op id stay (tombstone). Durable on return.

        Writes in flight end with OutcomeUnknown. Done before: no error. Raises NotFound.
        """
        raise AssertionError

    def get(self, group: TabletId) -> Replica:
        """Return the replica of a group, whatever its state. Raises NotFound."""
        raise AssertionError

    def find(self, group: TabletId) -> Replica | None:
        """Return the replica of a group, whatever its state, or None."""
        raise AssertionError

    def all(self) -> list[Replica]:
        """Return every replica, TOMBSTONED and FAILED ones too, in the order of their ids."""
        raise AssertionError

    async def close(self) -> None:
        """Stop taking part, end what is in flight, close machines and log. Files stay as they are."""
        raise AssertionError
