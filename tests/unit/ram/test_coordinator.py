"""Coordinators and servers of an ensemble on virtual time: ownership, crashes, take-over, pauses."""

import asyncio
import contextlib
import random
from typing import Any

import pytest

from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    NotLeading,
    NyalaError,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from nyala.ram.calls import EnsembleClient
from nyala.ram.checks import MAX_SPAN
from nyala.ram.coordinator import Coordinator, CoordinatorConfig
from nyala.ram.ids import LAST_HASH, ServerId
from nyala.ram.server_list import ROLES
from nyala.ram.storage_server import StorageConfig, StorageServer
from nyala.ram.will import TabletLoad
from nyala.recipes.broadcast import MAX_UPDATES
from nyala.recipes.guard import EpochGuard
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.selected import first
from tests.sim.world.loop import SimLoop, run
from tests.unit.ram.support.ensemble import LOG, SimEnsemble, ensemble
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


@ensemble
async def test_drop_that_is_sent_again_spares_a_new_table_of_the_same_name(e):
    lost: list[str] = []

    def lose_the_answer(name: str) -> None:
        if name == "after drop_table intent" and not lost:
            lost.append("client")
            e.cut.add("client")

    await e.coordinator("c0", lose_the_answer)
    await e.server("s0")
    await e.until(e.settled)
    client, other = await e.client(), await e.client("other")
    await client.call(*create("t", 3), 20_000)
    dropping = asyncio.get_running_loop().create_task(client.call(*drop("t"), 60_000))
    await e.until(lambda: e.cut)
    request = pb.CreateTableRequest(name="t", server_span=1)
    made = await other.call(methods.RAM_CREATE_TABLE, request, 20_000)
    e.cut.clear()
    await dropping
    found = await other.call(methods.RAM_TABLET_MAP, pb.TabletMapRequest(), 20_000)
    assert [t.id for t in found.tables] == [made.table.id]


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


@pytest.mark.row("S3.18", "S3.65")
@pytest.mark.parametrize("end", ["killed", "cut off", "resigned"])
def test_request_that_no_coordinator_answers_ends_in_time_and_names_whom_it_asked(end):
    @ensemble
    async def scenario(e):
        await started(e, coordinators=1)
        client = await e.client()
        if end == "killed":
            await e.kill("c0")
        elif end == "resigned":
            await e.coordinators["c0"].close()
        else:
            e.cut.add("c0")
        expected = {
            "killed": "c0:1 cannot be reached",
            "cut off": "c0:1 does not answer in time",
            "resigned": "the journal has named none",
        }[end]
        for request in (methods.RAM_SERVER_LIST, pb.ServerListRequest()), create("t"), drop("u"):
            began = e.loop.now_us()
            with pytest.raises(NyalaError, match=f"{expected}.*nyala ram up") as caught:
                await client.call(*request, 3_000)
            assert e.loop.now_us() - began < 4_500_000, "three seconds, and the last try"
            unknown = end == "cut off" and request[0] is not methods.RAM_SERVER_LIST
            assert type(caught.value) is (OutcomeUnknown if unknown else Unavailable)

    scenario()


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


@ensemble
async def test_processes_with_a_wrong_configuration_are_refused(e):
    env, journal = await e.open("x")
    for name, address in (
        ("", "a:1"),
        ("a\n", "a:1"),
        ("a" * 257, "a:1"),
        ("a", "a:0"),
        ("a", "a"),
    ):
        with pytest.raises(InvalidArgument):
            Coordinator(env, CoordinatorConfig(address, name), journal)
    for address, roles in (
        ("a:1", ()),
        ("a:1", ("king",)),
        ("a:1", ("",)),
        ("a:0", ROLES),
        ("a", ROLES),
    ):
        with pytest.raises(InvalidArgument):
            StorageServer(env, StorageConfig(address, roles), EnsembleClient(env, e.open), e.wait_s)


