"""All replicas of one process over one write-ahead log: open, create, find, delete, close.

The event loop that runs them is `multiraft/event_loop.py`. On the loop only.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from nyala.common.errors import AlreadyPresent, InvalidArgument, Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.common.options import MIB, Options
from nyala.env.env import Env
from nyala.env.server_clock import ServerClock
from nyala.raft.membership import Configuration
from nyala.raft.status import Role
from nyala.replica import lifecycle, limits_reached
from nyala.replica.clock_offsets import ClockOffsets
from nyala.replica.clocks import Clocks
from nyala.replica.context import Counters, ReplicaContext, raft_options
from nyala.replica.copy.manager import CopyManager
from nyala.replica.lifecycle import CreateMachine, OpenMachine
from nyala.replica.log_disk import LogDiskMonitor
from nyala.replica.memory import MemoryTracker
from nyala.replica.multiraft.event_loop import EventLoop
from nyala.replica.multiraft.failure_detector import FailureDetector
from nyala.replica.multiraft.outbox import Outbox
from nyala.replica.multiraft.senders import ConfigurationSource, Senders
from nyala.replica.registry import ReplicaRegistry
from nyala.replica.replica import Replica
from nyala.replica.state_machine import FlushPoint, Transport
from nyala.replica.status import State
from nyala.replica.superblock import Superblocks
from nyala.replica.witness import Witness
from nyala.wal.cmeta import ConsensusMetadata
from nyala.wal.log import Wal
from nyala.wal.recovery.recovered import RecoveredGroup

STUCK_MS = 10_000
"""Time without an acknowledgement after which a member that lacks entries counts as stuck, in milliseconds.
"""

_LOG_START = FlushPoint()

__all__ = ["CreateMachine", "OpenMachine", "ReplicaHost"]


class ReplicaHost:
    """Owner of all replicas of a process. Made by `open`; on the loop only.

    Attributes:
        wal: the process's log.
        copies: copies of replicas, to this server and from it.
        memory: memory use of the process, and its budget.
    """

    def __init__(
        self,
        context: ReplicaContext,
        event_loop: EventLoop,
        replicas: dict[TabletId, Replica],
        open_machine: OpenMachine,
    ) -> None:
        self._context = context
        self._event_loop = event_loop
        self._registry = ReplicaRegistry(context, replicas)
        self.wal = context.wal
        self.memory = context.memory
        self.copies = CopyManager(context, self._registry, open_machine)

    @classmethod
    async def open(
        cls,
        env: Env,
        options: Options,
        directory: str,
        uuid: ServerUuid,
        transport: Transport,
        clock: ServerClock,
        open_machine: OpenMachine,
        *,
        metrics: Metrics | None = None,
        on_change: Callable[[TabletId], None] | None = None,
        members: ConfigurationSource | None = None,
    ) -> "ReplicaHost":
        """Open the log and every replica of a formatted data directory, and start them.

        A replica that cannot be opened becomes FAILED and keeps its error; the others run.


        Args:
            env: the environment: clock, tasks, files, calls.
            options: options of the server.
            directory: the data directory, locked by this process.
            uuid: uuid of this server, as in its directory.
            transport: to and from the other servers.
            clock: the process's hybrid clock.
            open_machine: see `OpenMachine`.
            metrics: metrics of this process.
            on_change: called on the loop when configuration, leader, role or state of a group changed.
            members: configurations that the masters know; None: there are no masters, and a message of any
                server counts.

        Raises:
            Corrupt, OSError: the log cannot be opened.
        """
        failure_detector = FailureDetector(clock.now(), raft_options(options))
        wal, recovered = await _open_wal(env, options, directory, uuid)
        metrics = metrics or Metrics()
        transport = offsets = ClockOffsets(transport, env.clock, options.clock_max_offset_ms)
        log_disk = LogDiskMonitor(env.clock, options, wal.latency)
        metrics.gauge("wal_round_ms", "Mean of the log's last rounds.", read=log_disk.mean_ms)
        metrics.gauge("wal_disk_slow", "1: far slower than a peer's.", read=lambda: log_disk.slow)
        replicas: dict[TabletId, Replica] = {}
        memory = MemoryTracker(options)
        memory.expose(metrics)
        event_loop = EventLoop(
            replicas,
            outbox := Outbox(uuid, transport, clock, failure_detector, log_disk.mean_ms),
            failure_detector,
        )
        context = ReplicaContext(
            env, options, uuid, directory, clock, wal,
            ConsensusMetadata(env.files, directory), Superblocks(env.files, directory),
            Counters(metrics, wal, failure_detector),
            outbox.add, event_loop.schedule, on_change or _ignore, event_loop.disk_failed, offsets,
            Clocks(clock, offsets, outbox.address, metrics), memory, log_disk,
        )  # fmt: skip
        await lifecycle.mark_lost_records(context, recovered)
        await lifecycle.open_all(context, recovered, replicas, open_machine)
        event_loop.start(context, transport, Senders(context, members))
        _expose_counts(metrics, replicas, options.raft_tick_ms)
        host = cls(context, event_loop, replicas, open_machine)
        limits_reached.expose(metrics, host.copies)
        return host

    def get(self, group: TabletId) -> Replica:
        """Return the replica of a group, whatever its state.

        Raises:
            NotFound: this server has none, and no tombstone of one.
        """
        return self._registry.get(group)

    def find(self, group: TabletId) -> Replica | None:
        """Return the replica of a group, whatever its state, or None."""
        return self._registry.find(group)

    def all(self) -> list[Replica]:
        """Return every replica, TOMBSTONED and FAILED ones too, in the order of their ids."""
        replicas = self._registry.replicas
        return [replicas[group] for group in sorted(replicas)]

    def active_replicas(self) -> list[Replica]:
        """Return the replicas whose groups are not quiesced: the others have no writes or reads."""
        return [self._registry.replicas[group] for group in self._event_loop.active_groups()]

    async def create_replica(
        self, group: TabletId, config: Configuration, create_machine: CreateMachine
    ) -> Replica:
        """Create a new replica, durable on return; it runs at once.

        Args:
            group: id of the tablet.
            config: the group's first configuration.
            create_machine: see `CreateMachine`.

        Raises:
            AlreadyPresent: the group has a replica or a tombstone here.
            InvalidArgument: this server is not in `config`, or is a witness there.
            NotFound: the tablet was deleted for good.
            Unavailable: being created or deleted, or the server stops. OSError: the disk failed or is full;
                nothing was created.
        """
        me = config.get(self._context.uuid)
        if me is None:
            raise InvalidArgument(f"this server is not in the configuration of {group}")
        if not me.electable:
            raise InvalidArgument(f"this server is a witness of {group}: create_witness makes it")
        return await self._create(group, config, create_machine)

    async def create_witness(
        self, group: TabletId, config: Configuration, start: FlushPoint = _LOG_START
    ) -> Replica:
        """Create a new witness: a replica with a log and without data; otherwise as `create_replica`.

        Args:
            group: id of the tablet.
            config: configuration as of `start`, or the group's first one; this server is not electable in it.
            start: an entry of the group and its stamp, after which the witness' log begins. Earlier entries
                are never sent to it, so a copy of the data must have a flush point at or after this entry.
        """
        me = config.get(self._context.uuid)
        if me is None or me.electable:
            raise InvalidArgument(f"this server is no witness in the configuration of {group}")
        if config.id.index > start.op.index:
            raise InvalidArgument(
                f"the configuration of {config.id} lies after {start.op}, where the log is to begin"
            )
        files = self._context.env.files
        return await self._create(group, config, lambda path: Witness.create(files, path, start))

    async def _create(
        self, group: TabletId, config: Configuration, create_machine: CreateMachine
    ) -> Replica:
        if group in self._registry.replicas:
            raise AlreadyPresent(
                f"{group} has a replica here: {self._registry.replicas[group].state}"
            )
        self._registry.reserve(group)
        try:
            opened = await lifecycle.create(self._context, group, config, create_machine)
        finally:
            self._registry.free(group)
        return self._registry.add(group, opened)

    async def delete_replica(self, group: TabletId) -> None:
        """Delete a replica's data and log; its vote and last op id stay (tombstone). Durable on return.

        Writes in flight end with OutcomeUnknown. Idempotent.

        Raises:
            NotFound: there is none. Unavailable: being created or deleted, or the server stops.
            OSError: the disk failed; see `lifecycle.delete`.
        """
        replica = self._registry.get(group)
        self._registry.reserve(group)
        try:
            await lifecycle.delete(self._context, replica)
        finally:
            self._registry.free(group)

    async def delete_for_good(self, group: TabletId) -> None:
        """Delete a replica, or a tombstone, of a tablet that no longer exists; nothing of it stays.

        Raises:
            As `delete_replica`. Throttled: the log accepts nothing now; the tombstone stays.
        """
        replica = self._registry.get(group)
        self._registry.reserve(group)
        try:
            await lifecycle.delete_for_good(self._context, replica)
            self._registry.remove(group)
        finally:
            self._registry.free(group)

    @property
    def time(self) -> int:
        """Hybrid time at or above every stamp that this server has assigned or received."""
        return self._context.clock.peek()

    async def stamp_above(self, floor: int) -> None:
        """Advance the clock, so that all later stamps of this server are above `floor`.

        Raises:
            Unavailable: the time is too far in the future, or the clock's ceiling cannot be made durable.
        """
        try:
            await self._context.clock.advance_past(floor)
        except OSError as err:
            raise Unavailable(
                f"the hybrid clock's ceiling cannot be made durable: {err}; make room on the disk"
            ) from err

    @property
    def unavailable_reason(self) -> str:
        """Reason why this server can neither vote nor acknowledge now; empty: it can."""
        return "it is stopping" if self._registry.closed else self._context.unavailable_reason

    def problems(self) -> list[str]:
        """Return the problems of clocks and the limits that are reached, as sentences for operators."""
        return [
            *self._context.clocks.problems(),
            *limits_reached.reached(self._context, self.copies),
        ]

    def summary(self) -> str:
        """Return the number of replicas of each state and role, as text."""
        counts = Counter((r.state.value, r.role.value) for r in self._registry.replicas.values())
        return ", ".join(f"{counts[k]} {k[0]} {k[1]}" for k in sorted(counts)) or "none"

    async def close(self) -> None:
        """Stop all replicas, end requests in flight, close state machines and log. Files stay as they are."""
        self._registry.closed = True
        await self.copies.close()
        self._event_loop.stop()
        stops = (r.stop() for r in self._registry.replicas.values())
        ended = await asyncio.gather(*stops, return_exceptions=True)
        await self.wal.close()
        for err in ended:
            if err is not None:
                raise err


async def _open_wal(
    env: Env, options: Options, directory: str, uuid: ServerUuid
) -> tuple[Wal, dict[TabletId, RecoveredGroup]]:
    return await Wal.open(
        env.files,
        env.tasks,
        directory,
        server_uuid=uuid,
        segment_bytes=options.wal_segment_mb * MIB,
        queue_bytes=options.wal_queue_bytes,
        sync=options.wal_sync == "always",
        sync_interval_ms=options.wal_sync_interval_ms if options.wal_sync == "interval" else 0,
        reserve_bytes=options.wal_reserve_mb * MIB,
        cleanup_bytes=options.wal_cleanup_mb * MIB,
        clock=env.clock,
    )


def _stuck(replicas: Mapping[TabletId, Replica], tick_ms: int) -> int:
    led = [r.node for r in replicas.values() if r.node is not None and r.is_leader]
    longest = STUCK_MS // tick_ms
    return sum(p.ticks_stuck > longest for node in led for p in node.status().peers)


def _expose_counts(metrics: Metrics, replicas: Mapping[TabletId, Replica], tick_ms: int) -> None:
    """Register metrics with the number of replicas of each state and role (S4.40)."""
    states = metrics.gauge("replica_state_count", "Replicas by state.", ["state"])
    roles = metrics.gauge("replica_role_count", "Replicas by role.", ["role"])

    def of_state(state: State) -> float:
        return sum(r.state is state for r in replicas.values())

    def of_role(role: Role) -> float:
        return sum(r.role is role for r in replicas.values())

    for state in State:
        states.labels(state.value).set_function(partial(of_state, state))
    stuck = "Members of groups led here that have lacked entries for 10 s and acknowledged none."
    metrics.gauge("replica_stuck_members", stuck, read=lambda: _stuck(replicas, tick_ms))
    for role in Role:
        roles.labels(role.value).set_function(partial(of_role, role))


def _ignore(_group: TabletId) -> None:
    """Ignore a change: no callback was given."""
