"""Single cores and their messages for the tests of RaftNode."""

from nyala.common.ids import ServerUuid
from nyala.raft.membership import Member, initial
from nyala.raft.messages import (
    HardState,
)  # fmt: skip
from nyala.raft.node import RaftNode
from tests.unit.raft.support.raft_harness import Cluster

A, B, C = (ServerUuid(u) for u in "123")
CONFIG = initial(Member(u, f"{u}:1") for u in (A, B, C))


def node(hard=HardState(), log=(), **kwargs):  # noqa: B008 - frozen
    return RaftNode(A, CONFIG, hard, log, random=lambda n: 0, **kwargs)


def cluster_with_leader():
    cluster = Cluster("123")
    cluster.elect("1")
    return cluster
