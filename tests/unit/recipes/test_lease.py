"""Lease and Lock: one holder at a time, freed by its end, its crash, or the end of its time."""

from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotLeading, TimedOut
from nyala.recipes import Guard, Lease, Lock
from tests.unit.recipes.support.blocking import processes

TTL_MS = 3_000
SOON_S, LATE_S = 1.0, 60.0


def lease(p, holder, name="backup"):
    return Lease(p.journal(holder), name, holder=holder, ttl_ms=TTL_MS)


def holder(p):
    """Return the holder of the lease; empty: there is none."""
    found = Lease.current(p.journal(), "backup")
    return "" if found is None else found.holder


def lock(p, holder, timeout_s=SOON_S):
    return Lock(p.journal(holder), "table", holder=holder, ttl_ms=TTL_MS, timeout_s=timeout_s)


@processes
def test_of_two_processes_one_holds_the_lease_until_it_is_released(p):
    with lease(p, "one") as one:
        first = one.wait(LATE_S)
        two = lease(p, "two")
        assert two.wait(LATE_S) == 0
        assert (one.held, two.held, one.check()) == (True, False, first)
        assert holder(p) == "one"
    assert not one.held
    second = two.wait(SOON_S)
    assert second > first
    assert holder(p) == "two"
    two.close()
    two.close()
    assert holder(p) == ""


@processes
def test_lease_of_a_crashed_process_is_free_after_its_time_and_its_requests_are_refused(p):
    one, two, guard = lease(p, "one"), lease(p, "two"), Guard()
    first = one.wait(LATE_S)
    guard.check(first)
    p.crash("one")
    assert two.wait(LATE_S) > first
    assert not one.held
    with pytest.raises(NotLeading):
        one.check()
    guard.check(two.check())
    with pytest.raises(Exception, match="epoch"):
        guard.check(first)


@processes
def test_holder_whose_journal_does_not_answer_stops_before_another_can_get_the_lease(p):
    lost: list[str] = []
    one = Lease(p.journal("one"), "backup", holder="one", ttl_ms=TTL_MS, on_lost=lost.append)
    assert one.wait(LATE_S)
    for member in p.candidates.servers.members.values():
        member.down = True
    p.wait_s(TTL_MS * 0.75 / 1000)
    assert not one.held
    p.wait_s(TTL_MS / 1000)
    assert len(lost) == 1


@processes
def test_leases_of_other_names_do_not_disturb_each_other(p):
    assert lease(p, "one").wait(LATE_S)
    assert lease(p, "two", "restore").wait(LATE_S)


@processes
def test_lock_is_held_by_one_process_and_released_also_after_an_error(p):
    one, two = lock(p, "one"), lock(p, "two")
    with one as held:
        assert held.check()
        with pytest.raises(TimedOut, match=r"lock 'lock/table' was held by 'one' for 1.0 s"), two:
            raise AssertionError("two hold it")
    with two as held:
        assert held.check()
    with pytest.raises(ZeroDivisionError), one:  # may be used again
        raise ZeroDivisionError
    with two as held:
        assert held.check()


@processes
def test_lock_of_a_crashed_process_is_free_after_its_time(p):
    held = lock(p, "one").__enter__()
    p.crash("one")
    with lock(p, "two", LATE_S):
        assert not held.leads
        with pytest.raises(NotLeading):
            held.check()


@processes
def test_lock_that_this_object_holds_is_refused_and_stays_held(p):
    one = lock(p, "one")
    with one as held:
        with pytest.raises(InvalidArgument, match="held already; make another Lock"):
            one.__enter__()
        assert held.check()


ANY_LEASE: Any = Lease
ANY_LOCK: Any = Lock
BAD = {
    "an empty name": (lambda j: ANY_LEASE(j, "", holder="h"), "at least one character"),
    "no name": (lambda j: ANY_LOCK(j, None, holder="h"), "name"),
    "an empty holder": (lambda j: ANY_LEASE(j, "n", holder=""), "holder"),
    "a short time": (lambda j: ANY_LEASE(j, "n", holder="h", ttl_ms=10), "milliseconds from 100"),
    "no number": (lambda j: ANY_LEASE(j, "n", holder="h", ttl_ms="5"), "milliseconds from 100"),
    "no function": (lambda j: ANY_LEASE(j, "n", holder="h", on_lost=3), "on_lost"),
    "no journal": (lambda j: ANY_LEASE("j", "n", holder="h"), "client.journal"),
}


@processes
def test_wrong_arguments_are_refused(p):
    for name, (make, text) in BAD.items():
        with pytest.raises(InvalidArgument) as caught:
            make(p.journal())
        assert text in str(caught.value), name