@ensemble
async def test_answer_of_a_leader_that_refuses_is_the_answer_of_the_call(e):
    await e.coordinator("c0")
    await e.until(e.leader)
    client = await e.client()
    with pytest.raises(Unavailable, match="no server that could own tablets is up"):
        await client.call(*create("t"), 1_000)
    for name in ("tables", "events"):
        with pytest.raises(NotFound, match="tables are: none yet"):
            await client.call(*drop(name), 1_000)


@ensemble
async def test_missing_table_is_refused_with_the_nearest_name(e):
    await started(e, coordinators=1, servers=1)
    client = await e.client()
    for name in ("Events", *(f"t{n}" for n in range(10))):
        await client.call(*create(name, 1), 20_000)
    with pytest.raises(
        NotFound, match=r"did you mean 'Events'\? the tables are: Events, t0.*and others"
    ):
        await client.call(*drop("event"), 5_000)
    with pytest.raises(NotFound, match="no table 'zzz'; the tables are"):
        await client.call(*drop("zzz"), 5_000)


@pytest.mark.row("S3.18")
@ensemble
async def test_operation_whose_leader_is_lost_after_the_commit_point_has_an_unknown_outcome(e):
    async def lost() -> None:
        raise NotLeading("the journal has a later leader")

    def meet_a_later_leader(name: str) -> None:
        if name == "after create_table intent":
            e.servers["s0"].member.guard.check(1 << 62)
            one.term.calls.confirm = lost

    one = await e.coordinator("c0", meet_a_later_leader)
    await e.server("s0")
    await e.until(e.settled)
    with pytest.raises(
        OutcomeUnknown, match=r"create_table may take effect: server .* a later leader"
    ):
        await one.term.execute("create_table", create("t", 3)[1])
    e.servers["s0"].member.guard = EpochGuard()
    await e.until(e.settled)
    assert e.leader().term.state.tablets.by_name("t") is not None


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


@ensemble
async def test_operation_goes_on_when_its_caller_is_cancelled(e):
    callers: list[asyncio.Task[Any]] = []
    points: list[str] = []

    def cancel(name: str) -> None:
        points.extend([name] if callers else ())
        if name == "after create_table intent":
            callers[0].cancel()

    one = await e.coordinator("c0", cancel)
    await e.server("s0")
    await e.until(e.settled)
    loop = asyncio.get_running_loop()
    callers.append(loop.create_task(one.term.execute("create_table", create("t", 3)[1])))
    with pytest.raises(asyncio.CancelledError):
        await callers[0]
    await one.term.execute("drop_table", drop("t")[1])
    assert [p for p in points if "create_table" in p] == [
        f"{when} create_table {what}"
        for what in ("intent", "action 0", "done")
        for when in ("before", "after")
    ], "once, not again by the drop"
    await e.until(e.settled)


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


@ensemble
async def test_bad_requests_to_the_coordinator_are_refused_and_change_nothing(e):
    await started(e)
    client = await e.client()
    before = await dump(client)
    bad = [
        (methods.RAM_ENLIST, pb.EnlistRequest(address="a:1"), InvalidArgument),
        (methods.RAM_ENLIST, pb.EnlistRequest(roles=["king"], address="a:1"), InvalidArgument),
        *(
            (methods.RAM_ENLIST, pb.EnlistRequest(roles=["master"], address=a), InvalidArgument)
            for a in (
                "",
                "nowhere",
                ":7",
                "a:",
                "a:0",
                "a:65536",
                "a:-1",
                "a:\u0663",
                "a\n:7",
                "a/b:7",
                "a" * 255 + ":7",
            )
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
            pb.CreateTableRequest(
                name="a", server_span=1, operation=pb.OperationId(client="x" * 257, sequence=1)
            ),
            InvalidArgument,
        ),
        (
            methods.RAM_CREATE_TABLE,
            pb.CreateTableRequest(name="a", server_span=MAX_SPAN + 1),
            InvalidArgument,
        ),
        (methods.RAM_DROP_TABLE, pb.DropTableRequest(name="nothing"), NotFound),
        (methods.RAM_DROP_TABLE, pb.DropTableRequest(id=1), InvalidArgument),
        (methods.RAM_DROP_TABLE, pb.DropTableRequest(), InvalidArgument),
        (methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(split_hash=4), InvalidArgument),
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
