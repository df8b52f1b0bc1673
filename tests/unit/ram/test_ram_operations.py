"""The coordinator's operations with crashes at each point, and replay of each prefix of random runs."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from nyala.common.errors import AlreadyPresent, NotFound, NyalaError, Unavailable
from nyala.ram.ids import LAST_HASH, ServerId, equal_ranges
from nyala.ram.operations.tables import CreateTable
from nyala.ram.server_list import ServerStatus
from nyala.ram.state import CoordinatorState
from nyala.recipes.operations.log import OperationLog
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.world.loop import SimLoop
from tests.sim.world.loop import run as run_loop
from tests.unit.ram.support.records import (
    CoordinatorProcess,
    ServersInMemory,
    create,
    drop,
    enlist,
    fresh,
    is_lint_free,
    led,
    split,
    state_of,
    valid_records,
)
from tests.unit.recipes.support.candidates import LOG, Candidates, candidates
from tests.unit.recipes.support.crashes import Crash, Points, Process, Request, run

ONE, TWO, THREE = ServerId(1, 1), ServerId(2, 2), ServerId(3, 3)
HALF = 1 << 63
REQUESTS: list[Request] = [
    enlist(1), enlist(2), create("a", 3), create("b", 2), split("a", 1 << 62), drop("b"), create("c", 2),
    split("c", 1 << 61), enlist(3), ("confirm", 3), ("assign_group", None),
    ("set_recovery_info", pb.RecoveryInfo(id=TWO.message(), min_open_segment=4, min_open_epoch=1)),
    ("crash", ONE), ("recover_tablets", (1, ONE)), ("recover_tablets", (3, ONE)), ("remove", ONE),
    ("confirm", 8), drop("a"),
]  # fmt: skip


def check(c: Candidates, servers: ServersInMemory, process: Process) -> None:
    """Check the log, and that each server that is up owns what the map says."""
    state = state_of(process)
    assert is_lint_free(c, state), (valid_records(c), list(state.describe()))
    for server in state.servers.with_status(ServerStatus.UP):
        assert servers.owned(server.id) == state.tablets.owned_by(server.id)


def effect(state: CoordinatorState) -> Any:
    """Return tables and servers, without owners: a new leader begins its turn with another server."""
    tables = {t.id: (t.name, [p.first for p in t.tablets]) for t in state.tablets.tables.values()}
    return tables, state.servers.version, {s: o.status for s, o in state.servers.servers.items()}


def crash_run(*crashes: int, twice: bool = False) -> tuple[int, list[str], Any]:
    """Run all requests with crashes.

    Returns:
        How many processes crashed, the points of the last one, and the effect of the requests.
    """
    found: list[Any] = []

    async def main(loop: SimLoop) -> None:
        c, servers = Candidates(loop), ServersInMemory()
        outcome = await run(c, lambda: CoordinatorProcess(servers), REQUESTS, *crashes, twice=twice)
        check(c, servers, outcome.process)
        await outcome.process.candidate.steps.resign()
        assert await fresh(c) == outcome.process.service.dump()
        found.extend(
            (outcome.crashed, outcome.process.points.names, effect(state_of(outcome.process)))
        )

    run_loop(main, max_time_s=3000)
    return found[0], found[1], found[2]


def undisturbed() -> tuple[list[str], Any]:
    """Return crash points and effect of a run without crashes; one that fails fails in the tests."""
    try:
        return crash_run()[1:]
    except (AssertionError, NyalaError):
        return ["after the failed intent"], None


NAMES, EFFECT = undisturbed()


@pytest.mark.row("S3.52", "S3.16", "S3.17")
@pytest.mark.parametrize("point", range(len(NAMES)))
def test_crash_at_each_point_of_each_operation_is_undone_or_completed(point):
    crashed, _, found = crash_run(point)
    assert crashed == 1
    assert found == EFFECT, "each operation has the effect that it has without a crash, once"


@pytest.mark.row("S3.46", "S3.53", "S3.18")
@pytest.mark.parametrize("second", range(4))  # the calls, and the end: before and after each
@pytest.mark.parametrize(
    "first", [n for n, name in enumerate(NAMES) if name.startswith("after") and "intent" in name]
)
def test_recovery_that_crashes_at_each_point_is_completed_by_the_next_leader(first, second):
    crashed, _, found = crash_run(first, second)
    assert crashed == 2
    assert found == EFFECT


def test_each_method_and_call_of_the_operations_may_be_repeated():
    crash_run(twice=True)


@pytest.mark.row("S3.15")
@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_operation_that_crashes_before_its_commit_point_has_no_effect(number):
    async def main(loop: SimLoop) -> None:
        c, servers = Candidates(loop), ServersInMemory()
        process = Process(c, CoordinatorProcess(servers), Points())
        await process.lead("one")
        for request in REQUESTS[:number]:
            await process.execute(request)
        before, entries, calls = process.service.dump(), c.entries(), servers.calls
        process.points.at = len(process.points.names)
        with pytest.raises(Crash):
            await process.execute(REQUESTS[number])
        assert servers.calls == calls
        assert c.entries() == entries
        await c.crash("one")
        assert await fresh(c) == before

    run_loop(main, max_time_s=900)


OPERATIONS: list[Callable[[random.Random, CoordinatorState, int], Request]] = [
    lambda rng, state, n: enlist(rng.randrange(5)),
    lambda rng, state, n: create(f"t{rng.randrange(6)}", rng.randrange(1, 5)),
    lambda rng, state, n: create(f"t{rng.randrange(6)}", rng.randrange(1, 5)),
    lambda rng, state, n: drop(f"t{rng.randrange(6)}"),
    lambda rng, state, n: split(f"t{rng.randrange(6)}", rng.randrange(1, LAST_HASH)),
    lambda rng, state, n: ("crash", rng.choice([*state.servers.servers, ONE])),
    lambda rng, state, n: (
        "recover_tablets",
        (rng.choice([*state.tablets.tables, 1]), rng.choice([*state.servers.servers, ONE])),
    ),
    lambda rng, state, n: ("remove", rng.choice([*state.servers.servers, ONE])),
    lambda rng, state, n: (
        "confirm",
        rng.randint(state.servers.confirmed, state.servers.version + 1),
    ),
    lambda rng, state, n: ("assign_group", None),
]


@pytest.mark.row("S3.17", "S3.26", "S3.27")
@pytest.mark.parametrize("seed", range(12))
def test_log_is_lint_free_and_replay_gives_the_state_after_each_random_operation(seed):
    async def main(loop: SimLoop) -> None:
        c, servers, rng = Candidates(loop), ServersInMemory(), random.Random(seed)
        process = Process(c, CoordinatorProcess(servers), Points())
        await process.lead("one")
        follower = CoordinatorProcess(ServersInMemory())

        async def call(fn: Callable[..., Any], *args: Any) -> Any:
            return fn(*args)

        log = OperationLog(await c.journal("two"), LOG, follower.kinds, follower.retract, call)
        following = asyncio.get_running_loop().create_task(log.follow())
        done = 0
        for number in range(60):
            state = state_of(process)
            try:
                await process.execute(rng.choice(OPERATIONS)(rng, state, number))
                done += 1
            except (NyalaError, ValueError):
                continue
            check(c, servers, process)
            replayed = CoordinatorProcess(ServersInMemory())
            await OperationLog(
                await c.journal("three"), LOG, replayed.kinds, replayed.retract, call
            ).catch_up()
            assert replayed.dump() == process.service.dump()
            await c.wait_s(0.1)
            assert follower.dump() == process.service.dump(), "followers replay in real time"
        assert done > 15
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run_loop(main, max_time_s=3000)


@pytest.mark.row("S3.50")
@candidates
async def test_table_has_equal_ranges_at_the_servers_in_turn_and_the_last_one_the_remainder(c):
    process, _ = await led(c, enlist(1), enlist(2), create("a", 3))
    table = state_of(process).tablets.named("a")
    assert [(t.first, t.last) for t in table.tablets] == equal_ranges(3)
    assert table.tablets[-1].last == LAST_HASH
    assert [t.master.index for t in table.tablets] == [1, 2, 1]
    assert all((t.ctime_segment, t.ctime_offset) == (0, 0) for t in table.tablets)
    await process.execute(create("b", 1))
    assert state_of(process).tablets.named("b").tablets[0].master.index == 2, "next server in turn"


@pytest.mark.row("S3.31")
@candidates
async def test_id_of_a_dropped_table_is_never_used_again(c):
    process, _ = await led(c, enlist(1), create("a"), create("b"), drop("b"))
    assert [r.largest_table_id for r in valid_records(c) if r.largest_table_id] == [2]
    await process.execute(drop("a"))
    assert [r.largest_table_id for r in valid_records(c) if r.largest_table_id] == [2]
    await c.crash("one")
    servers = ServersInMemory()
    two = Process(c, CoordinatorProcess(servers), Points())
    await two.lead("two")
    await two.execute(create("c"))
    assert state_of(two).tablets.named("c").id == 3
    assert not any(r.largest_table_id for r in valid_records(c)), "the table describes it now"


@pytest.mark.row("S3.25", "S3.23")
@candidates
async def test_drop_leaves_no_entry_of_the_table(c):
    process, _ = await led(c, enlist(1), create("z"), create("a", 4), split("a", 77), drop("a"))
    kinds = {r.WhichOneof("what") for r in valid_records(c)}
    assert kinds == {"server_up", "server_up_update", "alive_table", "largest_table_id"}
    assert is_lint_free(c, state_of(process))


@pytest.mark.row("S3.32")
@candidates
async def test_split_that_is_there_is_not_made_again(c):
    process, _ = await led(c, enlist(1), create("a", 1), split("a", HALF))
    assert is_lint_free(c, state_of(process))
    entries = c.entries()
    with pytest.raises(AlreadyPresent):
        await process.execute(split("a", HALF))
    assert c.entries() == entries
    tablets = state_of(process).tablets
    before = len(tablets.named("a").tablets)
    tablets.split(1, HALF)
    assert len(tablets.named("a").tablets) == before == 2


@pytest.mark.row("S3.12", "S3.11")
@candidates
async def test_server_that_is_replaced_crashes_before_the_new_one_is_up(c):
    process, _ = await led(c, enlist(1), enlist(2), enlist(9, replaces=ONE))
    servers = state_of(process).servers
    assert servers.servers[ONE].status is ServerStatus.CRASHED
    assert [(v, s.id) for v, s in servers.updates()][-2:] == [(3, ONE), (4, ServerId(3, 4))]
    await process.execute(enlist(2))
    assert servers.servers[TWO].status is ServerStatus.CRASHED, "another one is at its address"
    for one in (ONE, TWO):
        await process.execute(("remove", one))
    await process.execute(("confirm", servers.version))
    await process.execute(enlist(7))
    assert ServerId(1, servers.version) in servers.servers, "index 1 again, with a new generation"


@pytest.mark.row("S3.38", "S3.9")
@candidates
async def test_removed_server_keeps_its_records_until_all_know(c):
    process, _ = await led(c, enlist(1), enlist(2), create("a", 1), ("crash", ONE))
    with pytest.raises(Unavailable, match="not recovered"):
        await process.execute(("remove", ONE))
    await process.execute(("recover_tablets", (1, ONE)))
    await process.execute(("remove", ONE))
    version = state_of(process).servers.version
    await process.execute(("confirm", version - 1))
    kinds = [r.WhichOneof("what") for r in valid_records(c)]
    assert {"server_crashed", "server_remove_update"} <= set(kinds)
    await process.execute(("confirm", version))
    kinds = [r.WhichOneof("what") for r in valid_records(c)]
    assert sorted(map(str, kinds)) == ["alive_table", "server_list_version", "server_up"]
    with pytest.raises(NotFound):
        await process.execute(("crash", ONE))


@pytest.mark.row("S3.54", "S3.55", "S3.56")
@candidates
async def test_table_whose_server_never_answered_is_recovered_by_its_crash(c):
    servers = ServersInMemory()
    one = Process(c, CoordinatorProcess(servers), Points())
    await one.lead("one")
    for request in (enlist(1), enlist(2)):
        await one.execute(request)
    one.points.at = len(one.points.names) + 1  # after the intent
    with pytest.raises(Crash):
        await one.execute(create("a", 2))
    await c.crash("one")
    servers.silent |= {ONE, TWO}
    two = Process(c, CoordinatorProcess(servers), Points())
    await two.lead("two")
    assert state_of(two).tablets.by_name("a") is not None, "completed without any server"
    for request in (("crash", ONE), ("crash", TWO), enlist(3)):
        await two.execute(request)
    new = ServerId(3, 5)
    for lost in (ONE, TWO):
        await two.execute(("recover_tablets", (1, lost)))
        await two.execute(("remove", lost))
    assert servers.owned(new) == state_of(two).tablets.owned_by(new)
    assert len(servers.owned(new)) == 2


@pytest.mark.row("S3.54")
@candidates
async def test_table_is_not_created_without_servers(c):
    process, _ = await led(c)
    with pytest.raises(Unavailable, match="no server"):
        await process.execute(create("a"))
    assert CreateTable.kind == "create_table"
    assert valid_records(c) == []


@pytest.mark.row("S3.42")
@candidates
async def test_records_of_unknown_types_are_ignored(c):
    from tests.unit.client.support.journal_scenarios import append

    process, _ = await led(c, enlist(1), create("a"))
    unknown = b"\xfa\x01\x02hi"
    for data in (
        b"done create_table " + unknown,
        b"done later x",
        b"\xff",
        b"done create_table \xff",
    ):
        await process.candidate.steps.step((), [append(LOG, data)])
    before = process.service.dump()
    await c.crash("one")
    assert await fresh(c) == before
