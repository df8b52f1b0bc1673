"""Rule for commits: a majority has the entry on disk, or had when it acknowledged it to the leader."""

from collections.abc import Callable

import pytest

from nyala.raft.messages import AppendReply, PeerBatch
from tests.sim.systems.core_cluster import CoreCluster, host
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.process import SimProcess

PutBack = Callable[[CoreCluster, SimProcess], None]


def commit_by_lost_acknowledgement(put_back: PutBack) -> None:
    """Let a follower lose an entry whose acknowledgement is under way, while the third member is cut off."""

    async def main(loop: SimLoop) -> None:
        cluster = CoreCluster(loop, 1, 3, host)
        for server in cluster.servers:
            server.start()
        cluster.add_workers(3)
        await cluster.until(lambda: cluster.history.acknowledged > 20, "writes")
        leader = cluster.leader()
        assert leader is not None
        victim, third = (s for s in cluster.servers if s is not leader)
        image = victim.disk.image()
        await cluster.until(lambda: cluster.history.acknowledged > 40, "more writes")
        cluster.network.partition([third.name], [leader.name, victim.name])
        await loop.delay(100_000)
        acknowledged: list[int] = []
        judge = cluster.network.on_send
        assert judge is not None

        def sent(
            name: str, batch: PeerBatch, judge: Callable[[str, PeerBatch], None] = judge
        ) -> None:
            judge(name, batch)
            if name == victim.name:
                acknowledged.extend(
                    message.match
                    for _, message in batch.messages
                    if isinstance(message, AppendReply) and message.match > cluster.watch.highest
                )

        def look() -> None:
            cluster.look()
            if acknowledged and victim.alive:
                victim.kill(power_cut=False)
                put_back(cluster, victim)
                victim.disk.put_back(image)

        cluster.network.on_send, loop.after_step = sent, look
        await cluster.until(lambda: not victim.alive, "an acknowledgement")
        await cluster.until(lambda: cluster.watch.highest >= acknowledged[0], "its commit")
        cluster.network.heal()
        node = cluster.node
        await cluster.until(
            lambda: (n := node(third)) is not None and n.core.log.committed >= acknowledged[0],
            "the commit at the third member",
        )
        victim.start()
        await cluster.progress()

    run(main)


def test_acknowledgement_under_way_counts_after_loss_of_its_entry():
    commit_by_lost_acknowledgement(lambda cluster, victim: cluster.put_back(victim.name))


@pytest.mark.parametrize("term", [0, 1000])
def test_entry_that_was_not_acknowledged_to_its_leader_does_not_count(term):
    def put_back(cluster: CoreCluster, victim: SimProcess) -> None:
        uuid = cluster.members[victim.name].uuid
        cluster.watch.put_back(victim.name, uuid, (term, 1 << 62 if term else 0))

    with pytest.raises(AssertionError, match="durable on 1 of 3"):
        commit_by_lost_acknowledgement(put_back)
