"""A server's physical time: followed and ignored jumps of its wall clock; merged hybrid times."""

from functools import partial

import pytest

from nyala.common.hybrid_time import from_micros, to_micros
from nyala.env.disciplined_clock import ISOLATION_US, LATEST_US, ClockVerdict, DisciplinedClock
from nyala.env.files import SystemFiles
from nyala.env.server_clock import FarAhead, ServerClock, duration

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
LIMIT_MS = 10_000


class Machine:
    """Two clocks moved by the test, and the wall clocks of other machines."""

    def __init__(self):
        self.up_us, self.skew_us, self.others_us = 0, START_US, []

    def monotonic_us(self):
        return self.up_us

    def wall_us(self):
        return self.up_us + self.skew_us

    def offsets(self):
        return [other - self.skew_us for other in self.others_us]

    def clock(self):
        clock = DisciplinedClock(self, LIMIT_MS)
        clock.compare(self.offsets)
        return clock


def machine(others=0, up_us=2 * ISOLATION_US):
    found = Machine()
    found.others_us = [START_US] * others
    clock = found.clock()
    found.up_us = up_us
    clock.wall_us()
    clock.verdict()
    return found, clock


def test_small_clock_steps_are_followed_in_both_directions():
    found, clock = machine(others=2)
    for by_us in (9 * SECOND_US, -9 * SECOND_US, SECOND_US):
        found.skew_us += by_us
        assert clock.wall_us() == found.wall_us()


@pytest.mark.parametrize("by_us", [HOUR_US, -HOUR_US])
@pytest.mark.parametrize("others", [1, 2, 4])
def test_clock_jump_without_majority_is_not_followed(by_us, others):
    found, clock = machine(others)
    found.skew_us += by_us
    found.up_us += SECOND_US
    assert clock.wall_us() == START_US + found.up_us
    assert clock.ahead_us() == -by_us
    assert clock.verdict()[0] is (ClockVerdict.WRONG if others > 1 else ClockVerdict.UNDECIDED)
    found.skew_us -= by_us
    assert clock.wall_us() == found.wall_us()
    assert clock.verdict()[0] is ClockVerdict.AGREED


