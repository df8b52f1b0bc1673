"""Replaced tablets in a whole simulated cluster, and the effects on clients."""

import msgspec
import pytest

from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import InvalidArgument, NotFound, TooLarge
from nyala.common.partitioning.partition_spec import Hash, Partition
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS, SCHEMA
from tests.unit.master.support.ddl_cluster import with_cluster

QUICK = msgspec.structs.replace(
    OPTIONS, tablet_creation_timeout_ms=3000, tserver_unresponsive_ms=1000
)


def states(ddl):
    return [t.state.name for t in ddl.leading().tablets()]


def members(ddl, tablet):
    """The servers of a tablet according to the catalog."""
    return [ddl.cluster.server(m.address.partition(":")[0]) for m in tablet.consensus.members]


async def began(ddl, name="t"):
    """Wait until a tablet is being created; return it."""
    catalog = ddl.leading
    await ddl.cluster.until(lambda: catalog() and catalog().creating(), "a tablet is to be made")
    return catalog().creating()[0]


@pytest.mark.parametrize("master_dies", [False, True])
@pytest.mark.row("S0.65", "S0.69", "S0.73")
def test_tablet_whose_servers_die_at_creation_is_replaced_without_losing_writes(master_dies):
    async def work(ddl):
        cluster, spawn = ddl.cluster, ddl.cluster.loop.create_task
        creation = spawn(ddl.create())
        old = await began(ddl)
        dead = members(ddl, old)[:2]
        for process in dead:
            process.kill()
        leader = ddl.kill_leader() if master_dies else None
        early = await ddl.open()
        assert early.tablets[0].id == old.id
        assert early.tablets[0].addresses() == [], "a tablet that may be replaced accepts no writes"
        write = spawn(ddl.put(early, 1, 2, 3))
        table = await creation
        assert table.tablets[0].id != old.id
        assert await write == []
        assert await ddl.put(early, 4) == []
        assert await ddl.keys(early) == await ddl.keys(table) == [1, 2, 3, 4]
        assert sorted(states(ddl)) == ["REPLACED", "RUNNING"]
        for process in (*dead, *([leader] if leader else [])):
            process.start()
        await cluster.until(
            lambda: old.id not in ddl.groups(),
            "replicas of the old tablet are deleted when reported",
        )
        assert await ddl.keys(early) == [1, 2, 3, 4]

    with_cluster(work, tservers=5, options=QUICK)


@pytest.mark.row("S1.44", "A17")
def test_lost_tablet_is_replaced_by_empty_tablet_while_neighbours_serve():
    async def work(ddl):
        cluster = ddl.cluster
        spec = Partition(hash=[Hash(["k"], 6)])
        table = await ddl.ask(ddl.core.ddl.create_table, "t", SCHEMA, spec, 1, {})
        other = await ddl.open()
        await ddl.put(table, *range(60))
        lost = ddl.leading().tablet(table.tablets[0].id)
        (dead,) = members(ddl, lost)
        lost_ids = {t.id for t in ddl.leading().tablets() if lost.members[0] in t.members}
        kept = [t.id for t in table.tablets if t.id not in lost_ids]
        assert kept, "some tablets have no lost replica"

        async def replace(tablet, **more):
            request = pb.ReplaceTabletRequest(tablet_id=tablet, **more)
            call = ddl.core.masters.call
            return await ddl.ask(call, methods.REPLACE_TABLET, request, timeout_ms=10_000)

        with pytest.raises(InvalidArgument, match="recover it from them"):
            await replace(lost.id)
        with pytest.raises(NotFound, match="no table has a tablet"):
            await replace("no such")
        planned = await ddl.ask(ddl.core.reader.tokens, other, ReadSpec(), 10_000)
        before = ddl.leading()
        dead.kill()
        await cluster.loop.delay(2_000_000)
        seen = await replace(lost.id, dry_run=True)
        assert (seen.tablet_id, seen.state, list(seen.shown_by)) == (lost.id, "RUNNING", [])
        assert ddl.leading() is before
        assert states(ddl) == ["RUNNING"] * 6, "no tablet was replaced yet"
        made = {old: (await replace(old)).tablet_id for old in sorted(lost_ids)}
        assert (await replace(lost.id)).tablet_id == made[lost.id], "a repetition has no effect"
        rows = await ddl.keys(other)
        assert 0 < len(rows) < 60, "the other tablets have their rows"
        found = await ddl.ask(ddl.core.reader.collect_all, planned)
        assert sorted(r["k"] for some in found for b in some for r in b.to_pylist()) == rows
        missing = [k for k in range(60) if k not in rows]
        assert await ddl.get(other, missing[0], rows[0]) == [
            None, {"k": rows[0], "v": rows[0] * 10},
        ]  # fmt: skip
        assert await ddl.put(table, *missing) == [], "a client with old locations"
        assert await ddl.keys(other) == list(range(60))
        assert {t.id for t in table.tablets} == {*kept, *made.values()}
        dead.start()
        await cluster.until(
            lambda: not lost_ids & {*ddl.groups()},
            "returned replicas of replaced tablets are deleted",
        )
        assert await ddl.keys(table) == list(range(60))

    with_cluster(work, options=QUICK)


@pytest.mark.row("S1.44")
def test_new_leader_replaces_no_tablet_before_replica_reports_arrive():
    async def work(ddl):
        table = await ddl.create()
        await ddl.put(table, 1)
        ddl.kill_leader()
        request = pb.ReplaceTabletRequest(tablet_id=table.tablets[0].id)
        call = ddl.core.masters.call
        with pytest.raises(InvalidArgument, match="recover it from them"):
            await ddl.ask(call, methods.REPLACE_TABLET, request, timeout_ms=30_000)
        assert states(ddl) == ["RUNNING"]
        assert await ddl.keys(table) == [1]

    with_cluster(work)


@pytest.mark.row("S0.55")
def test_create_table_with_too_large_batch_is_refused_and_leaves_nothing():
    async def work(ddl):
        small = await ddl.create("small")
        before = list(ddl.leading().tablets())
        with pytest.raises(TooLarge, match="use fewer tablets"):
            await ddl.create("large", tablets=200)
        assert list(ddl.leading().tablets()) == before
        assert [t.name for t in ddl.leading().every_table()] == ["small"]
        assert await ddl.put(small, 1) == []
        await ddl.create("large", tablets=2)

    with_cluster(work, options=msgspec.structs.replace(OPTIONS, catalog_batch_bytes=4096))
