"""Take-over of the leadership of an ensemble: what the next coordinator finds and completes."""

import asyncio
from typing import Any

import pytest

from nyala.common.errors import NotFound, NotLeading, NyalaError, StaleEpoch, Unavailable
from nyala.ram.ids import LAST_HASH
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.ram.support.ensemble import LOG, ensemble
from tests.unit.ram.support.requests import create, drop, dump, started


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
    fence = pb.Fence(ensemble=old.term.ensemble, epoch=epoch, server=server.message())
    with pytest.raises(StaleEpoch):
        await e.deliver(
            name, "s0:1", methods.RAM_SET_OWNERSHIP, pb.SetOwnershipRequest(fence=fence), 1000
        )
    with pytest.raises((NotLeading, Unavailable)):
        await e.deliver(name, f"{name}:1", *create("late"), 1000)
    await e.until(e.settled)
    alive = [r["alive_table"] for r in (await dump(client))["records"] if "alive_table" in r]
    assert [table["name"] for table in alive] == ["t"]


@pytest.mark.row("S3.45", "S3.64")
@pytest.mark.parametrize("notices_first", ["election", "upkeep"])
def test_replaced_leader_follows_the_next_one(notices_first):
    @ensemble
    async def replaced(e):
        await started(e)
        client, old = await e.client(), e.leader()
        term, name = old.term, next(n for n, c in e.coordinators.items() if c is old)
        e.without_journal.add(name)
        while old.term is term:
            await e.wait_s(0.02)
            if notices_first == "upkeep":
                term.changed.set()  # its next round begins now
        await e.until(lambda: e.leader() not in (None, old))
        e.without_journal.discard(name)
        await client.call(*create("t", 3), 20_000)
        await e.until(e.settled)
        assert e.leader() is not old

    replaced()


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


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "candidate"])
def test_coordinator_whose_journal_was_dropped_ends(leads):
    @ensemble
    async def scenario(e):
        ended: list[NyalaError] = []
        if not leads:
            await e.coordinator("c9")
            await e.until(e.leader)
        one = await e.coordinator("c0", on_end=ended.append)
        await e.until(e.leader)
        assert (e.leader() is one) == leads
        e.journal.dropped, e.journal.tablet = True, "c" * 32
        await e.until(lambda: ended)
        assert [type(err) for err in ended] == [NotFound]
        with pytest.raises(NotLeading):
            one.term.check()
        await one.close()

    scenario()


@pytest.mark.row("S3.45", "S3.59")
@ensemble
async def test_each_coordinator_tells_whether_it_leads_and_what_it_has_of_the_log(e):
    async def states() -> dict[str, Any]:
        request = pb.CoordinatorStatusRequest()
        return {
            n: await e.deliver("client", f"{n}:1", methods.RAM_COORDINATOR_STATUS, request, 1000)
            for n in e.coordinators
        }

    await started(e, coordinators=3)
    client, leader = await e.client(), e.leader()
    name = next(n for n, c in e.coordinators.items() if c is leader)
    await client.call(*create("t", 6), 20_000)
    await e.until(e.settled)
    _, journal = await e.open("reader")
    newest = max([x.id async for page in journal.entries(LOG) for x in page])
    found = await states()
    assert [n for n, s in found.items() if s.serves] == [name]
    assert {n: s.epoch for n, s in found.items() if s.epoch} == {name: leader.term.epoch}
    assert all(s.ensemble == LOG and s.reached >= newest for s in found.values())
    await e.kill(name)
    found = await states()
    assert len(found) == 2
    assert not any(s.serves or s.epoch for s in found.values()), "none leads"
    await e.until(e.settled)
    assert sum(s.serves for s in (await states()).values()) == 1


@pytest.mark.row("S3.55")
@pytest.mark.parametrize(
    "recovery",
    [
        ("not begun", "after create_table intent"),
        ("begun", "after recover_tablets intent"),
        ("finished", "after remove done"),
    ],
    ids=lambda one: one[0],
)
def test_tablets_of_a_server_that_crashes_during_a_create_get_one_owner(recovery):
    @ensemble
    async def scenario(e):
        def end(name: str) -> None:
            if name == "after create_table intent":
                e.cut.add("s1")
            if name == recovery[1]:
                e.cut.add("c0")

        await e.coordinator("c0", end)
        for n in range(3):
            await e.server(f"s{n}")
        await e.until(e.settled)
        lost, client = e.servers["s1"].member.id, await e.client()
        creating = asyncio.get_running_loop().create_task(client.call(*create("t", 6), 120_000))
        await e.until(lambda: "c0" in e.cut)
        await e.kill("c0")
        await e.kill("s1")
        e.cut.clear()
        one = await e.coordinator("c1")
        await creating
        await e.until(e.settled)
        assert lost not in one.term.state.servers.servers
        assert all(len(e.owners(1, h)) == 1 for h in range(0, LAST_HASH, LAST_HASH // 50))

    scenario()


@pytest.mark.row("S3.36", "S3.37")
@pytest.mark.parametrize("follows", [True, False], ids=["follower", "new"])
@pytest.mark.parametrize("tables", [0, 1, 2], ids=lambda n: f"{n}-recovered")
def test_next_leader_continues_the_recovery_that_a_record_asks_for(tables, follows):
    @ensemble
    async def scenario(e):
        points: list[str] = []
        continued: list[Any] = []

        def note(name: str) -> None:
            continued.append((name, e.coordinators["c1"].term.state.servers.to_recover()))

        def end(name: str) -> None:
            points.append(name)
            crashed, recovered = (
                points.count(f"after {k} done") for k in ("crash", "recover_tablets")
            )
            if name.startswith("after") and crashed and recovered == tables:
                e.cut.add("c0")

        await e.coordinator("c0", end)
        for n in range(3):
            await e.server(f"s{n}")
        await e.until(e.settled)
        lost, client = e.servers["s1"].member.id, await e.client()
        for name in ("t", "u"):
            await client.call(*create(name, 6), 20_000)
        if follows:
            await e.coordinator("c1", note)
            await e.until(e.settled)
        await e.kill("s1")
        await e.until(lambda: "c0" in e.cut)
        assert points.count("after recover_tablets done") == tables
        await e.kill("c0")
        e.cut.clear()
        one = e.coordinators["c1"] if follows else await e.coordinator("c1", note)
        await e.until(e.settled)
        next_point = "before recover_tablets intent" if tables < 2 else "before remove done"
        assert continued[0] == (next_point, [lost])
        assert one.term.state.servers.to_recover() == []
        for table in (1, 2):
            assert all(len(e.owners(table, h)) == 1 for h in range(0, LAST_HASH, LAST_HASH // 50))

    scenario()
