"""Servers of an ensemble on virtual time: ownership, crashes, the server list, wills, random faults."""

import asyncio
import contextlib
import random

import pytest

from nyala.common.errors import NyalaError
from nyala.ram.ids import LAST_HASH, ServerId
from nyala.ram.will import TabletLoad
from nyala.recipes.broadcast import MAX_UPDATES
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.selected import first
from tests.sim.world.loop import SimLoop, run
from tests.unit.ram.support.ensemble import SimEnsemble, ensemble
from tests.unit.ram.support.requests import create, drop, dump, started


@pytest.mark.row("S3.1", "S3.7", "S3.50")
@ensemble
async def test_servers_own_what_the_map_says_and_know_each_other(e):
    await started(e)
    client = await e.client()
    await client.call(*create("t", 6), 20_000)
    await e.until(e.settled)
    found = await e.status("s0")
    assert len(found.tablets) == 2
    assert [s.address for s in found.servers] == ["s0:1", "s1:1", "s2:1"]
    for key_hash in (0, 1 << 63, LAST_HASH):
        assert len(e.owners(1, key_hash)) == 1
    await client.call(
        methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(name="t", split_hash=99), 9_000
    )
    await client.call(
        methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(name="t", split_hash=99), 9_000
    )
    await e.until(e.settled)
    await client.call(*drop("t"), 20_000)
    await e.until(e.settled)
    assert not any(s.member.owned for s in e.servers.values())


