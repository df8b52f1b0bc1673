"""Masters come and go while the cluster runs: who follows, what is refused, what faults do to it."""

from tests.sim.cluster import SimCluster
from tests.sim.loop import SimLoop, run
from tests.sim.masters import addresses, change, new_master, operator


def test_one_master_becomes_three_and_the_first_goes():
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, 3, masters=1)
        core = await cluster.start()
        await cluster.create_table(core, "kept")
        first = cluster.masters[0]
        for _ in range(2):
            made = new_master(cluster, first.address)
            made.start()
            group = operator(cluster, first.address)
            found = await change(cluster, group, "add", made.address)
            print(group.done)
            assert made.address in addresses(found)
        assert addresses(found) == sorted(m.address for m in cluster.masters)
        group = operator(cluster, first.address)
        found = await change(cluster, group, "remove", first.address)
        print(group.done)
        assert addresses(found) == sorted(m.address for m in cluster.masters[1:])
        first.kill()
        await cluster.create_table(cluster.client(), "later")
        for t in cluster.tservers:
            print(t.server.masters.present(), t.server._identity.instance.masters)

    run(main, max_time_s=120)
