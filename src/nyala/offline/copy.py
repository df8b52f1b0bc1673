"""Replicas in the data directory of a stopped server: copied into it, deleted, recovered.

The directory's lock is held meanwhile, so the server cannot start before the end. A copy that is interrupted
leaves a replica that no server serves; a second call completes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from nyala.common.errors import InvalidArgument, NyalaError, Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.options import Options
from nyala.copying.remote import CALL_MS, RemoteSource
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.machines import registry
from nyala.offline import inspection, recovery
from nyala.offline.recovery import RecoveryPlan
from nyala.raft.messages import PeerBatch
from nyala.replica import lifecycle
from nyala.replica.copy.protocol import ENDED, CopyProgress, CopyStage
from nyala.replica.host import ReplicaHost
from nyala.replica.state_machine import FlushPoint, StateMachine
from nyala.replica.status import State
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

POLL_MS = 200
"""Milliseconds between two readings of a copy's progress."""


class _NoTransport:
    """A transport that sends and receives nothing: replicas opened with it exchange no Raft messages."""

    def send(self, address: str, batch: PeerBatch) -> None:
        """Drop the batch."""

    def receive(
        self, handler: Callable[[PeerBatch], None], lost: Callable[[ServerUuid], None]
    ) -> None:
        """Do nothing: no batch is ever received."""


@dataclass(frozen=True, slots=True)
class StoppedServer:
    """A server that does not run, and its data directory.

    Attributes:
        env: the environment: clock, tasks, files, calls.
        options: options with which the server is run.
        directory: path of its data directory.
        role: `master` or `tserver`.
    """

    env: Env
    options: Options
    directory: str
    role: str

    def identity(self) -> Identity:
        """Return the identity of the directory, not opened yet."""
        return Identity(self.env, self.directory, self.role, self.options.clock_max_ahead_ms)

    async def open(self, identity: Identity) -> ReplicaHost:
        """Open the replicas of the directory, and its identity if that is not open yet."""
        clock = identity.clock if identity.known else identity.open()

        def open_machine(_group: TabletId, path: str) -> StateMachine:
            return registry.open_machine(self.env.files, path)

        alone = msgspec.structs.replace(self.options, copy_wait_ms=0)
        return await ReplicaHost.open(
            self.env, alone, self.directory, identity.uuid, _NoTransport(), clock, open_machine
        )


async def delete_in_directory(server: StoppedServer, group: TabletId) -> bool:
    """Delete a replica, leaving a tombstone; durable on return.

    Returns:
        Whether there was something to delete.

    Raises:
        Forbidden: the server runs. NotFound: it has no such replica. OSError: see `lifecycle.delete`.
    """
    host = await server.open(server.identity())
    try:
        if host.get(group).state is State.TOMBSTONED:
            return False
        await host.delete_replica(group)
        return True
    finally:
        await host.close()


async def recover_in_directory(
    server: StoppedServer, group: TabletId, agree: Callable[[RecoveryPlan], bool]
) -> str:
    """Make a replica whose log lost records the only member of its group, from its files; durable on return.

    Args:
        server: the server with the replica.
        group: id of the tablet.
        agree: decides on the plan; if it returns False, nothing is changed.

    Returns:
        Path of the backup of the consensus metadata; empty: nothing was changed.

    Raises:
        Forbidden: the server runs. Others as `recovery.plan`. Nothing was changed then.
    """
    env, directory, identity = server.env, server.directory, server.identity()
    run = env.tasks.run
    inspection.owner(env.files, directory)
    identity.open()
    read = partial(_read, env)
    plan = await run(Lane.DISK, recovery.plan, env.files, directory, group, read)
    if not agree(plan) or plan.done:
        return ""
    host = await server.open(
        identity
    )  # as any start, it records in the superblocks which replicas are lost
    try:
        if not plan.keeps_log:
            await lifecycle.forget(host.get(group).context, group)
    finally:
        await host.close()
    return await run(Lane.DISK, recovery.execute, env.files, directory, plan)


def _read(env: Env, path: str) -> tuple[FlushPoint, int]:
    """Read all data of a tablet's files; return the files' flush point and the number of items."""
    machine = registry.open_machine(env.files, path)
    try:
        flush_point = machine.flush_point
        items = registry.kind_of_machine(machine).verify(machine)
    finally:
        machine.close()
    return FlushPoint(flush_point.op, flush_point.stamp, flush_point.extra), items


async def copy_to_directory(
    server: StoppedServer,
    group: TabletId,
    address: str,
    *,
    force: bool = False,
    on_progress: Callable[[CopyProgress], None] = lambda progress: None,
) -> CopyProgress:
    """Copy a replica into a data directory; durable on return.

    A directory without a server's identity becomes that of a new server. A server that belongs to no cluster
    yet joins the source's cluster. A master's directory is initialised by its copy of the catalog.

    Args:
        server: the target.
        group: id of the tablet.
        address: public address of the source server.
        force: copy also from a replica that may lack acknowledged writes.
        on_progress: called with the progress every `POLL_MS` until the copy ends.

    Raises:
        Forbidden: another process holds the directory, or it belongs to another cluster than the source.
        InvalidArgument: directory or source belong to a server of another role.
        AlreadyPresent: the directory has the replica. NyalaError, OSError: as for any copy; nothing was
            changed.
    """
    env, role = server.env, server.role
    info = await env.rpc.call(
        address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=CALL_MS
    )
    if info.role != role:
        raise InvalidArgument(
            f"{address} is a {info.role}, but {server.directory} is the data directory of a {role}; copy "
            f"from a {role}"
        )
    identity = server.identity()
    host = await server.open(identity)
    try:
        own = identity.instance.cluster_id
        source = RemoteSource(env.rpc, identity.uuid, own, ServerUuid(info.uuid), address)
        progress = await host.copies.start(group, source, force=force)
        while progress.stage not in ENDED:
            on_progress(progress)
            await env.tasks.sleep_ms(POLL_MS)
    finally:
        await host.close()
    if progress.stage is not CopyStage.DONE:
        err = progress.error or Unavailable(f"the copy of {group} was cancelled")
        raise err if isinstance(err, NyalaError | OSError) else Unavailable(repr(err))
    await identity.learn(cluster_id=info.cluster_id or None, initialised=role == "master")
    return progress
