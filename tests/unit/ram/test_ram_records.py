"""Each record of the coordinator's log: when it is appended, its content, and what a replay makes of it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from nyala.ram.ids import LAST_HASH, HashRange, ServerId, equal_ranges
from nyala.ram.operations.kinds import KINDS
from nyala.ram.server_list import ServerStatus
from nyala.recipes.operations.log import OperationLog
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.ram.support.records import (
    CoordinatorProcess,
    ServersInMemory,
    create,
    drop,
    enlist,
    fresh,
    led,
    split,
    state_of,
    valid_records,
)
from tests.unit.recipes.support.candidates import LOG, Candidates, candidates
from tests.unit.recipes.support.crashes import Crash, Points, Process, Request

ONE, TWO, THREE = ServerId(1, 1), ServerId(2, 2), ServerId(3, 3)
ALL: list[Request] = [
    enlist(1), enlist(2), enlist(3), create("a", 3), split("a", 5), ("assign_group", None), ("confirm", 3),
    ("set_recovery_info", pb.RecoveryInfo(id=TWO.message(), min_open_segment=4, min_open_epoch=1)),
    ("note_loads", pb.ServerLoads(id=TWO.message())),
    ("crash", ONE), ("dissolve_groups", None), ("recover_tablets", (1, ONE)), ("remove", ONE), drop("a"),
]  # fmt: skip
"""One request of each kind at least, in an order in which all are executed."""
PAGE = Path(__file__).parents[3] / "docs/internals/coordinator.md"
ROW = {"create_table": "create", "drop_table": "drop", "split_tablet": "split", "confirm": "confirm",
       "recover_tablets": "recover", "enlist": "enlist", "crash": "crash", "remove": "remove",
       "set_recovery_info": "set recovery", "assign_group": "assign group",
       "dissolve_groups": "dissolve groups", "note_loads": "note loads"}  # fmt: skip
"""First words of the row that an operation has in the page's table."""


async def crash_after_the_intent(c: Candidates, process: Process, request: Request) -> pb.Record:
    """Have the leader crash when it has appended an intent; return the intent."""
    before = valid_records(c)
    process.points.at = len(process.points.names) + 1
    with pytest.raises(Crash):
        await process.execute(request)
    await c.crash("one")
    (found,) = [r for r in valid_records(c) if r not in before]
    return found


async def next_leader(c: Candidates, servers: ServersInMemory) -> Process:
    process = Process(c, CoordinatorProcess(servers), Points())
    await process.lead("two")
    return process


def of_kind(c: Candidates, what: str) -> list[Any]:
    return [getattr(r, what) for r in valid_records(c) if r.WhichOneof("what") == what]


# ---- records of tables ---------------------------------------------------------------------------------


@pytest.mark.row("S3.28", "S3.29")
@candidates
async def test_create_table_has_all_that_the_next_leader_needs_and_alive_table_replaces_it(c):
    process, servers = await led(c, enlist(1), enlist(2))
    intent = (await crash_after_the_intent(c, process, create("a", 3))).create_table
    assert (intent.id, intent.name, intent.server_span) == (1, "a", 3)
    assert [(t.first, t.last) for t in intent.tablets] == equal_ranges(3)
    assert [ServerId.of(t.master) for t in intent.tablets] == [ONE, TWO, ONE]
    assert all((t.ctime_segment, t.ctime_offset) == (0, 0) for t in intent.tablets)
    two = await next_leader(c, servers)
    assert of_kind(c, "create_table") == []
    assert of_kind(c, "alive_table") == [intent], "the table as it was planned"
    await two.execute(split("a", 5))
    (alive,) = of_kind(c, "alive_table")
    assert [t.first for t in alive.tablets][:2] == [0, 5], "the record before is invalid"


