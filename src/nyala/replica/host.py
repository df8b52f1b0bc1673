"""All replicas of one process, over one write-ahead log: opened, made, found, deleted, closed.

What happens from turn to turn of the loop is `turns.py`. On the loop only.
"""

import asyncio
from collections.abc import Callable

from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound, Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.common.options import MIB, Options
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.raft.membership import Configuration
from nyala.replica import lifecycle
from nyala.replica.around import Around, Counters
from nyala.replica.lifecycle import CreateMachine, OpenMachine
from nyala.replica.outbox import Outbox
from nyala.replica.replica import Replica
from nyala.replica.state_machine import Cut, Transport
from nyala.replica.superblock import Superblocks
from nyala.replica.turns import Turns
from nyala.replica.witness import Witness
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.log import Wal

__all__ = ["CreateMachine", "OpenMachine", "ReplicaHost"]


_BEGINNING = Cut()


class ReplicaHost:
    """Owns all replicas of a process. Made by `open`; on the loop only.

    Attributes:
        wal: the process's log.
    """

    def __init__(self, around: Around, turns: Turns, replicas: dict[TabletId, Replica]) -> None:
        self.wal = around.wal
        self._around = around
        self._turns = turns
        self._replicas = replicas
        self._busy: dict[TabletId, None] = {}  # being created or deleted
        self._closed = False

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

        Args:
            env: the outside world.
            options: every tunable.
            directory: the data directory, locked by this process.
            uuid: of this server, as its directory says.
            transport: to and from the other servers.
            clock: the process's hybrid clock.
            open_machine: see `OpenMachine`.
            metrics: of this process.
            on_change: called on the loop when configuration, leader, role or state of a group changed.

        Raises:
            Corrupt, OSError: the log as a whole cannot be used.
        """
        wal, recovered = await Wal.open(
            env.files,
            env.tasks,
            directory,
            server_uuid=uuid,
            segment_bytes=options.wal_segment_mb * MIB,
            queue_bytes=options.wal_queue_bytes,
            sync=options.wal_sync == "always",
            clock=env.clock,
        )
        replicas: dict[TabletId, Replica] = {}
        turns = Turns(replicas, outbox := Outbox(uuid, transport, clock))
        around = Around(
            env, options, uuid, directory, clock, wal,
            ConsensusMetadata(env.files, directory), Superblocks(env.files, directory),
            Counters(metrics or Metrics(), wal),
            outbox.add, turns.mark, on_change or _nobody, turns.disk_failed,
        )  # fmt: skip
        doubt = next((d.error for d in wal.damage if not d.certain), None)
        await lifecycle.open_all(around, recovered, replicas, open_machine, doubt)
        turns.start(around, transport)
        return cls(around, turns, replicas)

    def get(self, group: TabletId) -> Replica:
        """Return the replica of a group, whatever its state.

        Raises:
            NotFound: this server has none, and remembers none.
        """
        if group not in self._replicas:
            raise NotFound(f"this server has no replica of tablet {group}")
        return self._replicas[group]

    def find(self, group: TabletId) -> Replica | None:
        """Return the replica of a group, whatever its state, or None."""
        return self._replicas.get(group)

    def all(self) -> list[Replica]:
        """Return every replica, TOMBSTONED and FAILED ones too, in the order of their ids."""
        return [self._replicas[group] for group in sorted(self._replicas)]

    async def create_replica(
        self, group: TabletId, config: Configuration, create_machine: CreateMachine
    ) -> Replica:
        """Make a new replica, durable on return; it takes part at once.

        Args:
            group: id of the tablet.
            config: the group's first configuration.
            create_machine: see `CreateMachine`.

        Raises:
            AlreadyPresent: the group has a replica here, or had one (tombstone).
            InvalidArgument: this server is not in `config`, or a witness.
            Unavailable: being created or deleted, or the server stops.
            OSError: the disk failed or is full, nothing was made.
        """
        me = config.get(self._around.uuid)
        if me is None:
            raise InvalidArgument(f"this server is not in the configuration of {group}")
        if not me.electable:
            raise InvalidArgument(f"this server is a witness of {group}: create_witness makes it")
        return await self._create(group, config, create_machine)

    async def create_witness(
        self, group: TabletId, config: Configuration, start: Cut = _BEGINNING
    ) -> Replica:
        """Make a new witness: a replica with a log and without data; as `create_replica`.

        Args:
            group: id of the tablet.
            config: in which this server is not electable; as of `start`, or a group's first.
            start: an entry of the group and its stamp: the witness' log begins after it. What the group
                has before is never sent here, so a copy of the data has to reach at least so far.
        """
        me = config.get(self._around.uuid)
        if me is None or me.electable:
            raise InvalidArgument(f"this server is no witness in the configuration of {group}")
        if config.id.index > start.op.index:
            raise InvalidArgument(
                f"the configuration of {config.id} lies after {start.op}, where the log is to begin"
            )
        files = self._around.env.files
        return await self._create(group, config, lambda path: Witness.create(files, path, start))

    async def _create(
        self, group: TabletId, config: Configuration, create_machine: CreateMachine
    ) -> Replica:
        if group in self._replicas:
            raise AlreadyPresent(f"{group} has a replica here: {self._replicas[group].state}")
        self._reserve(group)
        try:
            opened = await lifecycle.create(self._around, group, config, create_machine)
        finally:
            del self._busy[group]
        replica = Replica(self._around, group)
        self._replicas[group] = replica
        replica.take_part(opened)
        self._turns.mark(group)
        self._around.changed(group)
        return replica

    async def delete_replica(self, group: TabletId) -> None:
        """Delete a replica's data and log; its vote and last op id stay (tombstone). Durable on return.

        Writes in flight end with OutcomeUnknown. Done before: no error.

        Raises:
            NotFound: there is none. Unavailable: being created or deleted, or the server stops.
            OSError: the disk failed; see `lifecycle.delete`.
        """
        replica = self.get(group)
        self._reserve(group)
        try:
            await lifecycle.delete(self._around, replica)
        finally:
            del self._busy[group]

    def _reserve(self, group: TabletId) -> None:
        if self._closed:
            raise Unavailable("this server is stopping; ask another one")
        if self.wal.failed is not None:
            raise Unavailable(f"this server's log is broken: {self.wal.failed}; replace the disk")
        if group in self._busy:
            raise Unavailable(f"{group} is being created or deleted here; ask again")
        self._busy[group] = None

    async def close(self) -> None:
        """Stop taking part, end what is in flight, close machines and log. Files stay as they are."""
        self._closed = True
        self._turns.stop()
        await asyncio.gather(*(r.stop() for r in self._replicas.values()))
        await self.wal.close()


def _nobody(_group: TabletId) -> None:
    """No one asked to be told."""
