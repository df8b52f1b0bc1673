"""A run fails on bugs that the product survives: logged ones, and exceptions of unawaited tasks."""

import asyncio

import pytest

from nyala.replica.multiraft.failure_detector import FailureDetector
from tests.sim.runs.scenario import ScenarioCluster, play
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.swallowed import PRODUCT


async def _serve_a_while(running: ScenarioCluster) -> None:
    await running.acknowledged(5)


def test_bug_in_a_tick_fails_the_run(monkeypatch: pytest.MonkeyPatch):
    whole, calls = FailureDetector.tick, iter(range(1_000_000))

    def tick(self: FailureDetector):
        if next(calls) == 100:
            raise KeyError("planted")
        return whole(self)

    monkeypatch.setattr(FailureDetector, "tick", tick)
    with pytest.raises(KeyError, match="planted") as raised:
        play(_serve_a_while)
    assert "a tick was not completed" in str(raised.value.__notes__)


def test_unexpected_exception_in_the_log_fails_the_run():
    async def main(loop: SimLoop) -> None:
        PRODUCT.error("refused", exc_info=OSError("the disk is full"))  # expected: no bug
        PRODUCT.error("survived", exc_info=ZeroDivisionError("planted"))

    with pytest.raises(ZeroDivisionError, match="planted") as raised:
        run(main)
    assert raised.value.__notes__ == ["logged by nyala: survived"]


def test_exception_of_a_task_that_nobody_awaits_fails_the_run():
    async def main(loop: SimLoop) -> None:
        async def broken() -> None:
            raise ZeroDivisionError("planted")

        asyncio.get_running_loop().create_task(broken())
        await loop.delay(10)

    with pytest.raises(ZeroDivisionError, match="planted"):
        run(main)