@pytest.mark.row("S3.30", "S3.57")
@candidates
async def test_drop_table_is_completed_by_the_next_leader_though_a_server_is_silent(c):
    process, servers = await led(c, enlist(1), enlist(2), create("a", 2), create("b", 2))
    servers.silent.add(ONE)
    intent = (await crash_after_the_intent(c, process, drop("b"))).drop_table
    assert (intent.id, intent.name) == (2, "b")
    assert len(of_kind(c, "alive_table")) == 2, "the table is described until the end of the drop"
    two = await next_leader(c, servers)
    assert (of_kind(c, "drop_table"), of_kind(c, "largest_table_id")) == ([], [2])
    assert [t.id for t in of_kind(c, "alive_table")] == [1]
    assert state_of(two).tablets.by_name("b") is None
    assert {t.table_id for t in servers.owned(TWO)} == {1}
    assert {t.table_id for t in servers.owned(ONE)} == {1, 2}, "it was not told"
    assert {t.table_id for t in state_of(two).tablets.owned_by(ONE)} == {1}
    await two.execute(create("b", 1))
    assert state_of(two).tablets.named("b").id == 3, "what a silent server has left is of no table"


@pytest.mark.row("S3.32", "S3.33")
@pytest.mark.parametrize("what", ["split_tablet", "tablet_recovered"])
def test_intents_that_change_tablets_are_completed_by_the_next_leader(what):
    @candidates
    async def scenario(c):
        process, servers = await led(c, enlist(1), enlist(2), create("a", 2))
        if what == "split_tablet":
            request: Request = split("a", 7)
            expected = [HashRange(1, 0, 6), HashRange(1, 7, (1 << 63) - 1)]
        else:
            await process.execute(("crash", ONE))
            request = ("recover_tablets", (1, ONE))
            expected = []
        intent = await crash_after_the_intent(c, process, request)
        assert intent.WhichOneof("what") == what
        if what == "tablet_recovered":
            assert ServerId.of(intent.tablet_recovered.lost) == ONE
            assert [ServerId.of(p.master) for p in intent.tablet_recovered.pieces] == [TWO]
        two = await next_leader(c, servers)
        assert of_kind(c, what) == []
        assert state_of(two).tablets.owned_by(ONE) == expected
        if what == "split_tablet":
            assert servers.owned(ONE) == expected
        else:
            assert servers.owned(TWO) == [
                HashRange(1, 0, (1 << 63) - 1),
                HashRange(1, 1 << 63, LAST_HASH),
            ]

    scenario()


# ---- records of servers --------------------------------------------------------------------------------


@pytest.mark.row("S3.34", "S3.35", "S3.2")
@candidates
async def test_server_up_and_its_update_are_there_until_all_know(c):
    request = pb.EnlistRequest(roles=["master", "backup"], address="m:1", read_mb_s=77)
    process, _ = await led(c, ("enlist", request))
    assert of_kind(c, "server_up_update") == [1]
    (up,) = of_kind(c, "server_up")
    assert ServerId.of(up.id) == ONE
    assert (list(up.roles), up.address, up.read_mb_s) == (["backup", "master"], "m:1", 77)
    assert up.update_version == 1
    entries = c.entries()
    kinds = [r.WhichOneof("what") for r in valid_records(c)]
    assert kinds == ["server_up_update", "server_up"], "in this order"
    points = [n for n in process.points.names if "enlist" in n]
    assert points == ["before enlist done", "after enlist done"], "both are in one step"
    await process.execute(("confirm", 1))
    assert (of_kind(c, "server_up_update"), of_kind(c, "server_up")) == ([], [up])
    assert c.entries() != entries
    await process.execute(enlist(2))
    await process.execute(create("a", 1))
    described = await fresh_state(c)
    assert described == process.service.dump()
    kinds = [next(iter(r)) for r in described["records"]]
    assert {"server_up", "alive_table"} <= set(kinds), (
        "servers, tablets, names and ids in one state"
    )


