"""Behaviours of the dissertation by section, one for each test."""

import pytest

from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.membership import Member, initial
from nyala.raft.messages import (
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    HardState,
    RequestVote,
    TimeoutNow,
    VoteReply,
)  # fmt: skip
from nyala.raft.node import RaftNode
from nyala.raft.options import RaftOptions
from nyala.raft.status import Role
from tests.unit.raft.support.raft_harness import Cluster, log_of

A, B, C = (ServerUuid(u) for u in "123")
TICKS = RaftOptions().election_ticks


def entries(*terms, first=1):
    return [Entry(OpId(t, i), 10 * i, EntryKind.NOOP) for i, t in enumerate(terms, first)]


def node(uuid=A, *, term=0, vote=None, log=(), voters=(A, B, C), random=lambda n: 0, **kwargs):
    config = initial(Member(v, v) for v in voters)
    return RaftNode(uuid, config, HardState(term, vote), log, random=random, **kwargs)


def sent(n, kind):
    """Make everything durable, and return the messages of one kind that leave."""
    out = []
    while not (ready := n.ready()).empty:
        n.durable(ready.point)
        out += [o.message for o in ready.send if isinstance(o.message, kind)]
    return out


def lead(n, hlc=1000):
    """Elect `n` by the votes of all members."""
    while n.core.term == 0 or not n.is_leader:
        for _ in range(2 * TICKS):
            n.tick(hlc)
            for ask in sent(n, RequestVote):
                n.step(
                    VoteReply(
                        sender=ask.to, to=n.core.uuid, term=ask.term, granted=True, pre=ask.pre
                    ),
                    hlc,
                )
            if n.is_leader:
                sent(n, AppendEntries)
                return n
    return n


def request(last=NO_OP, term=1, sender=B, **kwargs):
    return RequestVote(sender=sender, to=A, term=term, last=last, **kwargs)


def append(previous=NO_OP, term=1, sender=B, **kwargs):
    return AppendEntries(sender=sender, to=A, term=term, previous=previous, **kwargs)


# ---- 3.3 terms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        append(term=9),
        AppendReply(sender=B, to=A, term=9, success=False),
        VoteReply(sender=B, to=A, term=9, granted=False),
        RequestVote(sender=B, to=A, term=9, last=NO_OP, override=True),
    ],
    ids=lambda m: type(m).__name__,
)
def test_thesis_3_3_a_higher_term_makes_a_leader_follow(message):
    n = lead(node())
    n.step(message, 2000)
    assert n.term == 9
    assert n.status().role is Role.FOLLOWER


def test_thesis_3_3_a_message_of_an_old_term_is_refused():
    n = node(term=5)
    n.step(append(term=4, entries=tuple(entries(4))), 1)
    assert n.last == NO_OP
    assert [(m.success, m.term) for m in sent(n, AppendReply)] == [(False, 5)]


# ---- 3.4 election ------------------------------------------------------------------------------------


def test_thesis_3_4_timeouts_are_random_between_one_and_two_minimums():
    seen = set()
    for draw in range(TICKS):
        n = node(random=lambda n, draw=draw: draw % n)
        ticks = 0
        while not sent(n, RequestVote):
            n.tick(1)
            ticks += 1
        seen.add(ticks)
    assert seen == set(range(TICKS, 2 * TICKS))


def test_thesis_3_4_first_candidate_gets_the_one_vote_of_a_term():
    n = node()
    n.step(request(sender=B), 1)
    n.step(request(sender=C), 1)
    n.step(request(sender=B), 1)
    assert [(m.to, m.granted) for m in sent(n, VoteReply)] == [(B, True), (C, False), (B, True)]


def test_thesis_3_4_candidate_follows_leader_of_its_term():
    n = node()
    while n.core.state.value != "candidate":
        n.tick(1)
        for ask in sent(n, RequestVote):
            if ask.pre:
                n.step(VoteReply(sender=ask.to, to=A, term=ask.term, granted=True, pre=True), 1)
    n.step(append(term=1), 1)
    assert n.status().role is Role.FOLLOWER
    assert n.leader == B


def test_thesis_3_4_a_majority_of_refusals_ends_a_candidacy():
    n = node()
    for _ in range(2 * TICKS):
        n.tick(1)
    for peer in (B, C):
        n.step(VoteReply(sender=peer, to=A, term=0, granted=False, pre=True), 1)
    assert n.status().role is Role.FOLLOWER
    assert n.term == 0


def test_thesis_3_4_two_leaders_in_one_term_violate_an_invariant():
    n = lead(node())
    with pytest.raises(AssertionError, match="lead term 1"):
        n.step(append(term=1), 1)


