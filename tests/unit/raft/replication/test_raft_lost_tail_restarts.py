"""Lost tails across restarts: a loss is recorded in memory only, and blocks no group permanently.

Power failures of all, of two of three, of the next leader, or of a joining member; peers may
be of an older build that does not report losses.
"""

import pytest
from msgspec.structs import replace

from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.membership import Member
from nyala.raft.messages import AnyMessage, AppendEntries, AppendReply, RequestVote
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from tests.unit.raft.support.lost_tails import ONE, THREE, TWO, led, lose_tail, without, write
from tests.unit.raft.support.lost_tails import match as match_of
from tests.unit.raft.support.raft_harness import Cluster


def pass_ticks(group: Cluster, ticks: int, *uuids: str) -> None:
    for _ in range(ticks):
        for uuid in uuids:
            group.tick(uuid)
        group.settle(without(*set(group.servers) - set(uuids)))
    group.network.clear()


def leader(group: Cluster) -> list[str]:
    return [s.uuid for s in group.alive if s.node.is_leader]


def told_and_not_sent(group: Cluster) -> None:
    """1 and 2 commit entry 2; 3 receives the commit index, and not the entry."""
    write(group, "a", wants=without(THREE))
    for _ in range(2):
        group.tick(ONE, group.options.heartbeat_ticks)
        group.settle(lambda m: not isinstance(m, AppendEntries) or not m.entries)
        group.network.clear()
    assert group[THREE].status().known_commit == 2 > group[THREE].last.index


@pytest.mark.parametrize("kept", [(1, 1, 1), (4, 2, 3), (2, 2, 1), (1, 3, 4), (3, 1, 2)])
def test_group_elects_leader_with_majority_log_after_common_power_failure(kept):
    group = led()
    write(group, "a", "b", "c")
    for uuid in (ONE, TWO, THREE):
        group.crash(uuid)
    group.committed.clear()
    group.leaders.clear()
    for uuid, last in zip((ONE, TWO, THREE), kept, strict=True):
        lose_tail(group, uuid, last)
    pass_ticks(group, 200, ONE, TWO, THREE)
    assert len(leader(group)) == 1
    assert group[leader(group)[0]].last.index > sorted(kept)[1]


def test_remaining_two_members_elect_leader_when_informed_member_restarts():
    """1 returns with an older disk, 2 is permanently lost: 3 keeps its commit index while it runs."""
    group = led()
    told_and_not_sent(group)
    group.crash(TWO)
    lose_tail(group, ONE, 1)
    pass_ticks(group, 300, ONE, THREE)
    assert leader(group) == []
    group.committed.clear()
    group.crash(THREE)
    group.restart(THREE)
    pass_ticks(group, 100, ONE, THREE)
    assert len(leader(group)) == 1


def test_member_lacking_known_commit_leads_after_unsafe_recovery():
    group = led()
    told_and_not_sent(group)
    group.crash(TWO)
    group.crash(ONE)
    assert group[THREE].core.incomplete
    group.unsafe_config(THREE, [ServerUuid(THREE)])
    pass_ticks(group, 100, THREE)
    assert leader(group) == [THREE]
    assert not group[THREE].core.incomplete


def test_leadership_transfer_to_member_that_just_lost_tail_loses_nothing():
    group = led()
    write(group, "a", "b")
    lose_tail(group, TWO, 1)
    group[ONE].transfer(ServerUuid(TWO))
    group.settle()
    assert group[TWO].term == 1
    pass_ticks(group, 60, ONE, TWO, THREE)
    assert leader(group) == [TWO]
    assert group[TWO].core.lost_last != NO_OP
    assert group[TWO].core.log.holds(group.committed[3].id)


def test_member_with_lost_tail_may_be_removed_and_readded():
    group = led()
    write(group, "a", "b")
    lose_tail(group, TWO, 1)
    group.tick(ONE, group.options.heartbeat_ticks)
    group.settle(lambda m: not isinstance(m, AppendEntries) or not m.entries)
    group.network.clear()
    assert group[TWO].core.incomplete
    member = Member(ServerUuid(TWO), "2:1")
    group.change(ONE, Change(ChangeKind.REMOVE, member))
    pass_ticks(group, 20, ONE, TWO, THREE)
    assert group[TWO].core.configs.active.get(ServerUuid(TWO)) is None
    group.change(ONE, Change(ChangeKind.ADD, member))
    pass_ticks(group, 20, ONE, TWO, THREE)
    assert not group[TWO].core.incomplete
    group.crash(THREE)
    write(group, "c")
    group.crash(ONE)
    group.restart(THREE)
    pass_ticks(group, 100, TWO, THREE)
    assert leader(group) == [TWO]


