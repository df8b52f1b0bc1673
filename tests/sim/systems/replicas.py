"""Access of the checkers to the cores of servers' replicas, in one place."""

from nyala.common.errors import Unavailable
from nyala.common.ids import TabletId
from nyala.raft.node import RaftNode
from nyala.replica.host import ReplicaHost
from nyala.replica.replica import Replica
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


def replicas_of(process: SimProcess) -> list[Replica]:
    """Return the replicas of a living process."""
    return [replica for host in hosts_of(process) for replica in host.all()]


def nodes_of(process: SimProcess, *, asleep: bool = True) -> list[tuple[TabletId, RaftNode]]:
    """Return group and core of each active replica of a process; `asleep`: of quiescent groups too.

    Raises:
        AssertionError: a replica is FAILED though its disk has no damage.
    """
    found: list[tuple[TabletId, RaftNode]] = []
    for host in hosts_of(process):
        for replica in host.all() if asleep else host.active_replicas():
            error = replica.error
            whole = error is None or isinstance(error, Unavailable)  # an incomplete copy
            if not whole and not process.disk.lost_data:
                raise AssertionError(f"{process.name}: {replica.group} FAILED") from error
            member = replica.member
            if member is not None:
                found.append((replica.group, member.node))
    return found
