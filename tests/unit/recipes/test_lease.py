"""Lease and Lock: one holder at a time, freed by its end, its crash, or the end of its time."""

from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotLeading, TimedOut
from nyala.recipes import Guard, Lease, Lock
from tests.unit.recipes.support.blocking import processes

TTL_MS = 3_000
SOON_S, LATE_S = 1.0, 60.0


def lease(p, holder, name="backup", **options):
    return Lease(p.journal(holder), name, holder=holder, ttl_ms=TTL_MS, **options)


def holder(p):
    """Return the holder of the lease; empty: there is none."""
    found = Lease.current(p.journal(), "backup")
    return "" if found is None else found.holder


def lock(p, holder, timeout_s=SOON_S):
    return Lock(p.journal(holder), "table", holder=holder, ttl_ms=TTL_MS, timeout_s=timeout_s)


def stop_journal(p, stopped):
    for member in p.candidates.servers.members.values():
        member.down = stopped


@processes
def test_of_two_processes_one_holds_the_lease_until_it_is_released(p):
    one, two = lease(p, "one"), lease(p, "two")
    with one:
        first = one.check()
        with pytest.raises(TimedOut, match="'lease/backup' was held by 'one' for 5"):
            two.acquire(5)
        assert (one.held, two.held, one.epoch, two.epoch) == (True, False, first, 0)
        assert holder(p) == "one"
    assert not one.held
    with pytest.raises(NotLeading, match="'one' does not hold 'lease/backup'; acquire it first"):
        one.check()
    second = two.acquire(SOON_S)
    assert second > first
    assert holder(p) == "two"
    two.release()
    two.release()
    assert holder(p) == ""


@processes
def test_lease_of_a_crashed_process_is_free_after_its_time_and_its_requests_are_refused(p):
    one, two, guard = lease(p, "one"), lease(p, "two"), Guard()
    first = one.acquire(LATE_S)
    guard.check(first)
    p.crash("one")
    assert two.acquire(LATE_S) > first
    assert not one.held
    with pytest.raises(NotLeading):
        one.check()
    guard.check(two.check())
    with pytest.raises(Exception, match="epoch"):
        guard.check(first)


@processes
def test_holder_whose_journal_does_not_answer_stops_before_another_can_get_the_lease(p):
    lost: list[str] = []
    one = lease(p, "one", on_lost=lost.append)
    assert one.acquire(LATE_S)
    stop_journal(p, True)
    p.wait_s(TTL_MS * 0.75 / 1000)
    assert not one.held
    p.wait_s(TTL_MS / 1000)
    assert len(lost) == 1


@processes
def test_leases_of_other_names_do_not_disturb_each_other(p):
    assert lease(p, "one").acquire(LATE_S)
    assert lease(p, "two", "restore").acquire(LATE_S)


@processes
def test_lock_is_held_by_one_process_and_released_also_after_an_error(p):
    one, two = lock(p, "one"), lock(p, "two")
    with one as held:
        assert held.check()
        with pytest.raises(TimedOut, match=r"'lock/table' was held by 'one' for 1.0 s"), two:
            raise AssertionError("two hold it")
    with two as held:
        assert held.check()
    with pytest.raises(ZeroDivisionError), one:  # may be used again
        raise ZeroDivisionError
    with two as held:
        assert held.check()


@processes
def test_lock_of_a_crashed_process_is_free_after_its_time(p):
    held = lock(p, "one")
    held.acquire()
    p.crash("one")
    with lock(p, "two", LATE_S):
        assert not held.held
        with pytest.raises(NotLeading):
            held.check()


def overwritten(p, one):
    """Let another process have the lock while its holder is cut off."""
    with one:
        step, late = one.atomically(), one.atomically()
        step.set("balance", b"of one")
        p.candidates.links["one"].cut = True
        p.wait_s(TTL_MS * 3 / 1000)
        with lock(p, "two", LATE_S) as two, two.atomically() as other:
            other.set("balance", b"of two")
        p.candidates.links["one"].cut = False
        p.wait_s(TTL_MS * 10 / 1000)  # it would be established again by now
        assert (one.held, one.epoch) == (False, 0)
        with lock(p, "three"):
            pass  # the first holder does not take part in the election again
        late.set("balance", b"late")
        for use in (one.check, one.confirm, step.send, late.send):
            with pytest.raises(NotLeading):
                use()


@processes
def test_lost_lock_stays_lost_and_its_step_overwrites_nothing(p):
    one, journal = lock(p, "one"), p.journal()
    with pytest.raises(NotLeading, match="was lost before it was released"):
        overwritten(p, one)
    assert journal.get("balance").value == b"of two"
    with one as again:  # it is acquired anew
        assert again.check()
        with again.atomically() as step:
            step.set("balance", b"of one")
    assert journal.get("balance").value == b"of one"


def failing(p, one):
    """Raise in the block of a lock that was lost."""
    with one:
        stop_journal(p, True)
        p.wait_s(TTL_MS / 1000)
        stop_journal(p, False)
        raise ZeroDivisionError


@processes
def test_error_in_the_block_of_a_lost_lock_is_raised_with_a_note(p):
    with pytest.raises(ZeroDivisionError) as caught:
        failing(p, lock(p, "one"))
    assert "was lost before it was released" in caught.value.__notes__[0]


@processes
def test_lock_that_this_thread_holds_is_refused_and_stays_held(p):
    one = lock(p, "one")
    with one as held:
        with pytest.raises(InvalidArgument, match="held by this thread already; release it first"):
            one.acquire()
        assert held.check()


ANY_LEASE: Any = Lease
ANY_LOCK: Any = Lock
BAD = {
    "a bad timeout": (lambda j: ANY_LOCK(j, "n", holder="h", timeout_s="5"), "number of seconds"),
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
