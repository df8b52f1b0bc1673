"""The whole cluster with one machine's clock years wrong, at a start and while running, masters' too."""

import msgspec

from nyala.common.hybrid_time import to_micros
from nyala.common.options import Options
from tests.sim.cluster import OPTIONS
from tests.sim.loop import WALL_START_US
from tests.sim.stories import Stage, play

YEAR_US = 365 * 86_400 * 1_000_000
LIMIT_MS = Options().clock_max_ahead_ms


def ahead_us(stage: Stage) -> int:
    """How far the furthest hybrid clock of a living server is ahead of true time."""
    now_us = WALL_START_US + stage.loop.now_us()
    alive = [s for s in stage.cluster.servers if s.alive and s.server is not None]
    return max(to_micros(s.server.info().hybrid_time) - now_us for s in alive)


def test_one_clock_that_is_years_wrong_moves_no_other_and_stops_nothing():
    async def story(stage: Stage) -> None:
        await stage.acknowledged(20)
        for number, years in enumerate((24, -40)):
            for starts in (False, True):
                wrong = stage.cluster.tservers[number] if starts else await stage.leader()
                if starts:
                    wrong.kill(power_cut=True)
                wrong.clock.jump(years * YEAR_US)
                if starts:
                    wrong.start()
                for _ in range(3):
                    await stage.acknowledged(10)
                    assert ahead_us(stage) < LIMIT_MS * 1000
                wrong.clock.jump(-years * YEAR_US)
                await stage.acknowledged(10)
        assert ahead_us(stage) < LIMIT_MS * 1000

    play(story, options=msgspec.structs.replace(OPTIONS, clock_max_ahead_ms=LIMIT_MS))
