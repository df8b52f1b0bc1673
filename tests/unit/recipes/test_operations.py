"""Operations: crashes at each point and in each recovery, each action twice, followers, replay."""

import asyncio
import gc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound, NotLeading
from nyala.recipes.guard import Guard
from nyala.recipes.operations.log import OperationLog
from nyala.recipes.operations.operation import Operation
from nyala.recipes.records import ALIVE
from tests.sim.world.loop import SimLoop
from tests.sim.world.loop import run as run_loop
from tests.unit.client.support.journal_scenarios import append
from tests.unit.recipes.support.candidates import LOG, Candidates, candidates
from tests.unit.recipes.support.crashes import Crash, Points, Process, Request, run

SERVERS = ("m0", "m1", "m2")


class World:
    """Servers that own tables, which outlive the leaders.

    Attributes:
        owned: tables of each server.
        acted: number of actions.
    """

    def __init__(self) -> None:
        self.owned: dict[str, set[str]] = {s: set() for s in SERVERS}
        self.guards = {s: Guard() for s in SERVERS}
        self.acted = 0

    def own(self, server: str, table: str, epoch: int, *, owns: bool) -> None:
        """Take or drop a table."""
        self.guards[server].check(epoch)
        self.acted += 1
        (self.owned[server].add if owns else self.owned[server].discard)(table)


class Create(Operation):
    """Creates a table at two servers."""

    kind = "create"

    def __init__(self, tables: dict[str, str], world: World) -> None:
        self._tables, self._world = tables, world

    def compute(self, request: Any) -> bytes:
        if request in self._tables:
            raise AlreadyPresent(f"table {request} exists")
        first = len(self._tables) % len(SERVERS)
        return f"{request} {SERVERS[first]},{SERVERS[(first + 1) % 3]}".encode()

    def apply(self, payload: bytes) -> None:
        name, servers = payload.decode().split()
        self._tables[name] = servers

    def objects(self, payload: bytes) -> Iterable[str]:
        return [payload.decode().split()[0]]

    def actions(self, payload: bytes, epoch: int) -> Sequence[Callable[[], Any]]:
        name, servers = payload.decode().split()
        return [partial(self._world.own, s, name, epoch, owns=True) for s in servers.split(",")]


class Drop(Operation):
    """Drops a table."""

    kind = "drop"

    def __init__(self, tables: dict[str, str], world: World) -> None:
        self._tables, self._world = tables, world

    def compute(self, request: Any) -> bytes:
        if request not in self._tables:
            raise NotFound(f"no table {request}")
        return f"{request} {self._tables[request]}".encode()

    def apply(self, payload: bytes) -> None:
        self._tables.pop(payload.decode().split()[0], None)

    def objects(self, payload: bytes) -> Iterable[str]:
        return [payload.decode().split()[0]]

    def actions(self, payload: bytes, epoch: int) -> Sequence[Callable[[], Any]]:
        name, servers = payload.decode().split()
        return [partial(self._world.own, s, name, epoch, owns=False) for s in servers.split(",")]

    def result(self, payload: bytes) -> bytes | None:
        return None


class Tables:
    """State of one process."""

    def __init__(self, world: World) -> None:
        self.tables: dict[str, str] = {}
        self.kinds = (Create(self.tables, world), Drop(self.tables, world))

    def retract(self, name: str) -> None:
        self.tables.pop(name, None)

    def dump(self) -> dict[str, str]:
        return dict(self.tables)


REQUESTS: list[Request] = [("create", "a"), ("create", "b"), ("drop", "a"), ("create", "a")]


def expected(done: int) -> set[str]:
    tables: set[str] = set()
    for kind, name in REQUESTS[:done]:
        tables = tables | {name} if kind == "create" else tables - {name}
    return tables


def check(c: Candidates, world: World, process: Process, done: int) -> None:
    """Check state, servers and log after all is completed."""
    tables = process.service.dump()
    assert isinstance(tables, dict)
    assert set(tables) == expected(done)
    for server, owned in world.owned.items():
        assert owned == {t for t, servers in tables.items() if server in servers}
    results = [e for e in c.entries() if not e.startswith(ALIVE)]
    assert sorted(results) == sorted(
        f"done create {t} {servers}".encode() for t, servers in tables.items()
    ), "one valid entry for each table"