@pytest.mark.row("S3.36", "S3.37")
@candidates
async def test_need_of_a_recovery_is_there_until_it_is_finished_and_the_crash_until_all_know(c):
    process, servers = await led(c, enlist(1), enlist(2), create("a", 2), ("crash", ONE))
    change = pb.ServerChange(id=ONE.message(), update_version=3)
    kinds = ("server_crashed", "server_needs_recovery")
    assert [of_kind(c, k) for k in kinds] == [[change], [change]]
    points = [n for n in process.points.names if "crash" in n]
    assert points == ["before crash done", "after crash done"], "both are in one step"
    await c.crash("one")
    two = await next_leader(c, servers)
    state = state_of(two).servers
    assert (state.servers[ONE].status, state.to_recover()) == (ServerStatus.CRASHED, [ONE])
    await two.execute(("recover_tablets", (1, ONE)))
    assert [of_kind(c, k) for k in kinds] == [[change], [change]]
    await two.execute(("remove", ONE))
    assert [of_kind(c, k) for k in kinds] == [[change], []]
    assert state.to_recover() == []
    await two.execute(("confirm", 4))
    assert [of_kind(c, k) for k in kinds] == [[], []]
    assert [ServerId.of(r.id) for r in of_kind(c, "server_up")] == [TWO]


@pytest.mark.row("S3.36")
@candidates
async def test_server_that_owns_no_tablets_crashes_without_need_of_a_recovery(c):
    backup = pb.EnlistRequest(roles=["backup"], address="m:1")
    process, _ = await led(c, ("enlist", backup), enlist(2), create("a", 2), ("crash", ONE))
    assert len(of_kind(c, "server_crashed")) == 1
    assert of_kind(c, "server_needs_recovery") == []
    assert state_of(process).servers.to_recover() == []
    await process.execute(("remove", ONE))
    assert len(of_kind(c, "server_remove_update")) == 1


async def fresh_state(c: Candidates) -> Any:
    await c.crash("one")
    return await fresh(c)


# ---- commit points -------------------------------------------------------------------------------------


class CommitPoints(Points):
    """Notes, for each kind of operation, what its first append leaves valid.

    Attributes:
        c: the journal's servers.
        first: types of the records of the first append, by kind.
    """

    def watch(self, c: Candidates) -> None:
        self.c = c
        self.first: dict[str, set[str]] = {}
        self.before: list[pb.Record] = []

    def __call__(self, name: str) -> None:
        super().__call__(name)
        moment, kind, what = name.split(" ", 2)
        if what not in ("intent", "done"):
            return
        if moment == "before":
            self.before = valid_records(self.c)
        elif kind not in self.first:
            new = [r for r in valid_records(self.c) if r not in self.before]
            self.first[kind] = {str(r.WhichOneof("what")) for r in new}


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


@pytest.mark.row("S3.14", "S3.20", "S3.43")
@candidates
async def test_first_append_of_each_operation_is_the_commit_point_of_the_page(c):
    points = CommitPoints()
    points.watch(c)
    process = Process(c, CoordinatorProcess(ServersInMemory()), points)
    await process.lead("one")
    passed: dict[str, list[str]] = {}
    for request in ALL:
        begun = len(points.names)
        await process.execute(request)
        passed.setdefault(request[0], points.names[begun:])
    assert set(points.first) == {k.kind for k in KINDS} == set(ROW)
    table = PAGE.read_text().partition("## Operations and commit points")[2]
    for kind, records in points.first.items():
        (row,) = re.findall(rf"^\| {ROW[kind]}.*$", table, re.MULTILINE)
        commit = row.split("|")[3]
        assert all(camel(r) in commit for r in records), (kind, records, commit)
    for kind, names in passed.items():
        appends = [n.removeprefix(f"before {kind} ") for n in names if n.startswith("before")]
        appends = [n for n in appends if not n.startswith("action")]
        has_intent = next(k for k in KINDS if k.kind == kind).has_intent
        assert appends == (["intent", "done"] if has_intent else ["done"]), "no other entry"


