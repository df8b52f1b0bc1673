"""`Table.hold` through real servers in virtual time: held history stays under any leader."""

from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from nyala.common.errors import HistoryGone, InvalidArgument, Unavailable
from nyala.common.schema import from_arrow
from nyala.operate.ksck.check import check
from nyala.tserver.history_holds import RENEWAL_GRACE_MS
from tests.unit.client.support.holds import SECOND, scenario
from tests.unit.client.support.unconnected import unconnected_table


@scenario
@pytest.mark.row("A7")
@pytest.mark.row("A16")
async def test_expired_history_is_removed_and_read_below_horizon_fails(s):
    first = await s.overwrite()
    assert await s.read(first) == [1]
    await s.settle()
    with pytest.raises(HistoryGone, match="history is not kept"):
        await s.read(first)
    assert await s.read(await s.write(5)) == [5]
    with pytest.raises(HistoryGone, match="hold a later time"):
        await s.on(s.core.hold, s.table, first, 60_000)
    horizons = [t.horizon for t in await s.statuses()]
    assert min(horizons) > first


@scenario
@pytest.mark.row("A16")
async def test_held_history_survives_leader_change_and_is_removed_after_release(s):
    first = await s.write(1)
    holding = await s.on(s.core.hold, s.table, first, 600_000)
    await s.overwrite()
    await s.settle()
    assert await s.read(first) == [1]
    for status in await s.statuses():
        assert [(h.name, h.at) for h in status.holds] == [(holding.name, first)]
        assert 0 < status.holds[0].left_ms <= 600_000
    s.cluster.leader_of(s.group).kill()
    await s.loop.delay(5 * SECOND)
    await s.settle()
    assert await s.read(first) == [1]
    await s.on(holding.release)
    await s.settle()
    with pytest.raises(HistoryGone):
        await s.read(first)


@scenario
async def test_metrics_and_ksck_show_what_is_held(s):
    def measured(name: str) -> list[float | None]:
        labels = {"table": s.table.name, "tablet": s.group}
        registries = [p.server.metrics.registry for p in s.cluster.tservers]
        return [r.get_sample_value(f"nyala_tablet_{name}", labels) for r in registries]

    assert (await s.on(check, s.core)).holds == []
    assert measured("hold_count") == measured("held_seconds") == [0, 0, 0]
    early = await s.write(1)
    first = await s.on(s.core.hold, s.table, early, 60_000)
    await s.loop.delay(5 * SECOND)
    late = await s.write(2)
    second = await s.on(s.core.hold, s.table, late, 600_000)
    assert measured("hold_count") == [2, 2, 2]
    assert all(5 <= (age or 0) < 10 for age in measured("held_seconds"))
    found = await s.on(check, s.core)
    assert [h[:3] for h in found.holds] == [
        (s.table.name, first.name, early),
        (s.table.name, second.name, late),
    ]
    shown = found.as_dict()["holds"]
    assert 5 <= shown[0]["age_s"] < 10 > 5 > shown[1]["age_s"]
    assert 50 <= shown[0]["left_s"] <= 60 < 590 <= shown[1]["left_s"] <= 600
    assert [h["tablets"] for h in shown] == [1, 1]
    await s.on(first.release)
    await s.on(second.release)
    assert (await s.on(check, s.core)).holds == []


@pytest.mark.full
@scenario
async def test_hold_is_renewed_at_restarted_server_before_collection(s):
    first = await s.write(1)
    await s.on(s.core.hold, s.table, first, 600_000)
    await s.overwrite()
    for process in s.cluster.tservers:
        process.kill()
        process.start()
        await s.loop.delay(3 * SECOND)
    await s.loop.delay(2 * RENEWAL_GRACE_MS * 1000)
    await s.settle()
    assert await s.read(first) == [1]


@scenario
async def test_hold_expires_after_its_time_to_live(s):
    first = await s.write(1)
    holding = await s.on(s.core.hold, s.table, first, 12_000)
    await s.overwrite()
    await s.loop.delay(10 * SECOND)
    assert not holding.left_ms()
    await s.settle()
    with pytest.raises(HistoryGone):
        await s.read(first)
    assert [list(t.holds) for t in await s.statuses()] == [[], [], []]


@pytest.mark.full
@scenario
async def test_lasting_hold_lasts_as_long_as_its_client_and_its_time_to_live(s):
    first = await s.write(1)
    await s.on(partial(s.core.hold, lasting="reader-1"), s.table, first, 12_000)
    await s.overwrite()
    await s.loop.delay(60 * SECOND)
    await s.settle()
    assert await s.read(first) == [1]
    assert [[h.name for h in t.holds] for t in await s.statuses()] == [["reader-1"]] * 3
    await s.on(s.core.close)
    await s.loop.delay(13 * SECOND)
    assert [list(t.holds) for t in await s.statuses()] == [[], [], []]


@scenario
async def test_hold_without_majority_is_refused(s):
    first = await s.write(1)
    for process in s.cluster.tservers[:2]:
        process.kill()
    with pytest.raises(Unavailable, match="no majority"):
        await s.on(s.core.hold, s.table, first, 60_000)
    await s.loop.delay(70 * SECOND)


@scenario
async def test_interrupted_call_leaves_no_hold(s):
    first = await s.write(1)
    for process in s.cluster.tservers[:2]:
        process.kill()

    async def begin():
        return s.core.env.tasks.spawn(s.core.hold(s.table, first, 600_000), "hold")

    def held() -> Any:
        labels = {"table": s.table.name, "tablet": s.group}
        registry = s.cluster.tservers[2].server.metrics.registry
        return registry.get_sample_value("nyala_tablet_hold_count", labels)

    task = await s.on(begin)
    await s.loop.delay(6 * SECOND)
    assert not task.done()
    assert held() == 1, "one server has it, and no majority"
    task.cancel()  # as Ctrl-C does
    await s.loop.delay(10 * SECOND)
    assert held() == 0, "nobody has a handle to release it"


@scenario
async def test_hold_needs_majority_of_voters_only(s):
    first = await s.write(1)
    leader, refresh = s.cluster.leader_of(s.group).address, s.core.locations.refresh

    async def refreshed(table, timeout_ms):  # as if the others were non-voters
        await refresh(table, timeout_ms)
        for tablet in table.tablets:
            tablet.voters = (leader,)

    for process in s.cluster.tservers:
        if process.address != leader:
            process.kill()
    with patch.object(s.core.locations, "refresh_shared", refreshed):
        holding = await s.on(s.core.hold, s.table, first, 5_000)
    assert holding.left_ms()
    await s.loop.delay(10 * SECOND)


def test_hold_time_to_live_must_be_a_number_of_seconds():
    schema = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
    table = unconnected_table(schema)
    for wrong in (0, -1, True, 1e9, float("nan")):
        with pytest.raises(InvalidArgument, match="ttl"):
            table.hold(ttl=wrong)
