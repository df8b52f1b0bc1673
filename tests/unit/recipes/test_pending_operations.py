"""Operations that are interrupted, or cannot be completed: their order, and what they stop."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotFound, NotReady, Unavailable
from nyala.recipes.operations.operation import Operation
from nyala.recipes.records import ALIVE
from tests.unit.recipes.support.candidates import Candidates, candidates
from tests.unit.recipes.support.values import Values, World


def entries(c: Candidates) -> list[bytes]:
    """Return the valid entries of operations."""
    return [one for one in c.entries() if not one.startswith(ALIVE)]


async def interrupted(
    one: Values, c: Candidates, point: str, *request: Any, after_s: float
) -> None:
    """Begin an operation, and cancel its caller after a point."""
    one.names.clear()
    task = asyncio.get_running_loop().create_task(one.execute(*request))
    await one.passed(point)
    await c.wait_s(after_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def next_state(c: Candidates, world: World, name: str) -> dict[str, str]:
    """Return the state of the next leader."""
    two = Values(c, world)
    await two.lead(name)
    found = dict(two.values)
    await two.end()
    return found


@pytest.mark.row("S3.44", "S3.46")
@pytest.mark.parametrize("after_s", [0, 0.0005, 0.001, 0.01])
@pytest.mark.parametrize("point", ["intent", "action 0", "done"])
def test_interrupted_operation_ends_before_the_next_one(point, after_s):
    @candidates
    async def at(c):
        world = World()
        one = Values(c, world)
        await one.lead("one")

        async def slowly(_: str) -> None:
            await c.wait_s(0.005)

        world.before = slowly
        await interrupted(one, c, f"before set {point}", "set", ("x", "old"), after_s=after_s)
        await one.execute("set", ("x", "new"))
        await one.execute("set", ("y", 1))
        await c.wait_s(2)
        expected = {"x": "new", "y": "1"}
        assert one.values == world.values == expected
        assert entries(c) == [b"done set x new", b"done set y 1"]
        await one.execute("delete", "x")
        await one.end()
        assert await next_state(c, world, "two") == world.values == {"y": "1"}
        assert entries(c) == [b"done set y 1"]

    at()


@candidates
async def test_operation_that_cannot_be_completed_stops_only_those_that_touch_its_objects(c):
    world = World()

    async def fails(payload: str) -> None:
        if payload.startswith("x"):
            raise NotFound("the server is gone for good")

    one = Values(c, world)
    await one.lead("one")
    await one.execute("set", ("x", 0))
    world.before = fails
    with pytest.raises(
        NotReady, match=r"'set' is committed .*the server is gone for good"
    ) as found:
        await one.execute("set", ("x", 1))
    await one.execute("set", ("y", 1))
    intents = len([n for n in one.names if n == "before set intent"])
    with pytest.raises(Unavailable, match="'set' has no effect: it touches 'x', and so does 'set'"):
        await one.execute("set", ("x", 2))
    with pytest.raises(Unavailable, match="'delete' has no effect"):
        await one.execute("delete", "x")
    assert len([n for n in one.names if n == "before set intent"]) == intents
    (pending,) = await one.log.pending()
    assert str(pending.intent) == found.value.details["intent"]
    assert (pending.kind, pending.payload) == ("set", b"x 1")
    assert pending.error.startswith("NotFound: the server is gone for good")
    await one.end()
    two = Values(c, world)
    await two.lead("two")
    await two.execute("set", ("z", 1))
    assert [p.intent for p in await two.log.pending()] == [pending.intent]
    assert two.values == {"x": "1", "y": "1", "z": "1"}
    with pytest.raises(NotReady):
        await two.log.retry(two.candidate.steps, pending.intent)
    world.before = None
    await two.log.retry(two.candidate.steps, pending.intent)
    assert await two.log.pending() == []
    assert world.values == two.values
    with pytest.raises(NotFound, match="no operation with the intent"):
        await two.log.retry(two.candidate.steps, pending.intent)
    await two.end()


@pytest.mark.parametrize("described", [True, False])
def test_abandoned_operation_leaves_its_objects_as_they_were(described):
    @candidates
    async def at(c):
        world = World()
        one = Values(c, world)
        await one.lead("one")
        if described:
            await one.execute("set", ("x", 0))

        async def fails(_: str) -> None:
            raise OSError("no such server")

        world.before = fails
        with pytest.raises(NotReady, match="OSError: no such server"):
            await one.execute("set", ("x", 1))
        assert one.values == {"x": "1"}
        (pending,) = await one.log.pending()
        await one.log.abandon(one.candidate.steps, pending.intent)
        expected = {"x": "0"} if described else {}
        assert one.values == expected
        assert await one.log.pending() == []
        world.before = None
        await one.execute("set", ("y", 1))
        await one.end()
        assert await next_state(c, world, "two") == {**expected, "y": "1"}

    at()


@candidates
async def test_process_that_lost_the_leadership_follows_when_another_one_abandons(c):
    """Its state is set right, to which it had applied the intent."""
    world = World()
    one = Values(c, world)
    await one.lead("one")
    await one.execute("set", ("x", 0))

    async def fails(_: str) -> None:
        raise OSError("no such server")

    world.before = fails
    with pytest.raises(NotReady):
        await one.execute("set", ("x", 1))
    await one.candidate.close()
    two = Values(c, world)
    await two.lead("two")
    (pending,) = await two.log.pending()
    await two.log.abandon(two.candidate.steps, pending.intent)
    await c.wait_s(1)
    assert one.values == two.values == {"x": "0"}
    await one.end()
    await two.end()


@candidates
async def test_error_after_the_commit_point_says_that_it_is_committed(c):
    world = World()
    one = Values(c, world)
    await one.lead("one")

    async def cut(_: str) -> None:
        c.links["one"].cut = True

    world.before = cut
    with pytest.raises(NotReady, match="'set' is committed"):
        await one.execute("set", ("x", 1))
    c.links["one"].cut, world.before = False, None
    assert entries(c) == [b"intent set x 1"]
    await one.candidate.close()
    two = Values(c, world)
    await two.lead("two")
    assert entries(c) == [b"done set x 1"]
    await two.end()
    await one.end()


class Many(Operation):
    """Has more results, or ids that become obsolete, than a step may have; or a result that is too large."""

    kind = "many"

    def compute(self, request: Any) -> bytes:
        return str(request).encode()

    def apply(self, payload: bytes) -> None: ...

    def objects(self, payload: bytes) -> Iterable[str]:
        return [payload.decode()[:10]]

    def results(self, payload: bytes) -> list[bytes]:
        if payload == b"large":
            return [b"x" * (1 << 20)]
        return [b"%d" % n for n in range(65)]


@pytest.mark.parametrize("request_", ["results", "large"])
def test_operation_that_could_not_end_is_refused_before_its_intent(request_):
    @candidates
    async def at(c):
        world = World()
        one = Values(c, world, Many())
        await one.lead("one")
        with pytest.raises(Exception, match=r"may have (64|1048576)") as found:
            await one.execute("many", request_)
        assert not isinstance(found.value, NotReady)
        assert entries(c) == []
        await one.execute("set", ("x", 1))
        await one.end()
        assert await next_state(c, world, "two") == {"x": "1"}

    at()


@candidates
async def test_execute_inside_an_action_is_refused(c):
    world, refused = World(), []
    one = Values(c, world)
    await one.lead("one")

    async def nested(_: str) -> None:
        for call in (one.execute("set", ("y", 1)), one.log.take_over(one.candidate.steps)):
            with pytest.raises(InvalidArgument, match="would wait for itself") as found:
                await call
            refused.append(found.value)

    world.before = nested
    await one.execute("set", ("x", 1))
    assert len(refused) == 2
    world.before = None
    await one.execute("set", ("y", 1))
    assert one.values == {"x": "1", "y": "1"}
    await one.end()