@pytest.mark.row("S3.13", "S3.36", "S3.37")
@ensemble
async def test_tablets_of_a_killed_server_get_other_owners(e):
    await started(e)
    client = await e.client()
    await client.call(*create("t", 6), 20_000)
    await e.kill("s1")
    await e.until(e.settled)
    assert all(len(e.owners(1, h)) == 1 for h in range(0, LAST_HASH, LAST_HASH // 50))


@pytest.mark.row("S3.54")
@ensemble
async def test_cold_boot_hands_the_tablets_to_servers_that_enlist_later(e):
    await started(e, coordinators=1)
    client = await e.client()
    await client.call(*create("t", 6), 20_000)
    for name in ("c0", "s0", "s1", "s2"):
        await e.kill(name)
    await e.coordinator("c1")
    await e.until(lambda: e.leader() is not None)
    await e.wait_s(10)
    for n in range(2):
        await e.server(f"s{n}")
    await e.until(e.settled)
    assert all(len(e.owners(1, h)) == 1 for h in range(0, LAST_HASH, LAST_HASH // 50))


@ensemble
async def test_server_that_misses_pings_has_three_intervals_whatever_else_goes_on(e):
    await started(e, coordinators=1)
    client, server = await e.client(), e.servers["s2"].member.id
    servers = e.leader().term.state.servers
    await e.kill("s2")
    began = e.loop.now_us()
    for n in range(15):
        await client.call(*create(f"t{n}", 2), 20_000)
    assert e.loop.now_us() - began < 1_000_000, "two intervals"
    assert servers.is_up(server)
    await e.until(lambda: not servers.is_up(server))
    await e.until(e.settled)


@pytest.mark.row("S3.8", "S3.10")
@ensemble
async def test_server_that_missed_changes_of_the_list_gets_them(e):
    await started(e, servers=2)
    e.cut.add("s0")
    await e.wait_s(0.6)
    await e.server("s9")
    await e.wait_s(0.3)
    e.cut.discard("s0")
    await e.until(e.settled)
    assert len((await e.status("s0")).servers) == 3


@pytest.mark.full
@pytest.mark.row("S3.10")
@ensemble
async def test_server_that_lacks_many_changes_gets_a_hundred_at_a_time(e):
    await e.coordinator("c0")
    await e.until(e.leader)
    client = await e.client()
    requests = [pb.EnlistRequest(roles=["master"], address=f"gone-{n}:1") for n in range(110)]
    await asyncio.gather(*(client.call(methods.RAM_ENLIST, r, 60_000) for r in requests))
    await e.server("s0")
    await e.until(e.settled, 200)
    assert e.most_updates == MAX_UPDATES
    assert e.full_lists == 0, "no change was dropped before all had it"
    assert [s.address for s in (await e.status("s0")).servers] == ["s0:1"]
    assert e.leader().upkeep.kept_updates == 0, "all have them"


@pytest.mark.row("S3.9")
@ensemble
async def test_server_that_was_taken_for_dead_enlists_anew_and_owns_nothing_old(e):
    await started(e)
    client = await e.client()
    await client.call(*create("t", 6), 20_000)
    before = e.servers["s0"].member.id
    e.cut.add("s0")
    await e.until(lambda: before not in e.leader().term.state.servers.servers)
    e.cut.discard("s0")
    await e.until(e.settled)
    assert e.servers["s0"].member.id != before
    assert all(len(e.owners(1, h)) == 1 for h in range(0, LAST_HASH, LAST_HASH // 50))


@ensemble
async def test_ownership_that_was_lost_at_a_server_is_set_again(e):
    await started(e)
    client = await e.client()
    await client.call(*create("t", 6), 20_000)
    e.servers["s1"].member.set_all([])
    assert not e.settled()
    await e.until(e.settled)


@pytest.mark.row("S3.5")
@ensemble
async def test_wills_follow_the_loads_and_divide_a_recovery(e):
    e.limit = TabletLoad(100, 1000)
    await started(e)
    client = await e.client()
    await client.call(*create("t", 3), 20_000)
    await e.until(e.settled)
    await e.wait_s(2)
    one = e.servers["s1"]
    before = (await client.call(methods.RAM_WILLS, pb.WillsRequest(), 20_000)).wills
    assert [len(w.parts) for w in before] == [1, 1, 1]
    e.loads["s1"].update({t: TabletLoad(350, 10) for t in one.member.owned})
    server = one.member.id
    await e.wait_s(2)
    wills = (await client.call(methods.RAM_WILLS, pb.WillsRequest(), 20_000)).wills
    will = next(w for w in wills if ServerId.of(w.id) == server)
    assert [p.bytes for p in will.parts] == [88, 88, 88, 88]
    await e.kill("s1")
    await e.until(e.settled)
    owned = [len(s.member.owned) for s in e.servers.values()]
    assert owned == [3, 3]


@pytest.mark.row("S3.39")
@ensemble
async def test_hints_and_recovery_information(e):
    await started(e)
    client = await e.client()
    server = e.servers["s0"].member.id.message()
    hint = pb.HintCrashedRequest(id=server)
    assert not (await client.call(methods.RAM_HINT_CRASHED, hint, 9_000)).crashed
    info = pb.RecoveryInfo(id=server, min_open_segment=7, min_open_epoch=2)
    await client.call(methods.RAM_SET_RECOVERY_INFO, pb.SetRecoveryInfoRequest(info=info), 9_000)
    listed = (await client.call(methods.RAM_SERVER_LIST, pb.ServerListRequest(), 9_000)).servers
    assert listed[0].min_open_segment == 7
    await e.kill("s0")
    assert (await client.call(methods.RAM_HINT_CRASHED, hint, 9_000)).crashed
    await e.until(e.settled)


@pytest.mark.row("S3.40")
@ensemble
async def test_three_backups_form_a_replication_group(e):
    await started(e, servers=4)
    await e.until(lambda: e.settled() and not e.leader().term.state.servers.moved)
    groups = [s.group for s in (await e.status("s3")).servers]
    assert groups[0] == groups[1] == groups[2] > 0
    assert groups[3] == 0


async def _random_run(e: SimEnsemble, seed: int) -> None:
    """Create, drop and split at random, while servers and coordinators are killed, cut off and started."""
    rng = random.Random(seed)
    await started(e, coordinators=3, servers=4)
    client = await e.client()
    number = 10
    for _ in range(60):
        match rng.randrange(10):
            case 0 if len(e.servers) > 2:
                await e.kill(rng.choice(sorted(e.servers)))
            case 1:
                await e.server(f"s{number}")
            case 2 if len(e.coordinators) > 1:
                await e.kill(rng.choice(sorted(e.coordinators)))
            case 3:
                await e.coordinator(f"c{number}")
            case 4 if not e.cut:
                e.cut.add(rng.choice(sorted([*e.servers, *e.coordinators])))
            case 5:
                e.cut.clear()
            case _:
                name = f"t{rng.randrange(5)}"
                request = rng.choice([create(name, 4), create(name, 2), drop(name)])
                with contextlib.suppress(NyalaError):
                    await client.call(*request, rng.choice([300, 20_000]))
        number += 1
        await e.wait_s(rng.choice([0, 0.01, 0.5, 3]))
    e.cut.clear()
    if not e.coordinators:
        await e.coordinator("last")
    await e.until(e.settled, 120)
    before = await dump(client)
    leader = e.leader()
    assert leader is not None
    state = leader.term.state
    for table in state.tablets.tables:
        assert all(len(e.owners(table, h)) == 1 for h in range(0, LAST_HASH, LAST_HASH // 20))
    await e.coordinator("next")
    await e.wait_s(1)
    for name in sorted(e.coordinators.keys() - {"next"}):
        await e.kill(name)
    await e.until(e.settled, 120)
    assert await dump(client) == before


@pytest.mark.row("S3.17", "S3.3", "S3.55")
@pytest.mark.parametrize("seed", first(range(6), 2))
def test_random_kills_and_cuts_leave_one_owner_of_each_key_and_equal_dumps(seed):
    async def main(loop: SimLoop) -> None:
        await _random_run(SimEnsemble(loop, seed), seed)

    run(main, max_time_s=9000)
