"""Definitions while the wall clock of the leader master is wrong: nothing is deleted early or opens late."""

import msgspec
import pytest

from nyala.common.hybrid_time import to_micros
from nyala.common.ids import SYS_CATALOG
from tests.selected import first
from tests.sim.systems.cluster import REPAIRING
from tests.sim.world.loop import WALL_START_US
from tests.unit.master.support.ddl_cluster import with_cluster

KEPT = msgspec.structs.replace(REPAIRING, history_max_age_s=3600)
DAY_US = 86_400 * 1_000_000
YEARS_US = 20 * 365 * DAY_US


def wrong_clock(ddl, by_us):
    """Set the leader master's wall clock forward or back; return its process."""
    leader = ddl.cluster.leader_of(SYS_CATALOG)
    leader.clock.jump(by_us)
    return leader


async def seconds(ddl, number=10):
    await ddl.cluster.loop.delay(number * 1_000_000)


@pytest.mark.parametrize("masters", [1, 3])
@pytest.mark.parametrize("by_us", [DAY_US, YEARS_US])
def test_dropped_table_can_be_recalled_whatever_clock_of_leader_master_shows(masters, by_us):
    async def work(ddl):
        table = await ddl.create()
        await ddl.put(table, 1, 2)
        await ddl.ask(ddl.core.ddl.drop_table, "t", 3600)
        wrong_clock(ddl, by_us)
        await seconds(ddl)
        await ddl.ask(ddl.core.ddl.recall_table, table.id)
        assert await ddl.keys(await ddl.open()) == [1, 2]

    with_cluster(work, masters=masters)


@pytest.mark.parametrize("masters", [1, 3])
@pytest.mark.parametrize("by_us", [-DAY_US, -YEARS_US])
def test_table_dropped_under_a_clock_in_the_past_can_be_recalled(masters, by_us):
    async def work(ddl):
        table = await ddl.create()
        await ddl.put(table, 1, 2)
        wrong = wrong_clock(ddl, by_us)
        await ddl.ask(ddl.core.ddl.drop_table, "t", 3600)
        wrong.clock.jump(-by_us)
        await seconds(ddl)
        await ddl.ask(ddl.core.ddl.recall_table, table.id)
        assert await ddl.keys(await ddl.open()) == [1, 2]

    with_cluster(work, masters=masters)


@pytest.mark.parametrize("masters", [1, 3])
def test_history_of_dropped_range_is_kept_whatever_clock_of_leader_master_shows(masters):
    async def work(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5, 15)
        before = await ddl.now(opened)
        await ddl.alter(await ddl.open(), ("drop_range", 0, 10))
        wrong_clock(ddl, DAY_US)
        await seconds(ddl)
        assert [r["k"] for r in await ddl.scan(await ddl.open(), at=before)] == [5, 15]

    with_cluster(work, masters=masters, options=KEPT)


@pytest.mark.parametrize("masters", [1, 3])
@pytest.mark.parametrize("by_us", first([YEARS_US, -YEARS_US, DAY_US, -DAY_US], 2))
def test_added_range_opens_at_true_time_whatever_clock_of_leader_master_shows(masters, by_us):
    """Its floor is above what all other tablets had acknowledged, and no year ahead."""

    async def work(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5, 15)
        before = await ddl.now(opened)
        wrong_clock(ddl, by_us)
        await ddl.alter(opened, ("add_range", 20, 30))
        now_us = WALL_START_US + ddl.cluster.loop.now_us()
        (added,) = [t for t in ddl.leading().tablets() if t.record.added_by]
        assert added.record.floor > before
        assert to_micros(added.record.floor) < now_us + 60_000_000

    with_cluster(work, masters=masters)