def test_non_voter_with_lost_tail_is_promoted_after_recovery():
    group = Cluster((ONE, TWO), nonvoters=(THREE,))
    group.elect(ONE)
    write(group, "a", "b", "c")
    lose_tail(group, THREE, 1)
    member = Member(ServerUuid(THREE), "3:1", voter=False, promote=True)
    group.change(ONE, Change(ChangeKind.MODIFY, member))
    pass_ticks(group, 1, ONE, TWO)
    pass_ticks(group, 80, ONE, TWO, THREE)
    assert ServerUuid(THREE) in group[ONE].core.voters
    assert group[THREE].last == group[ONE].last
    assert not group[THREE].core.incomplete


def older(message: AnyMessage) -> AnyMessage:
    """As an older build sends or reads it."""
    if isinstance(message, AppendEntries):
        return replace(message, acknowledged=False)
    if isinstance(message, AppendReply):
        return replace(message, lost_entries=False, out_of_memory=False)
    return message


@pytest.mark.parametrize("old", [ONE, TWO])
def test_lost_tail_beside_older_release_blocks_no_member_and_is_recovered_by_next_leader(old):
    """The leader or the follower is of an older build: no loss is reported."""
    group = led()
    write(group, "a", "b")
    lose_tail(group, TWO, 1)

    def pass_some(ticks: int, *uuids: str) -> None:
        for _ in range(ticks):
            for uuid in uuids:
                group.tick(uuid)
            for _ in range(8):
                batch, group.network = group.network, []
                for message in batch:
                    both = old in (message.sender, message.to)
                    group.deliver(older(message) if both else message)

    pass_some(60, ONE, TWO, THREE)
    assert leader(group) == [ONE]
    assert group.propose(ONE, "c") is not None
    pass_some(20, ONE, TWO, THREE)
    assert group.committed[4].payload == b"c"
    assert group[TWO].core.lost_last == NO_OP
    group.crash(ONE)
    pass_some(200, TWO, THREE)
    assert leader(group) == [THREE]
    assert group[TWO].last == group[THREE].last


def test_duplicate_or_late_lost_refusal_restarts_replication_once():
    group = led()
    write(group, "a", "b")
    lose_tail(group, TWO, 1)
    group.tick(ONE, group.options.heartbeat_ticks)
    group.settle(lambda m: m.to == TWO)
    refusals = [m for m in group.network if isinstance(m, AppendReply) and m.lost_entries]
    assert refusals
    group.settle()
    rounds, match = group[ONE].core.round, match_of(group, TWO)
    assert match == 3
    for late in refusals * 2:
        group.deliver(late)
        group.settle()
    assert group[ONE].core.round == rounds
    assert match_of(group, TWO) == match


def test_single_member_group_with_lost_tail_leads():
    group = Cluster((ONE,))
    group.elect(ONE)
    write(group, "a", "b")
    group.committed.clear()
    lose_tail(group, ONE, 1)
    group.tick(ONE, 4)
    group.settle()
    assert leader(group) == [ONE]


def test_member_lacking_known_entries_grants_votes_to_members_that_have_them():
    group = led()
    told_and_not_sent(group)
    group.crash(ONE)
    pass_ticks(group, 100, TWO, THREE)
    assert leader(group) == [TWO]
    assert not [m for m in group.network if isinstance(m, RequestVote)]
    assert group[THREE].last == group[TWO].last


def test_larger_of_two_reported_losses_is_kept():
    group = led()
    write(group, "a", "b", "c")
    lose_tail(group, TWO, 1)
    for index in (4, 2):
        heartbeat = AppendEntries(
            sender=ServerUuid(ONE), to=ServerUuid(TWO), term=1, previous=OpId(1, index), acknowledged=True
        )  # fmt: skip
        group.deliver(heartbeat)
    assert group[TWO].core.lost_last == OpId(1, 4)


def test_entries_requested_by_leader_of_earlier_term_are_not_lost():
    """The same server leads again: the answer must not remove acknowledgements of this term."""
    group = led()
    write(group, "a", "b")
    late = AppendEntries(
        sender=ServerUuid(ONE), to=ServerUuid(TWO), term=1, previous=OpId(1, 2), acknowledged=True
    )
    group[ONE].core.become_follower(1, None)
    group.elect(ONE)
    assert group[ONE].term == 2
    match = match_of(group, TWO)
    assert match == group[ONE].last.index
    group.deliver(late)
    answers = [m for m in group.network if isinstance(m, AppendReply)]
    assert [(a.success, a.lost_entries) for a in answers] == [(False, False)]
    group.settle()
    assert match_of(group, TWO) == match
