"""The one place that looks into servers for their replicas' cores, for the checkers."""

from nyala.raft.node import RaftNode
from nyala.replica.host import ReplicaHost
from nyala.replica.replica import Replica
from tests.sim.process import SimProcess


def hosts_of(process: SimProcess) -> list[ReplicaHost]:
    """Return the replica hosts of a living process: one, or none while it starts."""
    server = process.server
    if not process.alive or server is None:
        return []
    found = getattr(server, "host", None)
    return [] if found is None else [found]


def node_of(replica: Replica) -> RaftNode | None:
    """Return the core of a replica; None while it has none (FAILED, TOMBSTONED)."""
    node = getattr(replica, "node", None)
    assert node is None or isinstance(node, RaftNode), node
    return node
