"""Liveness of servers and their quiescent groups: names, numbers, late messages, silence."""

import pytest

from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.messages import PeerBatch
from nyala.raft.options import RaftOptions
from nyala.replica.multiraft.failure_detector import (
    ABSENT_TIMEOUTS,
    KEPT_TIMEOUTS,
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
    """Two groups are quiescent on A, one on B; both have sent messages."""
    account = FailureDetector(7, PACE)
    for server in (A, B):
        assert account.receive(word(sender=server)) == []
    account.add_quiesced(ONE, [A])
    account.add_quiesced(TWO, [A, B])
    return account


def pass_ticks(account, ticks, *speaking):
    roused = []
    for _ in range(ticks):
        for server in speaking:
            assert account.receive(word(sender=server)) == []
        roused += account.tick()
    return roused


def test_no_group_is_woken_while_both_servers_send(account):
    assert pass_ticks(account, 1000, A, B) == []
    assert len(account) == 2
    assert A not in account


def test_group_quiesced_with_silent_server_is_woken_once(account):
    assert pass_ticks(account, PACE.election_ticks - 1, B) == []
    assert pass_ticks(account, 1, B) == [ONE, TWO]
    assert pass_ticks(account, 100, B) == []
    account.remove_quiesced(ONE)
    assert account.receive(word()) == [TWO], "it is back: who sleeps without it hears of that"


def test_group_quiesced_with_exited_process_is_woken_once_immediately(account):
    assert account.end(A) == [ONE, TWO]
    assert account.end(A) == []
    assert pass_ticks(account, 100, B) == []
    assert account.end(ServerUuid("c" * 32)) == [], "never heard of"
    assert account.receive(word(incarnation=6)) == [ONE, TWO], "it is back"


def test_woken_group_is_not_woken_again(account):
    account.remove_quiesced(ONE)
    account.remove_quiesced(TWO)
    account.remove_quiesced(THREE)
    assert pass_ticks(account, 100) == []
    assert account.due() == {}
    assert len(account) == 0


def test_new_incarnation_wakes_all_groups_and_old_one_is_ignored(account):
    assert account.receive(word(incarnation=6)) == [ONE, TWO]
    late = word(incarnation=5, epoch=9, left=[ONE])
    assert account.receive(late) == []
    assert not account.is_latest(late)
    assert account.is_latest(word(incarnation=6))
    for _ in range(PACE.election_ticks):
        account.receive(late)
        roused = account.tick()
    assert roused == [ONE, TWO], "late words are no sign of life"


def test_exited_replicas_wake_groups_by_id_and_by_count_when_ids_are_missing(account):
    assert account.receive(word(epoch=1, left=[TWO])) == [TWO]
    assert account.receive(word(epoch=1, left=[TWO])) == [], "said before"
    assert account.receive(word(epoch=3, left=[TWO, THREE, ONE])) == [ONE]
    assert account.receive(word(epoch=5, left=[TWO])) == [ONE, TWO], "one name is missing"
    assert account.receive(word(epoch=4, left=[ONE])) == [], "late"
    assert not account.is_latest(word(epoch=4))
    assert account.is_latest(word(epoch=5))


def test_server_without_liveness_support_blocks_quiescence(account):
    assert account.receive(word(incarnation=0)) == []
    assert not account.is_latest(word(incarnation=0))
    assert not account.is_latest(word(sender=US))


def test_server_is_absent_after_timeout_or_when_never_heard(account):
    limit = ABSENT_TIMEOUTS * PACE.election_ticks
    pass_ticks(account, limit - 1, B)
    assert A not in account
    pass_ticks(account, 1, B)
    assert A in account
    assert B not in account
    assert ServerUuid("f" * 32) in account
    account.receive(word())
    assert A not in account


def test_state_of_server_without_batches_is_dropped_unless_groups_rely_on_it(account):
    """A dropped server's incarnation is not known any more: an older one counts as new."""
    earlier, gone = 4, [ServerUuid(f"{number + 4096:032x}") for number in range(3)]
    for server in gone:
        account.receive(word(sender=server))
        pass_ticks(account, PACE.election_ticks, B)
    pass_ticks(account, (KEPT_TIMEOUTS - 2) * PACE.election_ticks, B)
    old = [word(earlier, sender=server) for server in (A, *gone)]
    assert [account.receive(batch) for batch in old] == [[]] * 4
    assert [account.is_latest(batch) for batch in old] == [False, True, True, False]
    assert A in account
    account.remove_quiesced(ONE)
    account.remove_quiesced(TWO)
    pass_ticks(account, 1, B)
    assert account.receive(word(earlier)) == []
    assert account.is_latest(word(earlier))
    assert A not in account


def test_keepalives_are_sent_once_per_heartbeat_to_quiesced_peers(account):
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    owed = []
    for _ in range(4):
        owed.append(list(account.due()))
        pass_ticks(account, 1, A, B)
    assert owed == [[A, B], [], [A, B], []]


def test_newly_heard_server_gets_keepalives_for_a_time():
    account = FailureDetector(7, PACE)
    account.receive(word())
    assert list(account.due()) == [A]
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A)
    assert list(account.due()) == []


def test_exited_replica_is_announced_by_id_for_a_time_and_counted_permanently(account):
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    account.remove_quiesced(TWO)
    account.on_replica_stopped(ONE, [A])
    account.on_replica_stopped(THREE, [B])
    assert (account.epoch, account.left) == (2, (ONE, THREE))
    assert not account.is_quiesced(ONE)
    assert list(account.due()) == [A, B]
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    assert (account.epoch, account.left) == (2, ())
    assert list(account.due()) == []


def test_many_exited_replicas_announce_recent_ids_and_total_count(account):
    many = [TabletId(f"{n:032x}") for n in range(3 * NAMED_GROUPS)]
    for group in many:
        account.remove_quiesced(group)
        account.on_replica_stopped(group, [A])
    assert account.epoch == len(many)
    assert account.left == tuple(many[-NAMED_GROUPS:])
