"""Crash points of the coordinator's operations: one operation, with a crash of the leader at one of them."""

from functools import cache
from typing import Any

from nyala.ram.server_list import ServerStatus
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
    split,
    state_of,
)
from tests.unit.recipes.support.candidates import Candidates
from tests.unit.recipes.support.crashes import Request, run

BEFORE: list[Request] = [enlist(1), enlist(2), create("a", 3)]
OPERATIONS: dict[str, Request] = {
    "create": create("b", 2),
    "drop": drop("a"),
    "split": split("a", 1 << 62),
    "enlist": enlist(3),
}
"""The operation that is interrupted, after the requests of `BEFORE`."""


def crash_points(operation: str) -> list[str]:
    """Return the names of the crash points of an operation, in order: `before create_table intent`.

    They are before the first step, and after each one. A crash before a later step is one after the step that
    precedes it.
    """
    return [name for _, name in _points(operation)]


def _points(operation: str) -> list[tuple[int, str]]:
    """Return the numbers and names of an operation's crash points."""
    first = len(_undisturbed("")[0])  # those of the requests before the operation
    found = [*enumerate(_undisturbed(operation)[0])][first:]
    return [p for p in found if p[0] == first or p[1].startswith("after")]


def crash_at(operation: str, number: int) -> str:
    """Interrupt an operation at a crash point, let the next leader take over, and check the result.

    Args:
        operation: one of `OPERATIONS`.
        number: position of the crash point, from 0.

    Returns:
        The name of the point.

    Raises:
        AssertionError: the log, the servers or the effect are not those of a run without a crash.
    """
    (point, name), effect = _points(operation)[number], _undisturbed(operation)[1]
    crashed, _, found = _run(operation, point)
    assert crashed == 1, f"the leader did not crash {name}"
    assert found == effect, f"crash {name}: the effect is not that of a run without a crash"
    return name


@cache
def _undisturbed(operation: str) -> tuple[list[str], Any]:
    """Return the crash points and the effect of a run without a crash."""
    _, names, effect = _run(operation)
    return names, effect


def _run(operation: str, *crashes: int) -> tuple[int, list[str], Any]:
    """Run the requests; the last one is the operation.

    Args:
        operation: name of the operation; empty: only the requests before it.
        crashes: number of the crash point of each process but the last one.

    Returns:
        How many processes crashed, the crash points of the last one, and the effect.
    """
    requests = [*BEFORE, *([OPERATIONS[operation]] if operation else [])]
    found: list[Any] = []

    async def main(loop: SimLoop) -> None:
        c, servers = Candidates(loop), ServersInMemory()
        outcome = await run(c, lambda: CoordinatorProcess(servers), requests, *crashes)
        state = state_of(outcome.process)
        assert is_lint_free(c, state), "the log has records that no operation needs"
        for server in state.servers.with_status(ServerStatus.UP):
            owned = servers.owned(server.id)
            assert owned == state.tablets.owned_by(server.id), f"{server.id} owns {owned}"
        await outcome.process.candidate.steps.resign()
        assert await fresh(c) == outcome.process.service.dump(), "a new leader reads another state"
        tables = {
            t.id: (t.name, [p.first for p in t.tablets]) for t in state.tablets.tables.values()
        }
        statuses = {s: o.status for s, o in state.servers.servers.items()}
        found.extend((outcome.crashed, outcome.process.points.names, (tables, statuses)))

    run_loop(main, max_time_s=3000)
    return found[0], found[1], found[2]
