"""A healed cluster has what servers require of their machines: clocks that a time daemon keeps together."""

from nyala.common.options import Options
from tests.sim.core_cluster import CoreCluster, host
from tests.sim.faults import Swarm
from tests.sim.loop import SimLoop, run, seeded
from tests.sim.nemesis import Nemesis

LIMIT_US = Options().clock_max_ahead_ms * 1000


def test_clocks_that_are_too_far_apart_are_set_right_and_everyone_follows():
    """A server refuses all that comes from one whose hybrid clock is ahead by more than the limit."""

    async def main(loop: SimLoop) -> None:
        cluster = CoreCluster(loop, 1, 3, host)
        slow, fast, near = cluster.servers
        slow.clock.jump(-LIMIT_US * 6 // 10)
        fast.clock.jump(LIMIT_US * 6 // 10)
        near.clock.jump(LIMIT_US * 3 // 10)
        for server in cluster.servers:
            server.start()
        cluster.add_workers(2)
        nemesis = Nemesis(cluster.network, cluster.servers, [], Swarm(), seeded(1, "nemesis"))
        nemesis.start()
        await nemesis.heal()
        offsets = [s.clock.skew_us for s in cluster.servers]
        assert max(offsets) - min(offsets) < LIMIT_US
        assert near.clock.skew_us == LIMIT_US * 3 // 10, "what is near enough stays as it is"
        await cluster.until(lambda: cluster.history.acknowledged > 20, "writes are acknowledged")
        target = max(node.core.log.committed for _, node in cluster.nodes())
        await cluster.until(
            lambda: all(node.core.log.committed >= target for _, node in cluster.nodes()),
            "every server follows",
        )

    run(main, max_time_s=120)
