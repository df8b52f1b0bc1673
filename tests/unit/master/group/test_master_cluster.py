"""Three real masters over the real log, Raft and tablet, on virtual time: first start, failover, power."""

import random

import pytest

from nyala.common.errors import NotLeader, NyalaError, Retryable
from tests.unit.master.support.master_cluster import NAMES, others, with_masters


class Unlucky(random.Random):
    """Random numbers of the worst power failure: no unsynced data is kept."""

    def choice(self, seq):
        return seq[0]


@pytest.mark.row("S0.7", "S0.2")
def test_new_masters_discover_each_other_and_elect_a_leader():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        for name in others(leader):
            with pytest.raises(NotLeader) as refused:
                await masters.tables(name)
            assert refused.value.address == f"{leader}:1"
            assert refused.value.leader == masters.master(leader).uuid
        assert await masters.tables(leader) == []
        await masters.loop.delay(1_000_000)
        ids = {masters.master(name).cluster_id for name in NAMES}
        answers = [await masters.status(name) for name in NAMES]
        assert {a.leader_address for a in answers} == {f"{leader}:1"}
        return ids

    (cluster_id,) = with_masters(work)
    assert len(cluster_id) == 32


def test_new_master_waits_for_peers_and_reports_the_missing_ones():
    async def work(masters):
        masters.start("m0", "m1")
        await masters.loop.delay(5_000_000)
        with pytest.raises(Retryable, match="waits for the masters m2:1 to answer"):
            await masters.tables("m0")
        masters.start("m2")
        return await masters.leader()

    assert with_masters(work) in NAMES


def test_masters_with_different_peer_lists_refuse_to_start():
    async def work(masters):
        masters.start()
        await masters.loop.delay(5_000_000)
        with pytest.raises(NyalaError, match="start all with the same list"):
            await masters.tables("m0")
        return [masters.master(name).leading for name in ("m0", "m2")]

    assert with_masters(work, {"m1": ("m0", "m1")}) == [None, None]


@pytest.mark.row("S0.2", "S0.8")
def test_next_leader_has_all_tables_and_old_leader_refuses_queries():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        made = await masters.create(leader, "t", 1)
        masters.network.partition([leader], [*others(leader), "me"])
        after = await masters.leader(others(leader))
        assert await masters.tables(after) == ["t"]
        await masters.heartbeat("a", "b", "c", among=(after,))
        assert await masters.create(after, "t", 1) == made, (
            "a repetition at another master returns the same table"
        )
        assert await masters.create(after, "u", 2) != made
        masters.network.heal()
        masters.network.partition([leader], others(leader))
        with pytest.raises(Retryable):
            await masters.tables(leader)
        masters.network.heal()
        await masters.loop.delay(2_000_000)
        return await masters.tables(await masters.leader())

    assert with_masters(work) == ["t", "u"]


@pytest.mark.row("S0.8")
def test_new_leader_answers_retry_until_catalog_is_loaded():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        await masters.create(leader, "t")
        masters.processes[leader].kill()
        seen: list[str] = []
        rest = others(leader)
        while not seen:
            for name in rest:
                try:
                    seen += (await masters.tables(name)) or ["nothing"]
                except Retryable:
                    continue
            await masters.loop.delay(1_000)
        return seen

    assert with_masters(work) == ["t"], "no answer before the catalog is loaded"


@pytest.mark.row("S0.2")
def test_power_failure_of_all_masters_loses_no_acknowledged_definition():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        first = await masters.create(leader, "t", 1)
        cluster_id = masters.master(leader).cluster_id
        for name in NAMES:
            masters.processes[name].disk.rng = Unlucky()
            masters.processes[name].kill(power_cut=True)
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        assert await masters.create(leader, "t", 1) == first
        assert masters.master(leader).cluster_id == cluster_id
        return await masters.tables(leader)

    assert with_masters(work) == ["t"]


def test_leader_partitioned_during_create_leaves_complete_table_or_none():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        await masters.loop.delay(2_000_000)
        await masters.heartbeat("a", "b", "c")
        masters.network.partition([leader], others(leader))
        with pytest.raises(NyalaError):
            await masters.create(leader, "t", 1, timeout_ms=20_000)
        after = await masters.leader(others(leader))
        assert await masters.tables(after) == []
        masters.network.heal()
        await masters.loop.delay(3_000_000)
        after = await masters.leader()
        await masters.heartbeat("a", "b", "c")
        assert await masters.tables(after) == []
        await masters.create(after, "t", 1)
        return await masters.tables(after)

    assert with_masters(work) == ["t"]


def test_single_master_forms_a_cluster():
    async def work(masters):
        masters.start("m0")
        assert await masters.leader(("m0",)) == "m0"
        await masters.heartbeat("a", "b", "c", among=("m0",))
        await masters.create("m0", "t")
        masters.processes["m0"].kill()
        masters.start("m0")
        return await masters.tables(await masters.leader(("m0",)))

    assert with_masters(work, {"m0": ("m0",)}) == ["t"]
