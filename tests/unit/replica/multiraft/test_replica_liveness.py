"""The account of which servers live, and who sleeps on them: names, numbers, late words, silence."""

import pytest

from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.messages import PeerBatch
from nyala.raft.options import RaftOptions
from nyala.replica.multiraft.failure_detector import (
    ABSENT_TIMEOUTS,
    NAMED_GROUPS,
    NAMED_TIMEOUTS,
    FailureDetector,
)

US, A, B = (ServerUuid(c * 32) for c in "0ab")
ONE, TWO, THREE = (TabletId(c * 32) for c in "123")
PACE = RaftOptions(election_ticks=10, heartbeat_ticks=2)


def word(incarnation=5, epoch=0, left=(), sender=A):
    return PeerBatch(sender, US, 1, (), incarnation=incarnation, epoch=epoch, left=tuple(left))


@pytest.fixture
def account():
    """Two groups sleep on A, one on B; both have been heard."""
    account = FailureDetector(7, PACE)
    for server in (A, B):
        assert account.hear(word(sender=server)) == []
    account.asleep(ONE, [A])
    account.asleep(TWO, [A, B])
    return account


def pass_ticks(account, ticks, *speaking):
    roused = []
    for _ in range(ticks):
        for server in speaking:
            assert account.hear(word(sender=server)) == []
        roused += account.tick()
    return roused


def test_nobody_is_roused_while_both_speak(account):
    assert pass_ticks(account, 1000, A, B) == []
    assert len(account) == 2
    assert A not in account


def test_who_sleeps_on_a_silent_server_is_roused_once(account):
    assert pass_ticks(account, PACE.election_ticks - 1, B) == []
    assert pass_ticks(account, 1, B) == [ONE, TWO]
    assert pass_ticks(account, 100, B) == []
    account.awake(ONE)
    assert account.hear(word()) == [TWO], "it is back: who sleeps without it hears of that"


def test_who_sleeps_on_a_server_whose_process_has_ended_is_roused_at_once_and_once(account):
    assert account.end(A) == [ONE, TWO]
    assert account.end(A) == []
    assert pass_ticks(account, 100, B) == []
    assert account.end(ServerUuid("c" * 32)) == [], "never heard of"
    assert account.hear(word(incarnation=6)) == [ONE, TWO], "it is back"


def test_who_woke_is_not_roused_again(account):
    account.awake(ONE)
    account.awake(TWO)
    account.awake(THREE)
    assert pass_ticks(account, 100) == []
    assert account.due() == {}
    assert len(account) == 0


def test_a_new_incarnation_rouses_all_and_an_old_one_is_not_listened_to(account):
    assert account.hear(word(incarnation=6)) == [ONE, TWO]
    late = word(incarnation=5, epoch=9, left=[ONE])
    assert account.hear(late) == []
    assert not account.vouched(late)
    assert account.vouched(word(incarnation=6))
    for _ in range(PACE.election_ticks):
        account.hear(late)
        roused = account.tick()
    assert roused == [ONE, TWO], "late words are no sign of life"


def test_groups_that_left_are_roused_by_name_and_by_number_when_names_are_missing(account):
    assert account.hear(word(epoch=1, left=[TWO])) == [TWO]
    assert account.hear(word(epoch=1, left=[TWO])) == [], "said before"
    assert account.hear(word(epoch=3, left=[TWO, THREE, ONE])) == [ONE]
    assert account.hear(word(epoch=5, left=[TWO])) == [ONE, TWO], "one name is missing"
    assert account.hear(word(epoch=4, left=[ONE])) == [], "late"
    assert not account.vouched(word(epoch=4))
    assert account.vouched(word(epoch=5))


def test_a_server_that_vouches_for_nothing_is_not_slept_on(account):
    assert account.hear(word(incarnation=0)) == []
    assert not account.vouched(word(incarnation=0))
    assert not account.vouched(word(sender=US))


def test_a_server_is_absent_after_a_long_silence_or_when_never_heard_of(account):
    limit = ABSENT_TIMEOUTS * PACE.election_ticks
    pass_ticks(account, limit - 1, B)
    assert A not in account
    pass_ticks(account, 1, B)
    assert A in account
    assert B not in account
    assert ServerUuid("f" * 32) in account
    account.hear(word())
    assert A not in account


def test_signs_of_life_are_owed_to_those_slept_on_once_a_heartbeat(account):
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    owed = []
    for _ in range(4):
        owed.append(list(account.due()))
        pass_ticks(account, 1, A, B)
    assert owed == [[A, B], [], [A, B], []]


def test_who_is_heard_of_first_is_spoken_to_for_a_while():
    account = FailureDetector(7, PACE)
    account.hear(word())
    assert list(account.due()) == [A]
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A)
    assert list(account.due()) == []


def test_a_replica_that_ends_is_named_for_a_while_to_its_group_and_counted_for_ever(account):
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    account.awake(TWO)
    account.leave(ONE, [A])
    account.leave(THREE, [B])
    assert (account.epoch, account.left) == (2, (ONE, THREE))
    assert not account.sleeps(ONE)
    assert list(account.due()) == [A, B]
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    assert (account.epoch, account.left) == (2, ())
    assert list(account.due()) == []


def test_a_server_that_loses_many_replicas_at_once_names_the_last_and_counts_all(account):
    many = [TabletId(f"{n:032x}") for n in range(3 * NAMED_GROUPS)]
    for group in many:
        account.awake(group)
        account.leave(group, [A])
    assert account.epoch == len(many)
    assert account.left == tuple(many[-NAMED_GROUPS:])
