"""A member that returns with less than it acknowledged: detected by its leader, no committed entry is lost.

The tests truncate the disk, as after bit rot that looked like a torn tail, a power failure without
syncs, or the restore of an older image.
"""

from collections.abc import Callable

from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.messages import AnyMessage, AppendEntries, AppendReply
from tests.unit.raft.support.lost_tails import (
    ONE,
    THREE,
    TWO,
    everything,
    led,
    lose_tail,
    match,
    without,
    write,
)
from tests.unit.raft.support.raft_harness import Cluster


def no_entries(message: AnyMessage) -> bool:
    """Select messages between 1 and 2, except those that would restore the lost entries."""
    entries = isinstance(message, AppendEntries) and message.entries
    return THREE not in (message.to, message.sender) and not entries


def heartbeats(
    group: Cluster, count: int, wants: Callable[[AnyMessage], bool] = everything
) -> None:
    for _ in range(count):
        group.tick(ONE, group.options.heartbeat_ticks)
        group.settle(wants)
        group.network.clear()


def test_follower_with_lost_tail_is_caught_up_by_leader_of_same_term():
    group = led()
    write(group, "a", "b", "c")
    last = group[ONE].last
    lose_tail(group, TWO, 2)
    heartbeats(group, 4)
    assert group[TWO].last == last
    assert match(group, TWO) == last.index
    group.crash(THREE)
    write(group, "d")
    assert group[ONE].status().commit == last.index + 1


def test_entries_in_flight_do_not_hide_lost_tail():
    """Entries were sent and not answered when the follower crashed; heartbeats follow them."""
    group = led()
    write(group, "a", "b")
    group.servers[TWO].disk.held = True
    group.propose(ONE, "c")
    group.settle()
    heartbeats(group, 1)  # received by 2, and not durable there
    group.servers[TWO].disk.held = False
    lose_tail(group, TWO, 1)
    heartbeats(group, 6)
    assert match(group, TWO) == group[ONE].last.index == 4


def test_entries_lost_by_follower_count_for_no_commit():
    group = led()
    write(group, "a", "b", wants=without(THREE))
    lose_tail(group, TWO, 1)
    heartbeats(group, 2, no_entries)
    assert match(group, TWO) == 1


def test_member_with_lost_tail_votes_only_for_candidates_that_have_it():
    """An entry is committed on 1 and 2; 2 loses it, is notified, and 1 crashes before it is sent again."""
    group = led()
    write(group, "a", wants=without(THREE))
    lose_tail(group, TWO, 1)
    heartbeats(group, 2, no_entries)
    group[TWO].core.known_commit = 0  # the commit need not be known: an answer may be delayed
    assert group[TWO].core.incomplete
    group.crash(ONE)
    for _ in range(100):
        group.tick(TWO)
        group.tick(THREE)
        group.settle()
    assert not group[TWO].is_leader
    assert not group[THREE].is_leader
    group.restart(ONE)
    for _ in range(100):
        for uuid in (ONE, TWO, THREE):
            group.tick(uuid)
        group.settle()
    assert group.committed[2].payload == b"a"
    assert group[TWO].last.index == group[THREE].last.index > 2
    assert not group[TWO].core.incomplete


def test_member_with_lost_tail_does_not_campaign():
    group = led()
    write(group, "a", wants=without(THREE))
    group[TWO].core.lost_last = OpId(1, 3)
    group.crash(ONE)
    group[THREE].core.ticks_since_leader = group.options.election_ticks  # it would vote
    for _ in range(100):
        group.tick(TWO)
        group.settle()
    assert group[TWO].term == 1


def test_member_lacking_known_commit_is_not_elected_by_vote_of_member_with_lost_tail():
    """1 leads, and commits with 2 an entry that 3 lacks; 1 returns with an older disk, and 2 is slow."""
    group = led()
    write(group, "a", wants=without(THREE))
    heartbeats(group, 2, lambda m: not isinstance(m, AppendEntries) or not m.entries)
    assert group[THREE].status().known_commit == 2 > group[THREE].last.index
    lose_tail(group, ONE, 1)
    for _ in range(200):
        group.tick(THREE)
        group.tick(ONE)
        group.settle(without(TWO))
    assert not group[THREE].is_leader
    assert not group[ONE].is_leader
    for _ in range(100):
        for uuid in (ONE, TWO, THREE):
            group.tick(uuid)
        group.settle()
    assert group[TWO].is_leader
    assert group.committed[2].payload == b"a"


def test_member_with_lost_tail_fetches_it_from_witness():
    group = Cluster((ONE, TWO, THREE), witnesses=THREE)
    group.elect(ONE)
    write(group, "a", "b")
    lose_tail(group, TWO, 2)
    group[TWO].core.lost_last = OpId(1, 3)
    group.crash(ONE)
    group[THREE].core.ticks_since_leader = group.options.election_ticks
    for _ in range(100):
        group.tick(TWO)
        group.settle()
    assert group[TWO].is_leader
    assert group[TWO].core.log.holds(OpId(1, 3))


def test_answer_of_earlier_incarnation_does_not_restore_lost_entries():
    group = led()
    write(group, "a", "b")
    before = AppendReply(
        sender=ServerUuid(TWO), to=ServerUuid(ONE), term=1, success=True, match=3, hint=OpId(1, 3),
        round=group[ONE].core.round,
    )  # fmt: skip
    lose_tail(group, TWO, 1)
    heartbeats(group, 1, no_entries)
    assert match(group, TWO) == 0
    group.deliver(before)
    assert match(group, TWO) == 0


def test_late_refusal_costs_one_heartbeat_and_resets_nothing():
    group = led()
    write(group, "a", "b", "c")
    group.deliver(
        AppendReply(
            sender=ServerUuid(TWO), to=ServerUuid(ONE), term=1, success=False, hint=OpId(1, 1),
            round=group[ONE].core.round,
        )
    )  # fmt: skip
    assert match(group, TWO) == 4
    heartbeats(group, 2)
    assert match(group, TWO) == 4
    assert group[TWO].core.lost_last == NO_OP
    leadership = group[ONE].core.leadership
    assert leadership is not None
    assert not leadership.peers[ServerUuid(TWO)].probe_match


def test_leadership_transfer_to_member_with_lost_tail_is_refused():
    group = led()
    write(group, "a", "b")
    group[TWO].core.lost_last = OpId(1, 9)
    group[ONE].transfer(ServerUuid(TWO))
    group.settle()
    assert group[TWO].term == 1
