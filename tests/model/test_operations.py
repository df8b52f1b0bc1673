"""Exhaustive exploration of operations with crashes and replay; planted mistakes violate an invariant."""

from collections.abc import Coroutine
from typing import Any

import pytest

from nyala.recipes.guard import Guard
from nyala.recipes.operations.log import OperationLog
from nyala.recipes.own_steps import OwnSteps
from nyala.recipes.whole import WholeTasks
from tests.model.operations import BOUNDS, CODE, PUT, REMOVE, Bounds, Operations, World, explore
from tests.model.operations_process import Code, Put, Remove, Request, act
from tests.model.search import Broken

STATES = {
    "put and remove, a crash": 1926,
    "put twice, a crash": 2126,
    "two recoveries crash": 6943,
    "a lost answer and a crash": 1690,
    "a follower": 5601,
    "an interrupt": 17125,
}
REACHED = {
    "all operations completed",
    "a later leader acted",
    "an operation completed 1 terms later",
}


@pytest.mark.row("S3.16", "S3.17", "S3.67")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.full] if BOUNDS[n].interrupts else [], id=n)
        for n in BOUNDS
    ],
)
def test_invariants_hold_in_each_state(name):
    found = explore(BOUNDS[name])
    print(f"{name}: {found.states:,} states")
    assert found.complete
    assert found.states == STATES[name], "other states than before: look why, and note the number"
    third = {f"an operation completed {n} terms later" for n in range(1, BOUNDS[name].terms)}
    assert found.goals >= REACHED | third


def broken(
    match: str,
    code: Code = CODE,
    system: type[Operations] = Operations,
    bounds: Bounds | None = None,
) -> None:
    """Explore, and expect a violation."""
    with pytest.raises(Broken, match=match):
        explore(bounds or BOUNDS["put and remove, a crash"], code, system)


# ---- mistakes ------------------------------------------------------------------------------------------


def test_action_before_the_intent_is_detected():
    class Eager(Put):
        async def compute(self, request: bytes) -> bytes:  # type: ignore[override]
            await act(Request(1, "put", request))
            return request

    broken("an action before its intent", Code(kinds=(Eager, Remove)))


def test_end_before_the_action_is_detected():
    broken("an end before the action", Code(calls_late=True))


def test_service_before_replay_is_detected():
    class Unread(OperationLog):
        async def take_over(self, steps: OwnSteps) -> None: ...

    broken("the leader has another state than a replay", Code(Unread))


def test_intents_that_are_not_completed_are_detected():
    class Idle(OperationLog):
        async def take_over(self, steps: OwnSteps) -> None:
            await self.catch_up()

    broken("the leader has another state than a replay", Code(Idle))


class Unshielded(WholeTasks):
    """Work that ends with its caller."""

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await work


def test_operations_that_end_with_their_callers_are_detected():
    class Interruptible(OperationLog):
        def __init__(self, journal: Any, *args: Any) -> None:
            super().__init__(journal, *args)
            self.tasks = Unshielded(journal.env, "operations")

    broken(
        "the leader has another state than a replay",
        Code(Interruptible),
        bounds=BOUNDS["an interrupt"],
    )


def test_server_without_a_guard_is_detected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Guard, "check", lambda self, epoch: None)
    broken("an action of an older epoch after a newer one")


def test_steps_without_conditions_are_detected():
    class Unconditional(Operations):
        def conditional(self) -> bool:
            return False

    broken("a step of an older epoch took effect", system=Unconditional)


def test_reads_that_lack_the_end_of_an_operation_are_detected():
    class Stale(Operations):
        def read(self, world: World) -> dict[int, bytes]:
            known = [c for c in world.changes if not c[2] or c[1] == b"alive"]
            return world._replace(changes=tuple(known)).valid()

    broken("an end of no operation, or a second one", system=Stale)


def test_actions_that_may_not_be_repeated_are_detected():
    class Toggling(Operations):
        def owned(self, before: frozenset[bytes], request: Request) -> frozenset[bytes]:
            return before ^ {request.payload.split()[0]}

    broken("the server differs from the state", system=Toggling)


def test_entries_that_stay_valid_are_detected():
    class Keeping(Put):
        def obsolete(self, payload: bytes) -> list[str]:
            return []

    code = Code(kinds=(Keeping, Remove))
    broken("an entry is left", code, bounds=BOUNDS["put twice, a crash"])


def test_request_that_its_living_sender_has_given_up_may_still_arrive():
    """No epoch distinguishes it from later ones; a service compares its servers, as `Upkeep` does."""
    bounds = Bounds((PUT, REMOVE), crashes=0, unanswered=1, late=True)
    broken("the server differs from the state", bounds=bounds)
