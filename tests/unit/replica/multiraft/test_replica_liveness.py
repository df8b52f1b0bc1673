"""Liveness of servers and their quiescent groups: ids, counts, late messages, missing messages."""

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


def keepalive(incarnation=5, stopped_count=0, stopped_groups=(), sender=A):
    return PeerBatch(
        sender,
        US,
        1,
        (),
        incarnation=incarnation,
        stopped_count=stopped_count,
        stopped_groups=tuple(stopped_groups),
    )


@pytest.fixture
def account():
    """Two groups are quiescent on A, one on B; both have sent messages."""
    account = FailureDetector(7, PACE)
    for server in (A, B):
        assert account.receive(keepalive(sender=server)) == []
    account.add_quiesced(ONE, [A])
    account.add_quiesced(TWO, [A, B])
    return account


def pass_ticks(account, ticks, *servers):
    woken = []
    for _ in range(ticks):
        for server in servers:
            assert account.receive(keepalive(sender=server)) == []
        woken += account.tick()
    return woken


def test_no_group_is_woken_while_both_servers_send(account):
    assert pass_ticks(account, 1000, A, B) == []
    assert len(account) == 2
    assert A not in account


def test_group_quiesced_with_silent_server_is_woken_once(account):
    assert pass_ticks(account, PACE.election_ticks - 1, B) == []
    assert pass_ticks(account, 1, B) == [ONE, TWO]
    assert pass_ticks(account, 100, B) == []
    account.remove_quiesced(ONE)
    assert account.receive(keepalive()) == [TWO], (
        "groups that quiesced without the server are woken"
    )


def test_group_quiesced_with_exited_process_is_woken_once_immediately(account):
    assert account.end(A) == [ONE, TWO]
    assert account.end(A) == []
    assert pass_ticks(account, 100, B) == []
    assert account.end(ServerUuid("c" * 32)) == [], "an unknown server has no groups"
    assert account.receive(keepalive(incarnation=6)) == [ONE, TWO], (
        "the returned server wakes the groups"
    )


def test_ticks_are_processed_together_until_a_keepalive_or_before_a_server_is_silent(account):
    assert account.idle_ticks() == PACE.heartbeat_ticks
    account.tick()
    assert account.idle_ticks() == PACE.heartbeat_ticks - 1
    account.remove_quiesced(ONE)
    account.remove_quiesced(TWO)
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    for _ in range(PACE.heartbeat_ticks):
        account.tick()
        account.due()  # of nobody any more
    account.receive(keepalive())
    account.receive(keepalive(sender=B))
    assert account.idle_ticks() == PACE.election_ticks - 1, "the tick of the silence is its own"
    pass_ticks(account, 3, B)
    assert account.idle_ticks() == PACE.election_ticks - 4
    pass_ticks(account, PACE.election_ticks, B)
    assert account.idle_ticks() == PACE.election_ticks - 2, "A is silent already"


def test_woken_group_is_not_woken_again(account):
    account.remove_quiesced(ONE)
    account.remove_quiesced(TWO)
    account.remove_quiesced(THREE)
    assert pass_ticks(account, 100) == []
    assert account.due() == {}
    assert len(account) == 0


def test_new_incarnation_wakes_all_groups_and_old_one_is_ignored(account):
    assert account.receive(keepalive(incarnation=6)) == [ONE, TWO]
    late = keepalive(incarnation=5, stopped_count=9, stopped_groups=[ONE])
    assert account.receive(late) == []
    assert not account.is_latest(late)
    assert account.is_latest(keepalive(incarnation=6))
    for _ in range(PACE.election_ticks):
        account.receive(late)
        woken = account.tick()
    assert woken == [ONE, TWO], "late messages do not count for liveness"


def test_exited_replicas_wake_groups_by_id_and_by_count_when_ids_are_missing(account):
    assert account.receive(keepalive(stopped_count=1, stopped_groups=[TWO])) == [TWO]
    assert account.receive(keepalive(stopped_count=1, stopped_groups=[TWO])) == [], (
        "a repeated id has no effect"
    )
    assert account.receive(keepalive(stopped_count=3, stopped_groups=[TWO, THREE, ONE])) == [ONE]
    assert account.receive(keepalive(stopped_count=5, stopped_groups=[TWO])) == [ONE, TWO], (
        "one id is missing, so all groups are woken"
    )
    assert account.receive(keepalive(stopped_count=4, stopped_groups=[ONE])) == [], "late"
    assert not account.is_latest(keepalive(stopped_count=4))
    assert account.is_latest(keepalive(stopped_count=5))


def test_server_without_liveness_support_blocks_quiescence(account):
    assert account.receive(keepalive(incarnation=0)) == []
    assert not account.is_latest(keepalive(incarnation=0))
    assert not account.is_latest(keepalive(sender=US))


def test_server_is_absent_after_timeout_or_when_never_heard(account):
    limit = ABSENT_TIMEOUTS * PACE.election_ticks
    pass_ticks(account, limit - 1, B)
    assert A not in account
    pass_ticks(account, 1, B)
    assert A in account
    assert B not in account
    assert ServerUuid("f" * 32) in account
    account.receive(keepalive())
    assert A not in account


def test_state_of_server_without_batches_is_dropped_unless_groups_rely_on_it(account):
    """A removed server's incarnation is not kept: an older one counts as new."""
    earlier, removed = 4, [ServerUuid(f"{number + 4096:032x}") for number in range(3)]
    for server in removed:
        account.receive(keepalive(sender=server))
        pass_ticks(account, PACE.election_ticks, B)
    pass_ticks(account, (KEPT_TIMEOUTS - 2) * PACE.election_ticks, B)
    old = [keepalive(earlier, sender=server) for server in (A, *removed)]
    assert [account.receive(batch) for batch in old] == [[]] * 4
    assert [account.is_latest(batch) for batch in old] == [False, True, True, False]
    assert A in account
    account.remove_quiesced(ONE)
    account.remove_quiesced(TWO)
    pass_ticks(account, 1, B)
    assert account.receive(keepalive(earlier)) == []
    assert account.is_latest(keepalive(earlier))
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
    account.receive(keepalive())
    assert list(account.due()) == [A]
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A)
    assert list(account.due()) == []


def test_exited_replica_is_announced_by_id_for_a_time_and_counted_permanently(account):
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    account.remove_quiesced(TWO)
    account.on_replica_stopped(ONE, [A])
    account.on_replica_stopped(THREE, [B])
    assert (account.stopped_count, account.stopped_groups) == (2, (ONE, THREE))
    assert not account.is_quiesced(ONE)
    assert list(account.due()) == [A, B]
    pass_ticks(account, NAMED_TIMEOUTS * PACE.election_ticks, A, B)
    assert (account.stopped_count, account.stopped_groups) == (2, ())
    assert list(account.due()) == []


def test_many_exited_replicas_announce_recent_ids_and_total_count(account):
    many = [TabletId(f"{n:032x}") for n in range(3 * NAMED_GROUPS)]
    for group in many:
        account.remove_quiesced(group)
        account.on_replica_stopped(group, [A])
    assert account.stopped_count == len(many)
    assert account.stopped_groups == tuple(many[-NAMED_GROUPS:])
