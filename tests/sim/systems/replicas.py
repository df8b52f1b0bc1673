"""The one place that looks into servers for their replicas' cores, for the checkers."""

from collections.abc import Iterator

from nyala.common.errors import Unavailable
from nyala.common.ids import TabletId
from nyala.raft.node import RaftNode
from nyala.replica.host import ReplicaHost
from tests.sim.world.process import SimProcess


def hosts_of(process: SimProcess) -> list[ReplicaHost]:
    """Return the replica hosts of a living process: one, or none while it starts."""
    server = process.server
    if not process.alive or server is None:
        return []
    try:
        found = server.host
    except Unavailable:
        return []
    return [] if found is None else [found]


def nodes_of(process: SimProcess, *, asleep: bool = True) -> Iterator[tuple[TabletId, RaftNode]]:
    """Yield group and core of each replica of a process that takes part; `asleep`: of quiet groups too.

    Raises:
        AssertionError: a replica is FAILED though its disk is whole.
    """
    for host in hosts_of(process):
        for replica in host.all() if asleep else host.up():
            whole = replica.error is None or isinstance(replica.error, Unavailable)  # half a copy
            if not whole and not process.disk.harmed:
                raise AssertionError(f"{process.name}: {replica.group} FAILED") from replica.error
            if replica.node is not None:
                yield replica.group, replica.node