# ---- 3.5 replication ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("previous", "agrees"),
    [(OpId(1, 1), True), (OpId(2, 2), True), (OpId(1, 2), False), (OpId(3, 2), False), (OpId(2, 3), False)],
)  # fmt: skip
def test_thesis_3_5_entries_are_accepted_only_after_a_matching_entry(previous, agrees):
    n = node(term=3, log=entries(1, 2))
    more = (Entry(OpId(3, previous.index + 1), 99, EntryKind.NOOP),)
    n.step(append(previous, term=3, entries=more), 1)
    assert [m.success for m in sent(n, AppendReply)] == [agrees]
    assert (n.last == more[0].id) == agrees


@pytest.mark.parametrize(
    ("terms", "kept"),
    [((1, 1, 1), 3), ((1, 1, 2, 2), 2), ((1, 2, 2, 2, 2), 1), ((), 0), ((1, 1, 3, 3, 3), 5)],
)
def test_thesis_3_5_conflicting_entries_are_cut_and_agreeing_ones_kept(terms, kept):
    """An old or short message must not cut entries that already agree."""
    n = node(term=3, log=entries(*terms))
    n.step(append(term=3, entries=tuple(entries(1, 1, 3))), 1)
    assert log_of(n)[:3] == ["1.1", "1.2", "3.3"]
    assert n.last.index == max(3, kept)


FIGURE_3_6 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("name", FIGURE_3_6)
def test_thesis_3_5_each_log_of_figure_3_6_is_repaired(name):
    cluster = Cluster("123")
    logs = {"1": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6), "2": FIGURE_3_6[name], "3": ()}
    for uuid, terms in logs.items():
        disk = cluster.servers[uuid].disk
        disk.log = {e.id.index: e for e in entries(*terms)}
        disk.hard = HardState(7)
        cluster.restart(uuid)
    cluster.elect("1")
    cluster.heartbeat("1")
    assert log_of(cluster["2"]) == log_of(cluster["1"])
    assert cluster["2"].commit_index == cluster["1"].last.index


# ---- 3.6 safety --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "last", "granted"),
    [
        ((1, 1), OpId(1, 2), True),
        ((1, 1), OpId(1, 1), False),
        ((1, 2), OpId(1, 9), False),
        ((1, 1, 1), OpId(2, 1), True),
        ((), NO_OP, True),
    ],
)
@pytest.mark.parametrize("pre", [False, True])
def test_thesis_3_6_1_less_complete_log_gets_no_vote(own, last, granted, pre):
    n = node(term=2, log=entries(*own))
    n.step(request(last, term=3, pre=pre), 1)
    assert [m.granted for m in sent(n, VoteReply)] == [granted]
    assert n.term == (2 if pre else 3)


@pytest.mark.parametrize(("index", "committed"), [(1, 0), (2, 0), (3, 3)])
def test_thesis_3_6_2_only_commits_entries_of_its_own_term(index, committed):
    n = lead(node(term=1, log=entries(1, 1)))
    assert n.last == OpId(2, 3)
    reply = AppendReply(sender=B, to=A, term=2, success=True, match=index, hint=OpId(1, index))
    n.step(reply, 2000)
    assert n.commit_index == committed


def test_thesis_3_8_term_and_vote_survive_a_restart():
    cluster = Cluster("123")
    cluster.deliver(RequestVote(sender=B, to=A, term=4, last=NO_OP))
    cluster.crash("1")
    cluster.restart("1")
    cluster.network.clear()
    cluster.deliver(RequestVote(sender=C, to=A, term=4, last=NO_OP))
    assert [m.granted for m in cluster.network if isinstance(m, VoteReply)] == [False]
    assert cluster["1"].status().vote == B


def test_thesis_3_8_a_vote_in_a_term_entered_before_is_persisted_too():
    cluster = Cluster("123")
    cluster.servers["1"].disk.log = {1: entries(1)[0]}
    cluster.servers["1"].disk.hard = HardState(1)
    cluster.restart("1")
    cluster.deliver(RequestVote(sender=C, to=A, term=4, last=NO_OP))
    assert (cluster["1"].term, cluster["1"].status().vote) == (4, None)
    cluster.servers["1"].disk.held = True
    cluster.network.clear()
    cluster.deliver(RequestVote(sender=B, to=A, term=4, last=OpId(1, 1)))
    assert not cluster.network, "the vote waits for the disk"
    cluster.sync("1")
    assert [m.granted for m in cluster.network if isinstance(m, VoteReply)] == [True]
    cluster.crash("1")
    cluster.restart("1")
    assert cluster["1"].status().vote == B


