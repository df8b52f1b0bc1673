"""Ends of leases and locks: interrupts, locks that nobody refers to, a journal that does not answer."""

import gc

import pytest

from nyala.common.errors import NotLeading, TimedOut
from nyala.recipes import Lock
from tests.unit.recipes.support.blocking import processes

TTL_MS = 60_000
SOON_S = 1.0


def lock(journal, **options):
    return Lock(journal, "table", holder="one", ttl_ms=TTL_MS, **options)


def is_free(p):
    """Return whether another process gets the lock before the holder's time is over."""
    other = Lock(p.journal(), "table", holder="other", ttl_ms=TTL_MS)
    try:
        other.acquire(SOON_S)
    except TimedOut:
        return False
    other.release()
    return True


def stop_journal(p):
    for member in p.candidates.servers.members.values():
        member.down = True


def interrupt(journal, name):
    """Have calls of this method of the connection interrupted before they begin."""

    def interrupted(work):
        work.close()
        raise KeyboardInterrupt

    setattr(journal.connection, name, interrupted)


@processes
def test_lock_whose_release_is_interrupted_is_free_and_can_be_acquired_again(p):
    journal = p.journal()
    one = lock(journal)
    one.acquire(SOON_S)
    interrupt(journal, "finish")
    with pytest.raises(KeyboardInterrupt):
        one.release()
    assert not one.held
    assert is_free(p)
    assert one.acquire(SOON_S)


@processes
def test_lock_whose_acquisition_is_interrupted_is_free(p):
    journal = p.journal()
    run, work_of = journal.connection.run, []

    def interrupted(work):
        if getattr(work, "__name__", "") == "elected_within":
            run(work)  # it is acquired as the interrupt arrives
            work_of.append(work)
            raise KeyboardInterrupt
        return run(work)

    journal.connection.run = interrupted
    one = lock(journal)
    with pytest.raises(KeyboardInterrupt):
        one.acquire(SOON_S)
    assert work_of
    assert not one.held
    assert is_free(p)


@processes
def test_lock_that_nobody_refers_to_is_released(p):
    one = lock(p.journal())
    one.acquire(SOON_S)
    assert not is_free(p)
    del one
    gc.collect()
    assert is_free(p)


@processes
def test_lock_of_a_closed_client_or_forked_process_is_not_held(p):
    journal = p.journal()
    one = lock(journal)
    one.acquire(SOON_S)
    journal.connection.closed = True
    assert (one.held, one.epoch) == (False, 0)
    with pytest.raises(NotLeading, match="its client is closed, or it was forked"):
        one.check()
    with pytest.raises(NotLeading):
        one.release()


@processes
def test_free_lock_is_acquired_without_waiting_and_a_held_one_refused_at_once(p):
    one, other = lock(p.journal()), lock(p.journal())
    assert one.acquire(0)
    began = p.now_s
    with pytest.raises(TimedOut, match="was held by 'one' for 0 s"):
        other.acquire(0)
    assert p.now_s - began < 0.5
    one.release()
    assert other.acquire(0)


@processes
def test_acquisition_ends_soon_after_its_time_if_the_journal_does_not_answer(p):
    one = lock(p.journal())
    stop_journal(p)
    began = p.now_s
    with pytest.raises(TimedOut, match="another process, or the journal did not answer"):
        one.acquire(2)
    assert 2 <= p.now_s - began <= 5


@processes
def test_lock_that_is_lost_before_it_was_acquired_is_acquired_again(p):
    journal = p.journal()
    lost: list[str] = []
    run = journal.connection.run
    pauses: list[int] = []

    def paused(work):
        found = run(work)
        if getattr(work, "__name__", "") == "elected_within" and not pauses:
            pauses.append(found)  # its epoch, which arrives when it is over
            p.candidates.links["other"].cut = True
            p.wait_s(TTL_MS / 1000)
            p.candidates.links["other"].cut = False
        return found

    journal.connection.run = paused
    one = lock(journal, on_lost=lost.append)
    assert one.acquire(10 * TTL_MS / 1000) > pauses[0]
    assert one.check()
    assert lost == []


@processes
def test_caller_that_keeps_the_error_of_an_acquisition_is_no_candidate_any_more(p):
    one, other = lock(p.journal()), lock(p.journal())
    one.acquire(SOON_S)
    with pytest.raises(TimedOut) as kept:
        other.acquire(0)
    one.release()
    p.wait_s(SOON_S)
    assert kept.value.__traceback__ is not None
    assert Lock.current(p.journal(), "table") is None
