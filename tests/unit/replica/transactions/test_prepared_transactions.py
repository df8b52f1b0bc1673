"""Prepared transactions of a member: which writes and reads wait, and the order of resolves."""

from nyala.common.ids import PreparedTransaction
from nyala.replica.member.transactions.prepared import ANY_TIME, PreparedTransactions

A, B = b"a" * 16, b"b" * 16


def at(time: int) -> PreparedTransaction:
    return PreparedTransaction(time, (1, 1, 1))


def with_prepared(**times: int) -> PreparedTransactions:
    """Return a leader's state with the transactions `a`, `b` prepared at these times."""
    return PreparedTransactions({name.encode() * 16: at(time) for name, time in times.items()})


def test_nothing_prepared_holds_up_nothing():
    known = PreparedTransactions({})
    assert (known.writes_wait, known.readable) == (False, ANY_TIME)
    assert known.next_resolve() is None
    assert not known.applied(7, known.prepared), "no cost without transactions"


def test_writes_wait_from_the_proposal_of_a_prepare():
    known = PreparedTransactions({})
    known.prepare_proposed(5)
    assert known.writes_wait
    known.applied(4, {})
    assert known.writes_wait, "it is in the log"
    known.applied(5, {A: at(50)})
    assert known.writes_wait
    known.applied(6, {})
    assert not known.writes_wait, "it was undone"


def test_prepare_that_was_refused_holds_up_no_write():
    known = PreparedTransactions({})
    known.prepare_proposed(5)
    known.applied(5, {})
    assert not known.writes_wait


def test_writes_go_on_once_every_resolve_is_in_the_log():
    known = with_prepared(a=10, b=20)
    known.decide(A, 30)
    known.decide(B, 40)
    known.resolve_proposed(A, 7)
    assert known.writes_wait, "the other one has none"
    known.resolve_proposed(B, 8)
    assert not known.writes_wait
    known.prepare_proposed(9)
    assert known.writes_wait


def test_new_leader_waits_for_what_is_prepared_as_it_is_applied():
    known = with_prepared(a=10)
    assert known.writes_wait
    known.decide(A, 30)
    known.resolve_proposed(A, 7)
    known.on_leadership_lost()
    assert known.writes_wait, "the entry of the earlier term may never be committed"
    assert known.commit_time(A) is None
    assert known.readable == 10


def test_reads_reach_to_the_prepare_time_or_below_a_known_commit_time():
    known = with_prepared(a=10, b=20)
    assert known.readable == 10
    known.decide(A, 30)
    assert known.readable == 20
    known.decide(B, 25)
    assert known.readable == 24
    known.applied(9, {A: known.prepared[A]})
    assert known.readable == 29
    known.applied(10, {})
    assert known.readable == ANY_TIME


def test_resolves_are_proposed_in_the_order_of_commit_times():
    known = with_prepared(a=10, b=20)
    known.decide(A, 30)
    assert known.next_resolve() is None, "the other one may commit at 21"
    known.decide(B, 25)
    assert known.next_resolve() == (B, 25)
    known.resolve_proposed(B, 7)
    assert known.next_resolve() == (A, 30), "the other one has its resolve in the log"
    known.resolve_proposed(A, 8)
    assert known.next_resolve() is None


def test_later_prepare_does_not_hold_up_a_resolve():
    known = with_prepared(a=10, b=30)
    known.decide(A, 30)
    assert known.next_resolve() == (A, 30), "the other one commits above 30"


def test_resolve_that_was_refused_waits_for_its_decision_again():
    known = with_prepared(a=10)
    known.decide(A, 30)
    known.resolve_proposed(A, 7)
    known.applied(7, known.prepared)
    assert known.writes_wait
    assert known.next_resolve() is None, "it would be refused each time"
    assert known.commit_time(A) is None