async def fresh(c: Candidates) -> object:
    """Return the state of a process that replays the valid entries."""
    process = Process(c, Tables(World()), Points())
    await process.lead("fresh")
    return process.service.dump()


def crash_run(*crashes: int, twice: bool = False) -> tuple[int, list[str]]:
    """Run all requests with crashes; return how many processes crashed, and the points of the last one."""
    found: list[Any] = []

    async def main(loop: SimLoop) -> None:
        c, world = Candidates(loop), World()
        outcome = await run(c, lambda: Tables(world), REQUESTS, *crashes, twice=twice)
        check(c, world, outcome.process, len(REQUESTS))
        await outcome.process.candidate.steps.resign()
        assert await fresh(c) == outcome.process.service.dump()
        found.extend((outcome.crashed, outcome.process.points.names))

    run_loop(main, max_time_s=3000)
    return found[0], found[1]


NAMES = crash_run()[1]
"""Points of a run without crashes: each append and action, before and after."""
COMMITTED = [
    n
    for n, name in enumerate(NAMES)
    if "action" in name or name.split()[::2] in (["after", "intent"], ["before", "done"])
]
"""Those from which an operation is to be completed by the next leader, which passes six points then."""


@pytest.mark.row("S3.14", "S3.52")
def test_points_are_before_and_after_each_append_and_action():
    _, names = crash_run()
    assert names[:8] == [
        "before create intent", "after create intent", "before create action 0",
        "after create action 0", "before create action 1", "after create action 1",
        "before create done", "after create done",
    ]  # fmt: skip
    assert len(names) == 8 * len(REQUESTS)


@pytest.mark.row("S3.16", "S3.46", "S3.53")
@pytest.mark.parametrize("point", range(len(NAMES)))
def test_crash_at_any_point_leaves_operations_undone_or_completed(point):
    crashed, _ = crash_run(point)
    assert crashed == 1


@pytest.mark.row("S3.46")
@candidates
async def test_next_leader_completes_intents_in_their_order(c):
    world = World()
    one, two = (Process(c, Tables(world), Points()) for _ in range(2))
    await one.lead("one")
    for data in (b"intent create x m0,m1", b"intent drop x m0,m1", b"intent create y m1,m2"):
        await one.candidate.steps.step((), [append(LOG, data)])
    await c.crash("one")
    await two.lead("two")
    done = [n for n in two.points.names if n.startswith("after") and "action" not in n]
    assert done == ["after create done", "after drop done", "after create done"]
    assert two.service.dump() == {"y": "m1,m2"}
    assert world.owned == {"m0": set(), "m1": {"y"}, "m2": {"y"}}
    assert [e for e in c.entries() if not e.startswith(ALIVE)] == [b"done create y m1,m2"]


@pytest.mark.parametrize("second", range(6))
@pytest.mark.parametrize("first", COMMITTED)
def test_recovery_that_crashes_at_any_point_is_completed_by_the_next(first, second):
    crashed, _ = crash_run(first, second)
    assert crashed == 2


def test_each_method_and_action_may_be_called_twice():
    crash_run(twice=True)
    crash_run(3, 2, twice=True)


@pytest.mark.row("S3.15", "S3.18")
@candidates
async def test_request_without_intent_has_no_effect(c):
    world = World()
    process = Process(c, Tables(world), Points(0))
    await process.lead("one")
    with pytest.raises(Crash):
        await process.execute(("create", "t"))
    assert process.points.names == ["before create intent"]
    assert world.acted == 0
    await c.crash("one")
    assert await fresh(c) == {}


@pytest.mark.row("S3.43", "S3.47")
@candidates
async def test_refused_request_appends_nothing(c):
    process = Process(c, Tables(World()), Points())
    await process.lead("one")
    await process.execute(("create", "a"))
    before = c.entries()
    with pytest.raises(AlreadyPresent):
        await process.execute(("create", "a"))
    with pytest.raises(InvalidArgument, match="no operation 'rename'; the kinds are: create, drop"):
        await process.execute(("rename", "a"))
    assert c.entries() == before


