"""Rate of copies: unlimited without writers, limited beside writers."""

from unittest import mock

import pytest

from nyala.common.options import Options
from nyala.replica.copy.throttle import (
    BUSY_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    CopyThrottle,
    WriteActivity,
)
from tests.unit.replica.support.copy_steps import fill, flush
from tests.unit.replica.support.copy_support import scenario
from tests.unit.replica.support.replica_support import GROUP, uuid_of


class Clock:
    now_us = 5_000_000

    def monotonic_us(self):
        return self.now_us

    def wall_us(self):
        return self.now_us


class Log:
    rounds = 1000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def writers(clock, log):
    return WriteActivity(clock, lambda: log.rounds)


def pass_ms(clock, ms):
    clock.now_us += ms * 1000


def test_copy_is_not_throttled_without_writers(clock, writers):
    pace = CopyThrottle(clock, writers, 0, 1000)
    for _ in range(50):
        assert pace.spend(1 << 20) == 0
        assert pace.chunk_bytes(4 << 20) == 4 << 20
        pass_ms(clock, 30)


def test_copy_is_throttled_in_small_chunks_beside_writers(clock, log, writers):
    pace = CopyThrottle(clock, writers, 0, 1000)
    assert pace.spend(100) == 0, "writes before the first check do not count"
    pass_ms(clock, 100)
    log.rounds += 2
    assert pace.spend(100) == 100
    assert pace.spend(100) == 200, "all copies share the rate"
    assert pace.chunk_bytes(4 << 20) == MIN_CHUNK_BYTES
    assert pace.chunk_bytes(500) == 500
    pass_ms(clock, 999)
    assert pace.spend(100) > 0, "a pause between two writes still counts as writing"
    pass_ms(clock, 1)
    assert pace.spend(100) == 0


def test_log_writes_of_copies_do_not_count_as_writers(clock, log, writers):
    pace = CopyThrottle(clock, writers, 0, 1000)
    pace.spend(1)
    for _ in range(20):
        for _ in range(3):
            writers.note_own_round()
            log.rounds += 1
        pass_ms(clock, 100)
        assert pace.spend(100) == 0
    for _ in range(3):
        writers.note_own_round()
    log.rounds += 3 + 2
    pass_ms(clock, 100)
    assert pace.spend(100) > 0


def test_writes_since_earlier_copy_count_per_second(clock, log, writers):
    assert not writers.busy
    pass_ms(clock, 3_600_000)
    log.rounds += 3600
    assert not writers.busy
    pass_ms(clock, 60_000)
    log.rounds += 120
    assert writers.busy


def test_throttle_applies_both_limits_and_zero_means_unlimited(clock, log, writers):
    assert not writers.busy
    pass_ms(clock, 100)
    log.rounds += 2
    for rate, busy, ms in (
        (0, 0, 0),
        (0, 500, 200),
        (2000, 500, 200),
        (200, 500, 500),
        (200, 0, 500),
    ):
        assert CopyThrottle(clock, writers, rate, busy).spend(100) == ms
    assert CopyThrottle(clock, writers, 0, 0).chunk_bytes(4 << 20) == 4 << 20, (
        "without a limit chunks have their full size"
    )


@pytest.mark.parametrize("rate", [20_000, 100_000, 1_000_000, 100_000_000])
def test_ten_copies_wait_less_than_their_calls_time_out(clock, log, writers, rate):
    """A source answers after the wait, and calls of its target time out after ten seconds."""
    pace = CopyThrottle(clock, writers, 0, rate)
    pace.spend(1)
    pass_ms(clock, 100)
    log.rounds += 2
    assert writers.busy
    size = pace.chunk_bytes(4 << 20)
    assert size <= BUSY_CHUNK_BYTES
    assert max(pace.spend(size) for _ in range(10)) < 5000


@pytest.mark.parametrize("request_of", ["file", "entries"])
def test_session_stays_valid_after_an_answer_that_took_longer_than_its_lifetime(request_of):
    """The rate limit may delay a piece for long; its target sends nothing meanwhile."""

    @scenario(options=Options(wal_segment_mb=1, wal_retain_mb=0, copy_session_ttl_ms=4000))
    async def steps(fleet):
        await fill(fleet)
        leader = await flush(fleet)
        await fill(fleet)
        sessions = fleet.host(leader).copies.sessions
        offer = await fleet.as_(leader, sessions.begin(GROUP, uuid_of(3)))
        with mock.patch.object(CopyThrottle, "spend", return_value=6000):
            if request_of == "file":
                work = sessions.read(offer.session, offer.files[0].name, 0)
            else:
                work = sessions.entries(offer.session, offer.flush_op)
            assert await fleet.as_(leader, work)
        await fleet.pass_ms(2000)
        assert len(sessions) == 1
        await fleet.pass_ms(4000)
        assert len(sessions) == 0

    steps()
