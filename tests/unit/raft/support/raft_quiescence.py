"""Groups with quiescence for its tests: one tick is 50 ms, a group quiesces after 3 idle heartbeats."""

from nyala.common.ids import ServerUuid
from nyala.raft.messages import RequestVote
from nyala.raft.options import RaftOptions
from tests.unit.raft.support.raft_harness import Cluster

ONE, TWO, THREE = (ServerUuid(u) for u in "123")
IDLE = 3
OPTIONS = RaftOptions(quiesce_heartbeats=IDLE)


class Group(Cluster):
    """A cluster that quiesces; `absent` has the members that the hosts report as absent."""

    def __init__(self, uuids="123", **more):
        super().__init__(uuids, options=more.pop("options", OPTIONS), **more)
        self.absent: tuple[ServerUuid, ...] = ()

    def tick(self, uuid, ticks=1):
        for _ in range(ticks):
            server = self.servers[uuid]
            server.node.tick(self.now(server), self.absent)
            self.work(server)

    def beat(self, uuid="1", times=1):
        """Deliver heartbeats of the leader and their answers."""
        for _ in range(times):
            self.heartbeat(uuid)

    def quiesced(self):
        return [s.uuid for s in self.alive if s.node.quiesced]

    def rest(self, uuid="1"):
        """Let the group quiesce."""
        self.beat(uuid, IDLE + 3)
        return self

    def everyone_ticks(self, ticks):
        for _ in range(ticks):
            for server in self.alive:
                self.tick(server.uuid)
            self.settle()


def offered(message):
    return getattr(message, "quiesce", False)


def lose_offers(group, to):
    group.network = [m for m in group.network if m.to != to or not offered(m)]


def asleep_group(**more):
    group = Group(**more)
    group.elect("1")
    group.propose("1", "x")
    group.settle()
    group.rest()
    assert group.quiesced() == ["1", "2", "3"]
    return group


def candidate(group, to, *, pre=True, override=False):
    last = group[to].last
    return RequestVote(sender=THREE, to=to, term=2, hlc=9, last=last, pre=pre, override=override)