@pytest.mark.row("S3.44", "S3.45")
@candidates
async def test_follower_applies_results_and_leaves_intents(c):
    leader, world = Process(c, Tables(World()), Points()), World()
    await leader.lead("one")
    service = Tables(world)

    async def call(fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)

    log = OperationLog(await c.journal("two"), LOG, service.kinds, service.retract, call)
    following = asyncio.get_running_loop().create_task(log.follow())
    for request in REQUESTS[:3]:
        await leader.execute(request)
        await c.wait_s(0.1)
        assert service.dump() == leader.service.dump()
    await leader.candidate.steps.step((), [append(LOG, b"intent create x m0,m1")])
    await c.wait_s(0.1)
    assert set(service.tables) == {"b"}, "an intent is not applied"
    assert world.acted == 0
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


class FailingOnce(Tables):
    """State of a process that fails once to apply, or to retract."""

    def __init__(self, kind: str) -> None:
        super().__init__(World())
        self.failing = kind

    def fail(self, kind: str) -> None:
        if kind == self.failing:
            self.failing = ""
            raise OSError(kind)

    def retract(self, name: str) -> None:
        self.fail("retract")
        super().retract(name)


@pytest.mark.parametrize("kind", ["apply", "retract"])
def test_follower_applies_again_what_has_failed(kind):
    @candidates
    async def steps(c):
        leader, service = Process(c, Tables(World()), Points()), FailingOnce(kind)
        await leader.lead("one")

        async def call(fn: Callable[..., Any], *args: Any) -> Any:
            service.fail(fn.__name__)
            return fn(*args)

        log = OperationLog(await c.journal("two"), LOG, service.kinds, service.retract, call)
        following = asyncio.get_running_loop().create_task(log.follow())
        for request in REQUESTS[:3]:
            await leader.execute(request)
            await c.wait_s(0.1)
        assert service.dump() != leader.service.dump()
        await c.wait_s(5)
        assert service.failing == ""
        assert service.dump() == leader.service.dump()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    steps()


@pytest.mark.row("S3.42")
@candidates
async def test_entries_of_unknown_types_are_ignored(c):
    leader = Process(c, Tables(World()), Points())
    await leader.lead("one")
    for data in (b"done rename a b", b"intent rename a", b"\xff\x00", b"done", b""):
        await leader.candidate.steps.step((), [append(LOG, data)])
    await leader.execute(("create", "a"))
    await leader.candidate.steps.resign()
    assert await fresh(c) == leader.service.dump()


@pytest.mark.row("S3.60")
@candidates
async def test_replaced_leader_executes_nothing(c):
    world = World()
    one = Process(c, Tables(world), Points())
    await one.lead("one")
    await one.execute(("create", "a"))
    await c.crash("one")
    two = Process(c, Tables(world), Points())
    await two.lead("two")
    with pytest.raises(NotLeading):
        await one.execute(("create", "late"))
    assert set(two.service.tables) == {"a"}  # type: ignore[attr-defined]


@candidates
async def test_operation_whose_action_failed_is_completed_before_the_next(c):
    world, process = World(), None
    process = Process(c, Tables(world), Points())
    await process.lead("one")
    world.guards["m1"] = Guard(1 << 60)
    with pytest.raises(Exception, match="epoch"):
        await process.execute(("create", "a"))
    world.guards["m1"] = Guard()
    await process.execute(("create", "b"))
    assert world.owned["m1"] >= {"a"}
    check(c, world, process, 2)


def test_run_that_fails_beside_a_follower_shows_its_own_error_alone(caplog):
    async def main(loop: SimLoop) -> None:
        c = Candidates(loop)
        await (await c.journal()).step([], [append(LOG, b"x")])
        log = OperationLog(await c.journal("two"), LOG, (), str, call_at_once)
        loop.create_task(log.follow())
        await c.wait_s(1)
        raise ZeroDivisionError

    async def call_at_once(fn: Any, *args: Any) -> Any:
        return fn(*args)

    with pytest.raises(ZeroDivisionError):
        run_loop(main, max_time_s=60)
    gc.collect()
    assert "was not applied" not in caplog.text
