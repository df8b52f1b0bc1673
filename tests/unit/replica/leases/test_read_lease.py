"""The time of a read lease: what it is measured from, by which clock, and how long."""

import pytest

from nyala.common.option_limits import READ_LEASE_MAX_MS
from nyala.common.options import Options
from nyala.raft.ready import ReadConfirmed
from nyala.replica.context import raft_options
from nyala.replica.member.reading.read_lease import ReadLease
from tests.unit.raft.support.raft_node import cluster_with_leader


class Time:
    """A monotonic clock that tests set, in microseconds."""

    def __init__(self):
        self.now_us = 1_000_000
        self.readings = 0

    def monotonic_us(self):
        self.readings += 1
        return self.now_us

    def wall_us(self):
        raise AssertionError("leases do not depend on wall clocks")

    def at_ms(self, ms):
        self.now_us = 1_000_000 + ms * 1000


def lease_of_leader(lease_ms=100):
    cluster, clock = cluster_with_leader(), Time()
    return ReadLease(clock, cluster["1"], lease_ms), cluster, clock


def test_lease_is_measured_from_before_the_round_was_sent():
    lease, cluster, clock = lease_of_leader()
    number = lease.join_round(0)
    cluster.work(cluster.servers["1"])
    assert cluster.network, "the round is sent"
    clock.at_ms(70)
    lease.confirmed(ReadConfirmed(number, 1, 100))
    assert lease.holds()
    clock.at_ms(79)
    assert lease.holds()
    clock.at_ms(80)
    assert not lease.holds()


def test_read_that_joins_a_round_later_does_not_move_its_beginning():
    lease, _, clock = lease_of_leader()
    number = lease.join_round(0)
    clock.at_ms(50)
    assert lease.join_round(0) == number
    lease.confirmed(ReadConfirmed(number, 1, 100))
    clock.at_ms(80)
    assert not lease.holds()


def test_confirmed_round_does_not_count_for_a_later_one():
    lease, cluster, clock = lease_of_leader()
    first = lease.join_round(0)
    cluster.work(cluster.servers["1"])
    clock.at_ms(60)
    assert lease.join_round(0) > first
    lease.confirmed(ReadConfirmed(first, 1, 100))
    clock.at_ms(80)
    assert not lease.holds()


def test_each_request_reads_the_clock():
    """The process may have been stopped since it was read last."""
    lease, _, clock = lease_of_leader()
    lease.confirmed(ReadConfirmed(lease.join_round(0), 1, 100))
    assert lease.holds()
    before = clock.readings
    clock.at_ms(3_600_000)
    assert not lease.holds()
    assert clock.readings > before


@pytest.mark.parametrize(
    ("own_ms", "promised_ms", "used_ms"), [(100, 40, 32), (40, 100, 32), (100, 0, 0), (0, 100, 0)]
)
def test_lease_is_bounded_by_own_option_and_promises(own_ms, promised_ms, used_ms):
    lease, _, clock = lease_of_leader(own_ms)
    lease.confirmed(ReadConfirmed(lease.join_round(0), 1, promised_ms))
    clock.at_ms(max(0, used_ms - 1))
    assert lease.holds() == (used_ms > 0)
    clock.at_ms(used_ms)
    assert not lease.holds()


def test_renewal_is_due_once_after_half_of_the_lease():
    lease, cluster, clock = lease_of_leader()
    lease.confirmed(ReadConfirmed(lease.join_round(0), 1, 100))
    cluster.work(cluster.servers["1"])
    clock.at_ms(39)
    assert lease.holds()
    assert not lease.renewal_due
    clock.at_ms(40)
    assert lease.holds()
    assert lease.renewal_due
    number = lease.join_round(0)
    assert lease.holds()
    assert not lease.renewal_due
    lease.confirmed(ReadConfirmed(number, 1, 100))
    clock.at_ms(119)
    assert lease.holds()


@pytest.mark.parametrize("tick_ms", [1, 7, 50, 80, 400])
@pytest.mark.parametrize("lease_ms", [1, 50, 100, READ_LEASE_MAX_MS])
def test_promise_lasts_longer_than_lease_at_rates_of_ten_per_cent(tick_ms, lease_ms):
    """The follower's clock is fast, its ticks come early, the first one at once; the leader's is slow."""
    lease, _, clock = lease_of_leader(lease_ms)
    options = raft_options(Options(read_lease_ms=lease_ms, raft_tick_ms=tick_ms))
    assert options.promise_ms <= lease_ms
    lease.confirmed(ReadConfirmed(lease.join_round(0), 1, options.promise_ms))
    for ticks in (options.promise_ticks, options.restart_ticks):
        promise_us = (ticks - 1) * (tick_ms - 1) * 1000 / 1.1
        clock.now_us = 1_000_000 + int(promise_us * 0.9)
        assert not lease.holds(), f"{ticks} ticks of {tick_ms} ms"


def test_default_promise_is_what_the_ticks_ensure():
    options = raft_options(Options())
    assert (options.promise_ms, options.promise_ticks, options.restart_ticks) == (98, 3, 5)
    assert options.restart_ticks < options.election_ticks, "a restart delays no election"


def test_without_the_option_nothing_is_promised():
    options = raft_options(Options(read_lease_ms=0))
    assert (options.promise_ms, options.promise_ticks) == (0, 0)
    assert options.restart_ticks > 0, "an earlier process may have promised something"