@pytest.mark.parametrize("agreed", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_wall_clock_beyond_last_timestamp_is_never_followed(agreed, alone):
    found, clock = machine(others=0 if alone else 2)
    clock.has_no_peers = alone
    by_us = LATEST_US - START_US
    found.skew_us += by_us
    found.others_us = [other + by_us * agreed for other in found.others_us]
    found.up_us += SECOND_US
    assert clock.wall_us() == START_US + found.up_us
    found.skew_us -= by_us
    assert clock.wall_us() == found.wall_us()


def test_clock_jump_forward_of_majority_is_followed_at_once():
    found, clock = machine(others=2)
    found.skew_us += HOUR_US
    found.others_us[0] += HOUR_US
    assert clock.wall_us() == found.wall_us()


def test_clock_jump_back_of_majority_is_followed_at_half_rate():
    found, clock = machine(others=2)
    before = clock.wall_us()
    found.skew_us -= HOUR_US
    found.others_us = [o - HOUR_US for o in found.others_us]
    for _ in range(10):
        found.up_us += SECOND_US
        clock.wall_us()
    assert clock.wall_us() == before + 5 * SECOND_US
    for _ in range(7200):
        found.up_us += SECOND_US
        clock.wall_us()
    assert clock.wall_us() == found.wall_us()


def test_disagreeing_clocks_move_no_clock():
    found, clock = machine(others=2)
    found.skew_us += HOUR_US
    found.others_us[0] -= HOUR_US
    assert clock.verdict() == (ClockVerdict.UNDECIDED, 0)
    assert clock.wall_us() == START_US + found.up_us


def test_clock_without_peers_follows_itself_and_clock_that_lost_peers_does_not():
    found, clock = machine()
    clock.has_no_peers = True
    found.skew_us += HOUR_US
    assert clock.wall_us() == found.wall_us()
    found, clock = machine(others=2)
    clock.has_no_peers = True
    found.others_us.clear()
    found.skew_us += HOUR_US
    assert clock.wall_us() == START_US + found.up_us


def test_forward_jump_of_isolated_clock_is_not_followed_and_backward_jump_slows_it():
    found, clock = machine()
    found.skew_us += HOUR_US
    for _ in range(3):
        found.up_us += SECOND_US
        assert clock.wall_us() == START_US + found.up_us
    found.skew_us -= HOUR_US
    assert clock.wall_us() == found.wall_us()
    before_us = clock.wall_us()
    found.skew_us -= HOUR_US
    found.up_us += 2 * SECOND_US
    assert clock.wall_us() == before_us + SECOND_US
    found.skew_us += HOUR_US
    assert clock.wall_us() == found.wall_us(), "as it was at the start"
    found.skew_us += HOUR_US
    found.others_us = [START_US + HOUR_US]
    assert clock.wall_us() == found.wall_us(), "the first answering server has the same time"


def test_isolated_start_follows_clock_without_jump_since_start():
    found = Machine()
    clock = found.clock()
    clock.resume_from(START_US - HOUR_US)
    found.up_us = SECOND_US
    assert clock.wall_us() == START_US - HOUR_US + found.up_us
    found.skew_us += 9 * SECOND_US
    clock.wall_us()
    found.skew_us += HOUR_US
    found.up_us = ISOLATION_US
    assert clock.wall_us() == found.wall_us() - HOUR_US


def test_start_waits_for_peers_for_limited_time():
    found = Machine()
    clock = found.clock()
    clock.resume_from(START_US - HOUR_US)
    found.up_us = ISOLATION_US - 1
    assert clock.wall_us() == START_US - HOUR_US + found.up_us
    found.up_us = ISOLATION_US
    assert clock.wall_us() == found.wall_us()


def test_start_with_wrong_clock_follows_majority_time():
    found = Machine()
    found.others_us = [START_US] * 2
    found.skew_us += 100_000 * HOUR_US
    clock = found.clock()
    clock.resume_from(START_US - HOUR_US)
    assert clock.wall_us() == START_US
    assert clock.verdict() == (ClockVerdict.WRONG, -100_000 * HOUR_US)


# ---- the hybrid clock --------------------------------------------------------------------------------


def server_clock(tmp_path, found):
    clock = ServerClock(DisciplinedClock(found, LIMIT_MS), SystemFiles(), str(tmp_path / "clock"))
    clock.physical.compare(found.offsets)
    return clock


def test_time_within_bound_is_merged_and_time_beyond_it_is_refused(tmp_path):
    clock = server_clock(tmp_path, Machine())
    last = from_micros(START_US + LIMIT_MS * 1000)
    assert clock.merge(last)
    assert clock.seen == last
    for far in (last + from_micros(1), from_micros(START_US + HOUR_US), (1 << 64) - 1):
        with pytest.raises(FarAhead, match="clock_max_ahead_ms"):
            clock.merge(far)
    assert clock.seen == last
    assert clock.merge(last), "an earlier time is merged without effect"


def test_bound_is_relative_to_monotonic_time_not_wall_clock(tmp_path):
    found = Machine()
    found.others_us = [START_US] * 2
    clock = server_clock(tmp_path, found)
    found.skew_us += HOUR_US
    with pytest.raises(FarAhead):
        clock.merge(from_micros(START_US + HOUR_US))
    assert to_micros(clock.now()) == START_US


def test_restart_with_wrong_year_writes_no_ceiling_in_it(tmp_path):
    found = Machine()
    server_clock(tmp_path, found).now()
    found.skew_us += 200_000 * HOUR_US
    for _ in range(3):
        clock = server_clock(tmp_path, found)
        assert to_micros(clock.now()) < START_US + 20 * SECOND_US
    found.skew_us = START_US + HOUR_US
    found.others_us = [found.skew_us] * 2
    clock = server_clock(tmp_path, found)
    assert to_micros(clock.now()) == START_US + HOUR_US


def test_durations_are_formatted_readably():
    assert duration(-1_500_000) == "1.5 s"
    assert duration(2 * HOUR_US) == "2.0 hours"
    assert duration(50 * HOUR_US) == "2.1 days"
    assert duration(200_000 * HOUR_US) == "22.8 years"


def offsets_of(found, others_us):
    return [other - found.skew_us for other in others_us]


def test_clock_without_peers_follows_a_jump_only_if_the_masters_clocks_have_it():
    for masters, agrees in ((1, False), (3, False), (1, True), (3, True)):
        found, clock = machine()
        clock.has_no_peers = True
        there_us = START_US + agrees * HOUR_US
        clock.compare_with_masters(partial(offsets_of, found, [there_us] * masters))
        found.skew_us += HOUR_US
        found.up_us += SECOND_US
        expected = found.wall_us() if agrees else START_US + found.up_us
        assert clock.wall_us() == expected, (masters, agrees)


def test_clocks_of_peers_count_before_those_of_masters():
    found, clock = machine(others=2)
    clock.compare_with_masters(partial(offsets_of, found, [START_US + HOUR_US] * 3))
    found.skew_us += HOUR_US
    assert clock.wall_us() == START_US + found.up_us