# ---- 3.10, 4 and 6 -----------------------------------------------------------------------------------


def test_thesis_3_10_timeout_now_is_sent_when_successor_is_up_to_date():
    n = lead(node())
    n.propose(b"x", 5000)
    n.transfer(B)
    assert not sent(n, TimeoutNow)
    n.step(AppendReply(sender=B, to=A, term=1, success=True, match=1, hint=OpId(1, 2)), 1)
    assert not sent(n, TimeoutNow), "the successor's entries are received, not durable"
    n.step(AppendReply(sender=B, to=A, term=1, success=True, match=2, hint=OpId(1, 2)), 1)
    assert [m.to for m in sent(n, TimeoutNow)] == [B]


@pytest.mark.parametrize("uuid", ["9", "4"])
def test_thesis_4_1_candidate_outside_configuration_may_get_vote(uuid):
    n = node()
    n.step(request(sender=ServerUuid(uuid)), 1)
    assert [m.granted for m in sent(n, VoteReply)] == [True]


def test_thesis_4_1_member_unaware_of_its_promotion_votes():
    config = initial([Member(A, "a", voter=False), Member(B, "b"), Member(C, "c")])
    n = RaftNode(A, config, HardState(), random=lambda n: 0)
    n.step(request(sender=B), 1)
    assert [m.granted for m in sent(n, VoteReply)] == [True]


@pytest.mark.row("S1.23")
@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("silent", [0, TICKS - 1, TICKS])
def test_thesis_4_2_3_member_hearing_leader_grants_no_vote(pre, silent):
    n = node(random=lambda n: n - 1)
    n.step(append(term=1, entries=tuple(entries(1))), 1)
    sent(n, AppendReply)
    for _ in range(silent):
        n.tick(1)
    n.step(request(OpId(1, 1), term=2, sender=C, pre=pre), 1)
    granted = [m.granted for m in sent(n, VoteReply)]
    assert granted == [True] if silent == TICKS else granted in ([], [False])
    assert n.term == (2 if silent == TICKS and not pre else 1)


def test_thesis_4_2_3_active_leader_grants_no_vote():
    n = lead(node())
    n.step(request(OpId(9, 9), term=9, sender=C), 1)
    n.step(request(OpId(9, 9), term=9, sender=C, pre=True), 1)
    assert [m.granted for m in sent(n, VoteReply)] == [False]
    assert n.is_leader


def test_thesis_6_2_a_leader_without_a_majority_steps_down_within_an_election_timeout():
    cluster = Cluster("12345")
    cluster.elect("1")
    for round_ in range(TICKS):
        cluster.tick("1", 2)
        if round_ < 5:  # one of four answers, which is not a majority
            for message in [m for m in cluster.network if m.to == "2"]:
                cluster.deliver(message)
            for message in [m for m in cluster.network if m.sender == "2"]:
                cluster.deliver(message)
        cluster.network.clear()
        if not cluster["1"].is_leader:
            break
    assert round_ * 2 <= TICKS + 2
    assert cluster["1"].term == 1, "stepping down needs no new term"


@pytest.mark.row("S1.24")
def test_thesis_9_6_isolated_server_keeps_term_and_rejoins_without_election():
    cluster = Cluster("123")
    cluster.elect("1")
    for _ in range(6000 // TICKS):  # five minutes
        cluster.tick("3", TICKS)
        cluster.network.clear()
    assert cluster["3"].term == 1
    assert cluster["3"].status().role is Role.CANDIDATE
    cluster.tick("3", 2 * TICKS)
    cluster.settle()
    cluster.heartbeat("1")
    assert {cluster[u].leader for u in "123"} == {"1"}
    assert {cluster[u].term for u in "123"} == {1}


def test_thesis_10_2_1_leader_counts_itself_only_when_durable():
    n = lead(node())
    n.step(AppendReply(sender=B, to=A, term=1, success=True, match=1, hint=OpId(1, 1)), 1)
    op = n.propose(b"x", 5000)
    ready = n.ready()
    assert any(isinstance(o.message, AppendEntries) for o in ready.send)
    assert all(o.after.last == NO_OP for o in ready.send), (
        "messages are sent without waiting for the leader's sync"
    )
    n.step(AppendReply(sender=B, to=A, term=1, success=True, match=op.index, hint=op), 1)
    assert n.commit_index < op.index
    n.durable(ready.point)
    assert n.commit_index == op.index
