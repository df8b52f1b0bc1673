"""Tablets of dropped ranges until their history is over: repaired, moved and checked as any others."""

import msgspec
import pytest

from nyala.operate.ksck import check, checksum
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import REPAIRING
from tests.unit.master.support.ddl_cluster import with_cluster

KEPT = msgspec.structs.replace(REPAIRING, history_max_age_s=3600)
CHECKSUM_MS = 20_000


def scenario(work):
    """A table of two ranges, [0, 10) dropped, on three of four servers."""

    async def main(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5, 6, 15)
        before = await ddl.now(opened)
        dropped = opened.tablets[0].id
        await ddl.alter(await ddl.open(), ("drop_range", 0, 10))
        await work(ddl, dropped, before)

    with_cluster(main, tservers=4, options=KEPT)


async def problems(ddl):
    return (await ddl.ask(check.check, ddl.core)).problems


def holders(ddl, tablet):
    return sorted(p.name for p, group, _ in ddl.cluster.replicas() if group == tablet)


def settled(ddl, tablet, *, without):
    """Return whether three voters, all of them with data, are on other servers than one."""
    catalog = ddl.leading()
    known = None if catalog is None else catalog.tablet(tablet)
    if known is None or len(known.members) != 3 or without.name in holders(ddl, tablet):
        return False
    members = known.consensus.members
    return all(m.voter and m.electable and m.address != without.address for m in members)


async def healthy(ddl, within=30):
    for _ in range(within):
        found = await problems(ddl)
        if not found:
            return
        await ddl.cluster.loop.delay(1_000_000)
    raise AssertionError(found)


async def read(ddl, at):
    return [r["k"] for r in await ddl.scan(await ddl.open(), at=at)]


def test_dropped_range_tablet_that_lost_a_server_is_reported_by_ksck_and_repaired():
    async def work(ddl, dropped, before):
        await healthy(ddl)
        health = await ddl.ask(check.check, ddl.core)
        assert health.tables == [("t", 3, 2, 2, 0)]
        assert sum(r[1] == dropped for r in health.replicas) == 3
        victim = ddl.cluster.server(holders(ddl, dropped)[0])
        victim.kill()
        kept = f"table t, tablet {dropped} (of a dropped range, kept for its history): "
        assert any(p.startswith(kept) for p in await problems(ddl)), (
            "a replica is missing before the repair"
        )
        await ddl.cluster.until(
            lambda: settled(ddl, dropped, without=victim), "the tablet is repaired", 120
        )
        victim.start()
        await healthy(ddl)
        assert await read(ddl, before) == [5, 6, 15]

    scenario(work)


def test_decommissioned_server_is_drained_of_dropped_range_tablets():
    async def work(ddl, dropped, before):
        leaver = ddl.cluster.server(holders(ddl, dropped)[0])
        request = pb.SetDecommissionRequest(uuid=leaver.server.uuid, on=True)
        await ddl.ask(ddl.core.masters.call, methods.SET_DECOMMISSION, request, timeout_ms=10_000)
        await ddl.cluster.until(
            lambda: settled(ddl, dropped, without=leaver), "the drained server has no replica", 120
        )
        await healthy(ddl)
        leaver.kill()
        assert await read(ddl, before) == [5, 6, 15]

    scenario(work)


@pytest.mark.parametrize("late", [False, True])
def test_checksum_of_dropped_range_covers_its_last_rows(late):
    """Reads of earlier times, also at a replica that was copied after the drop."""

    async def work(ddl, dropped, before):
        if late:
            victim = ddl.cluster.server(holders(ddl, dropped)[0])
            victim.kill()
            await ddl.cluster.until(
                lambda: settled(ddl, dropped, without=victim), "the tablet is repaired", 120
            )
            victim.start()
        await healthy(ddl)
        sums, different = await ddl.ask(checksum.compare, ddl.core, CHECKSUM_MS)
        assert different == []
        of_dropped = [(s.rows, s.checksum, s.note) for s in sums if s.tablet == dropped]
        assert len(of_dropped) == 3
        assert set(of_dropped) == {(2, of_dropped[0][1], "")}

    scenario(work)