@pytest.mark.row("S3.24")
@candidates
async def test_leader_reads_nothing_to_know_what_an_operation_makes_invalid(c):
    process, _ = await led(c)
    called: list[str] = []
    deliver = c.servers.call

    async def call(address: str, method: Any, request: Any, **options: Any) -> Any:
        called.append(method.path.rpartition("/")[2])
        return await deliver(address, method, request, **options)

    c.servers.call = call
    for request in ALL:
        await process.execute(request)
    assert called
    assert not [m for m in called if "Read" in m or "Tail" in m or "Entries" in m], set(called)
    assert {m for m in called} <= {"Step", "Steps"}


# ---- replay --------------------------------------------------------------------------------------------


@pytest.mark.row("S3.44", "S3.49")
@candidates
async def test_follower_waits_for_the_end_of_an_operation_and_applies_nothing_twice(c):
    process, servers = await led(c, *ALL[:4])
    applied: list[tuple[str, bytes]] = []

    async def call(fn: Any, *args: Any) -> Any:
        if getattr(fn, "__name__", "") == "apply":
            applied.append((type(fn.__self__).__name__, args[0]))
        found = fn(*args)
        return await found if asyncio.iscoroutine(found) else found

    follower = CoordinatorProcess(servers)
    log = OperationLog(await c.journal("follower"), LOG, follower.kinds, follower.retract, call)
    following = asyncio.get_running_loop().create_task(log.follow())
    await c.wait_s(1)
    assert follower.dump() == process.service.dump()
    before = follower.dump()
    await crash_after_the_intent(c, process, create("later", 2))
    await c.wait_s(1)
    assert follower.dump() == before, "the intent alone has no effect at a follower"
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    seen = len(applied)
    candidate = await c.candidate("two")
    await candidate.elected()
    await log.take_over(candidate.steps)
    assert [name for name, _ in applied[seen:]] == ["CreateTable"], "only what was not replayed"
    assert follower.state.tablets.by_name("later") is not None


@pytest.mark.row("S3.47")
@pytest.mark.parametrize("request_", [create("x", 4), drop("a"), split("a", 9)], ids=lambda r: r[0])
def test_intent_that_is_replayed_does_what_the_request_does(request_):
    results = []

    @candidates
    async def requested(c):
        process, servers = await led(c, *ALL[:4])
        await process.execute(request_)
        results.append((process.service.dump(), {s: servers.owned(s) for s in servers.members}))

    @candidates
    async def replayed(c):
        process, servers = await led(c, *ALL[:4])
        await crash_after_the_intent(c, process, request_)
        two = await next_leader(c, servers)
        results.append((two.service.dump(), {s: servers.owned(s) for s in servers.members}))

    requested()
    replayed()
    assert results[0] == results[1]


class SlowServers(ServersInMemory):
    """Servers that take nothing before they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()

    async def take(self, server: ServerId, tablets: Any) -> None:
        await self.released.wait()
        await super().take(server, tablets)


@pytest.mark.row("S3.51", "S3.6")
@candidates
async def test_crash_and_recovery_wait_for_a_create_that_is_under_way(c):
    servers = SlowServers()
    process = Process(c, CoordinatorProcess(servers), Points())
    await process.lead("one")
    for request in (enlist(1), enlist(2)):
        await process.execute(request)
    spawn = asyncio.get_running_loop().create_task
    creating = spawn(process.execute(create("a", 2)))
    await c.wait_s(0.5)
    crashing = spawn(process.execute(("crash", ONE)))
    recovering = spawn(process.execute(("recover_tablets", (1, ONE))))
    await c.wait_s(0.5)
    state = state_of(process).servers
    assert (state.servers[ONE].status, state.version) == (ServerStatus.UP, 2)
    assert not crashing.done()
    servers.released.set()
    await asyncio.gather(creating, crashing, recovering)
    assert (state.servers[ONE].status, state.version) == (ServerStatus.CRASHED, 3)
    tablets = state_of(process).tablets
    assert set(tablets.owners()) == {TWO}, "the recovery saw the tablets of the create"
