"""The simulator sees a disk operation on the loop: the whole process waits for it, and the run fails."""

from itertools import pairwise

import pytest

from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.replica.state_machine import Transport
from tests.sim.world.loop import Blocked, SimLoop, run, seeded
from tests.sim.world.network import SimNetwork
from tests.sim.world.process import SimProcess

SECOND_US = 1_000_000


class Ticker:
    """A server that ticks every 10 ms, and writes a file on request."""

    def __init__(self, env: Env, transport: Transport) -> None:
        self.env = env
        self.ticks: list[int] = []

    async def start(self) -> None:
        self.env.files.make_dir("/data")
        self.env.files.write_atomic("/data/a", b"a start may wait for its disk")
        self.env.tasks.spawn(self._tick(), "ticks")

    async def _tick(self) -> None:
        while True:
            await self.env.tasks.sleep_ms(10)
            self.ticks.append(self.env.clock.monotonic_us())

    async def on_loop(self) -> None:
        self.env.files.write_atomic("/data/a", b"b")

    async def in_lane(self) -> None:
        await self.env.tasks.run(Lane.DISK, self.env.files.write_atomic, "/data/a", b"b")

    async def reads(self) -> None:
        self.env.files.read("/data/a")

    def handlers(self):
        return {}

    async def close(self) -> None:
        await self.env.tasks.close()


def gap_us(ticks: list[int]) -> int:
    return max(b - a for a, b in pairwise(ticks))


async def played(loop: SimLoop, what: str, other: list[int] | None = None) -> int:
    """Let a server with a slow disk do something; return its longest time between two ticks."""
    network = SimNetwork(loop, seeded(1, "network"))
    process, beside = (SimProcess(loop, network, 1, n, f"{n}:1", f"{n}:2", Ticker) for n in "ab")
    for one in (process, beside):
        await one.start()
    process.delays.slow_rate, process.delays.slow_us = 1.0, 3.0 * SECOND_US
    await loop.delay(SECOND_US)
    server = process.server
    process.run(getattr(server, what))
    await loop.delay(30 * SECOND_US)
    assert len(server.ticks) > 500, "the server continued"
    if other is not None:
        other.append(gap_us(beside.server.ticks))
    found = gap_us(server.ticks)
    loop.blocked, noted = [], loop.blocked
    assert bool(noted) == (found > 20_000)
    return found


def test_blocking_call_stops_process_for_disk_duration():
    others: list[int] = []
    assert run(lambda loop: played(loop, "on_loop", others)) > SECOND_US
    assert others[0] < 20_000, "another process is not blocked"
    assert run(lambda loop: played(loop, "reads")) > 20_000
    assert run(lambda loop: played(loop, "in_lane")) < 20_000


@pytest.mark.parametrize("paused_first", [True, False])
def test_pause_and_disk_wait_end_independently(paused_first):
    async def main(loop: SimLoop) -> None:
        network = SimNetwork(loop, seeded(1, "network"))
        process = SimProcess(loop, network, 1, "a", "a:1", "a:2", Ticker)
        await process.start()
        process.delays.slow_rate, process.delays.slow_us = 1.0, 3.0 * SECOND_US
        process.run(process.server.on_loop)
        await loop.delay(1)
        incarnation = process.incarnation
        assert incarnation is not None
        assert incarnation.stalled
        process.pause()
        if paused_first:
            await loop.delay(30 * SECOND_US)
            assert not incarnation.stalled
            assert incarnation.paused, "the end of the disk wait does not end the pause"
        seen = len(process.server.ticks)
        process.resume()
        assert incarnation.paused != paused_first, "the end of the pause does not end the disk wait"
        await loop.delay(30 * SECOND_US)
        assert not incarnation.paused
        assert len(process.server.ticks) > seen + 500
        loop.blocked.clear()

    run(main)


def test_disk_wait_of_running_server_fails_run_with_stack():
    async def main(loop: SimLoop) -> None:
        network = SimNetwork(loop, seeded(1, "network"))
        process = SimProcess(loop, network, 1, "a", "a:1", "a:2", Ticker)
        await process.start()
        assert process.env is not None
        process.env.files.read("/data/a")  # the test itself, not the server
        process.run(process.server.in_lane)
        await loop.delay(SECOND_US)
        assert loop.blocked == []
        process.run(process.server.on_loop)
        await loop.delay(SECOND_US)

    with pytest.raises(
        Blocked, match=r"a waits for a disk on its loop: \w+ /data/a(.|\n)*in on_loop"
    ):
        run(main)
