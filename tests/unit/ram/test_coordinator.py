"""Coordinators and servers of an ensemble on virtual time: ownership, crashes, take-over, pauses."""

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest

from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    NotLeading,
    NyalaError,
    StaleEpoch,
    Unavailable,
)
from nyala.ram.calls import EnsembleClient
from nyala.ram.ids import LAST_HASH, ServerId
from nyala.ram.operations import MAX_SPAN
from nyala.ram.will import TabletLoad
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.ram.support.ensemble import LOG, SimEnsemble, ensemble


async def started(e: SimEnsemble, *, coordinators: int = 2, servers: int = 3) -> None:
    for n in range(coordinators):
        await e.coordinator(f"c{n}")
    for n in range(servers):
        await e.server(f"s{n}")
    await e.until(e.settled)


def create(name: str, span: int = 3) -> tuple[Any, Any]:
    return methods.RAM_CREATE_TABLE, pb.CreateTableRequest(
        name=name,
        server_span=span,
        operation=pb.OperationId(client="c", sequence=1),
    )


def drop(name: str) -> tuple[Any, Any]:
    return methods.RAM_DROP_TABLE, pb.DropTableRequest(name=name)


async def dump(client: EnsembleClient) -> Any:
    found = await client.call(methods.RAM_DUMP, pb.DumpRequest(), 20_000)
    return json.loads(found.json)


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


@pytest.mark.row("S3.17", "S3.59", "S3.41")
@ensemble
async def test_new_leader_has_the_state_of_the_killed_one(e):
    await started(e)
    client = await e.client()
    await client.call(*create("t", 6), 20_000)
    await client.call(*create("u", 1), 20_000)
    await client.call(*drop("u"), 20_000)
    await e.until(e.settled)
    before, leader = await dump(client), e.leader()
    full_lists = e.full_lists
    name = next(n for n, c in e.coordinators.items() if c is leader)
    await e.kill(name)
    began = e.loop.now_us()
    await e.until(e.settled)
    assert e.loop.now_us() - began < (3_000 + 2 * 4_500 + 500) * 1000
    assert await dump(client) == before
    await e.server("late")
    await e.until(e.settled)
    assert e.full_lists <= full_lists + 1, "only the new server may have got the whole list"


@pytest.mark.row("S3.64", "S3.67", "S3.60")
@ensemble
async def test_paused_leader_that_wakes_up_writes_nothing_and_its_late_requests_are_refused(e):
    await started(e)
    client = await e.client()
    old = e.leader()
    name = next(n for n, c in e.coordinators.items() if c is old)
    calls, server = old.term.calls, e.servers["s0"].member.id
    e.cut.add(name)
    await e.until(lambda: e.leader() not in (None, old))
    await client.call(*create("t", 3), 20_000)
    e.cut.discard(name)
    epoch = calls.epoch
    with pytest.raises(NotLeading, match="later leader"):
        await calls.take(server, [])
    fence = pb.Fence(ensemble=LOG, epoch=epoch, server=server.message())
    with pytest.raises(StaleEpoch):
        await e.deliver(
            name, "s0:1", methods.RAM_SET_OWNERSHIP, pb.SetOwnershipRequest(fence=fence), 1000
        )
    with pytest.raises((NotLeading, Unavailable)):
        await e.deliver(name, f"{name}:1", *create("late"), 1000)
    await e.until(e.settled)
    assert [r.get("alive_table", {}).get("name") for r in (await dump(client))["records"]][
        -1
    ] == "t"


@pytest.mark.row("S3.48")
@ensemble
async def test_table_that_a_client_drops_during_replay_stays_dropped(e):
    await started(e, coordinators=1)
    client = await e.client()
    await client.call(*create("t", 3), 20_000)
    await e.kill("c0")
    dropping = asyncio.get_running_loop().create_task(client.call(*drop("t"), 60_000))
    await e.wait_s(1)
    await e.coordinator("c1")
    await dropping
    await e.until(e.settled)
    assert not any("alive_table" in r for r in (await dump(client))["records"])


