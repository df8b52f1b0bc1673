"""`Table.hold` through real servers in virtual time: held history stays under any leader."""

from unittest.mock import patch

import pyarrow as pa
import pytest

from nyala.common.errors import HistoryGone, InvalidArgument, Unavailable
from nyala.common.schema import from_arrow
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


@scenario
async def test_hold_without_majority_is_refused(s):
    first = await s.write(1)
    for process in s.cluster.tservers[:2]:
        process.kill()
    with pytest.raises(Unavailable, match="no majority"):
        await s.on(s.core.hold, s.table, first, 60_000)
    await s.loop.delay(70 * SECOND)


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
    with patch.object(s.core.locations, "refresh", refreshed):
        holding = await s.on(s.core.hold, s.table, first, 5_000)
    assert holding.left_ms()
    await s.loop.delay(10 * SECOND)


def test_hold_time_to_live_must_be_a_number_of_seconds():
    schema = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
    table = unconnected_table(schema)
    for wrong in (0, -1, True, 1e9, float("nan")):
        with pytest.raises(InvalidArgument, match="ttl"):
            table.hold(ttl=wrong)
