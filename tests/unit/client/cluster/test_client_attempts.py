"""The time budget of a call, on virtual time."""

from nyala.client.deadline import LONGEST_PAUSE_MS, Attempts
from nyala.env.env import Env
from tests.sim.world.loop import run, seeded
from tests.sim.world.tasks import SimClock, SimTasks


def test_attempts_end_before_deadline_and_requested_delay_is_observed():
    async def main(loop):
        env = Env(SimClock(loop), seeded(1), None, SimTasks(loop, seeded(1)), None)  # type: ignore[arg-type]
        attempts = Attempts(env, 1000)
        before = attempts.left_ms()
        assert await attempts.pause(at_least_ms=250)
        after = attempts.left_ms()
        assert not await attempts.pause(at_least_ms=after), "no time would be left for an attempt"
        assert attempts.left_ms() == after, "the pause is skipped"
        pauses = 0
        while await attempts.pause():
            pauses += 1
        return before, after, attempts.left_ms(), pauses

    before, after, left, pauses = run(main)
    assert before == 1000
    assert after == 750
    assert 0 < left <= LONGEST_PAUSE_MS
    assert pauses >= 750 // LONGEST_PAUSE_MS