@pytest.mark.row("S3.48", "S3.16")
@ensemble
async def test_new_leader_completes_what_it_finds_before_it_serves(e):
    def cut_off(name: str) -> None:
        if name == "after create_table intent":
            e.cut.add("c0")

    await e.coordinator("c0", cut_off)
    for n in range(3):
        await e.server(f"s{n}")
    await e.until(e.settled)
    client = await e.client()
    with pytest.raises(NyalaError):
        await client.call(*create("t", 3), 300)
    await e.kill("c0")
    e.cut.clear()
    one = await e.coordinator("c1")
    await e.until(lambda: one.upkeep is not None)
    assert "t" in [t.name for t in one.term.state.tablets.tables.values()]
    await e.until(e.settled)
    assert all(len(e.owners(1, h)) == 1 for h in range(0, LAST_HASH, LAST_HASH // 20))


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
    one.set_loads({t: TabletLoad(350, 10) for t in one.member.owned})
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


@ensemble
async def test_bad_requests_to_the_coordinator_are_refused_and_change_nothing(e):
    await started(e)
    client = await e.client()
    before = await dump(client)
    bad = [
        (methods.RAM_ENLIST, pb.EnlistRequest(address="a:1"), InvalidArgument),
        (methods.RAM_ENLIST, pb.EnlistRequest(roles=["king"], address="a:1"), InvalidArgument),
        (
            methods.RAM_ENLIST,
            pb.EnlistRequest(roles=["master"], address="nowhere"),
            InvalidArgument,
        ),
        (methods.RAM_CREATE_TABLE, pb.CreateTableRequest(name="", server_span=1), InvalidArgument),
        (
            methods.RAM_CREATE_TABLE,
            pb.CreateTableRequest(name="a\n", server_span=1),
            InvalidArgument,
        ),
        (
            methods.RAM_CREATE_TABLE,
            pb.CreateTableRequest(name="a" * 257, server_span=1),
            InvalidArgument,
        ),
        (methods.RAM_CREATE_TABLE, pb.CreateTableRequest(name="a"), InvalidArgument),
        (
            methods.RAM_CREATE_TABLE,
            pb.CreateTableRequest(name="a", server_span=MAX_SPAN + 1),
            InvalidArgument,
        ),
        (methods.RAM_DROP_TABLE, pb.DropTableRequest(name="nothing"), NotFound),
        (methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(name="nothing", split_hash=4), NotFound),
        (methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(name="t"), InvalidArgument),
        (methods.RAM_TABLET_MAP, pb.TabletMapRequest(name="nothing"), NotFound),
        (methods.RAM_HINT_CRASHED, pb.HintCrashedRequest(), NotFound),
        (methods.RAM_SET_RECOVERY_INFO, pb.SetRecoveryInfoRequest(), NotFound),
    ]
    for method, request, error in bad:
        with pytest.raises(error):
            await client.call(method, request, 5_000)
    assert await dump(client) == before


@ensemble
async def test_bad_requests_to_a_server_are_refused_and_change_nothing(e):
    await started(e)
    client = await e.client()
    await client.call(*create("t", 3), 20_000)
    member = e.servers["s0"].member
    epoch, owned = member.guard.epoch, set(member.owned)
    good: dict[str, Any] = {"ensemble": LOG, "epoch": epoch, "server": member.id.message()}
    requests: list[tuple[Any, Any, dict[str, Any]]] = [
        (
            methods.RAM_TAKE_OWNERSHIP,
            pb.TakeTabletOwnershipRequest,
            {"tablets": [pb.Owned(table_id=7)]},
        ),
        (methods.RAM_DROP_OWNERSHIP, pb.DropTabletOwnershipRequest, {"table_id": 1}),
        (methods.RAM_SPLIT_OWNED, pb.SplitMasterTabletRequest, {"table_id": 1, "split_hash": 5}),
        (methods.RAM_SET_OWNERSHIP, pb.SetOwnershipRequest, {}),
        (methods.RAM_UPDATE_SERVER_LIST, pb.UpdateServerListRequest, {"version": 99, "full": True}),
        (methods.RAM_PING, pb.PingRequest, {}),
    ]
    wrong: list[tuple[dict[str, Any], type[NyalaError]]] = [
        ({"ensemble": "other"}, InvalidArgument),
        ({"epoch": epoch - 1}, StaleEpoch),
        ({"epoch": 0}, StaleEpoch),
        ({"server": pb.ServerId(index=1, generation=77)}, NotFound),
    ]
    for method, make, fields in requests:
        for change, error in wrong:
            request = make(fence=pb.Fence(**{**good, **change}), **fields)
            with pytest.raises(error):
                await e.deliver("client", "s0:1", method, request, 1000)
    for method, make in (
        (methods.RAM_TAKE_OWNERSHIP, pb.TakeTabletOwnershipRequest),
        (methods.RAM_SET_OWNERSHIP, pb.SetOwnershipRequest),
    ):
        request = make(fence=pb.Fence(**good), tablets=[pb.Owned(table_id=7, first=9, last=8)])
        with pytest.raises(InvalidArgument, match="no hashes"):
            await e.deliver("client", "s0:1", method, request, 1000)
    assert member.owned == owned


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
@pytest.mark.parametrize("seed", range(6))
def test_random_kills_and_cuts_leave_one_owner_of_each_key_and_equal_dumps(seed):
    async def main(loop: SimLoop) -> None:
        await _random_run(SimEnsemble(loop, seed), seed)

    run(main, max_time_s=9000)
