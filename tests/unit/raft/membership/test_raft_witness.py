"""Witnesses: suffixes that they send, checks of these, and the loss of any one of three members."""

import pytest

from nyala.common.errors import Corrupt
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.membership import Member, encode, initial
from nyala.raft.messages import (  # fmt: skip
    AppendEntries,
    Entry,
    EntryKind,
    FetchSuffix,
    HardState,
    RequestVote,
    Suffix,
    TimeoutNow,
    VoteReply,
)
from nyala.raft.node import RaftNode
from nyala.raft.options import RaftOptions
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.raft.status import Role
from tests.salt import generator
from tests.unit.raft.support.raft_harness import Cluster, log_of

A, B, W = (ServerUuid(u) for u in "123")
TICKS = RaftOptions().election_ticks
CONFIG = initial([Member(A, "a"), Member(B, "b"), Member(W, "w", electable=False)])


def entries(*terms, first=1):
    return tuple(Entry(OpId(t, i), 10 * i, EntryKind.NOOP) for i, t in enumerate(terms, first))


def node(uuid, *terms, term=None, **kwargs):
    term = max(terms, default=0) if term is None else term
    return RaftNode(
        uuid, CONFIG, HardState(term), entries(*terms), random=lambda n: 0, **kwargs
    )  # fmt: skip


def suffix(previous=NO_OP, terms=(), *, term=3, last=None, first=None):
    more = entries(*terms, first=previous.index + 1 if first is None else first)
    end = more[-1].id if more else previous
    return Suffix(sender=W, to=A, term=term, previous=previous, entries=more, last=last or end)


def sent(n, kind):
    out = []
    while not (ready := n.ready()).empty:
        n.durable(ready.point)
        out += [o.message for o in ready.send if isinstance(o.message, kind)]
    return out


@pytest.mark.parametrize(
    "message",
    [
        suffix(OpId(1, 1), (2, 1)),
        suffix(OpId(1, 1), (2,), first=3),
        suffix(OpId(1, 1), (2,), last=OpId(1, 1)),
        suffix(OpId(1, 1), (2, 2), last=OpId(2, 2)),
        suffix(OpId(1, 1), (2,), last=OpId(3, 2)),
        suffix(OpId(1, 1), (4,), term=3),
        suffix(OpId(9, 9), last=OpId(2, 1)),
        Suffix(sender=W, to=A, term=3, previous=OpId(1, 1), last=OpId(2, 2),
               entries=(Entry(OpId(2, 2), 20, EntryKind.CONFIG, b"no json"),)),
    ],
    ids=["terms fall", "gap", "beyond its end", "more than there is", "another end", "newer than its term",
         "starts beyond its end", "no configuration"],
)  # fmt: skip
def test_inconsistent_fetched_suffix_changes_nothing(message):
    n = node(A, 1)
    with pytest.raises(Corrupt, match=r"dropped|cannot be read"):
        n.step(message, 1)
    assert (log_of(n), n.term) == (["1.1"], 1)
    assert n.ready().empty


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ((1, 2), suffix(OpId(1, 1), (2,))),
        ((1, 1, 1), suffix(OpId(1, 1), (1,))),
        ((1, 3), suffix(OpId(1, 1), (2, 2))),
    ],
    ids=["the same log", "a shorter one", "an older one"],
)
def test_suffix_of_log_that_is_not_newer_is_ignored(own, message):
    n = node(A, *own)
    n.step(message, 1)
    assert log_of(n) == log_of(node(A, *own))
    assert n.ready().empty


def test_committed_entries_are_not_replaced_by_fetched_suffix():
    n = node(A, 1, 1, commit_index=2)
    n.ready()
    n.step(suffix(OpId(1, 1), (2, 2)), 1)
    assert log_of(n) == ["1.1", "1.2"]
    assert not sent(n, FetchSuffix), "no suffix from an earlier index is requested"


def test_suffix_is_ignored_with_known_leader_or_when_unelectable():
    led = node(A, 1)
    led.step(AppendEntries(sender=B, to=A, term=1, previous=OpId(1, 1)), 1)
    led.ready()
    led.step(suffix(OpId(1, 1), (2,)), 1)
    assert log_of(led) == ["1.1"]
    assert led.term == 1, "the sender's term is ignored too"
    other = node(W, 1)
    other.step(Suffix(sender=B, to=W, term=3, previous=OpId(1, 1), entries=entries(2, first=2),
                      last=OpId(2, 2)), 1)  # fmt: skip
    assert log_of(other) == ["1.1"]


def test_vote_refusal_of_member_with_leader_contains_no_suffix():
    n = node(W, 1, 1)
    n.step(AppendEntries(sender=B, to=W, term=1, previous=OpId(1, 2)), 1)
    n.ready()
    n.step(RequestVote(sender=A, to=W, term=2, last=OpId(1, 1), pre=True), 1)
    n.step(FetchSuffix(sender=A, to=W, term=1, last=OpId(1, 1)), 1)
    assert [m.offers_suffix for m in sent(n, VoteReply | Suffix)] == [False]


def test_suffix_request_of_higher_term_changes_no_term():
    n = node(W, 1, 1)
    n.step(FetchSuffix(sender=A, to=W, term=9, last=OpId(1, 1)), 1)
    assert n.term == 1
    assert [m.entries for m in sent(n, Suffix)] == [entries(1, first=2)]


def test_electable_member_sends_no_suffix():
    n = node(B, 1, 1)
    n.core.ticks_since_leader = TICKS
    n.step(RequestVote(sender=A, to=B, term=2, last=OpId(1, 1), pre=True), 1)
    n.step(FetchSuffix(sender=A, to=B, term=1, last=OpId(1, 1)), 1)
    assert [m.offers_suffix for m in sent(n, VoteReply | Suffix)] == [False]


@pytest.mark.parametrize("last", [NO_OP, OpId(1, 3)], ids=str)
def test_suffix_starting_beyond_requester_log_is_not_sent(last):
    n = RaftNode(
        W, CONFIG, HardState(2), entries(2, 2, first=6), base=OpId(2, 5), base_stamp=1,
        commit_index=5, applied_index=5, random=lambda n: 0,
    )  # fmt: skip
    n.step(FetchSuffix(sender=A, to=W, term=2, last=last), 1)
    assert not sent(n, Suffix)
    n.step(FetchSuffix(sender=A, to=W, term=2, last=OpId(2, 5)), 1)
    assert [m.previous for m in sent(n, Suffix)] == [OpId(2, 5)]


def test_fetched_configuration_may_end_candidacy():
    n = node(A, 1)
    n.core.ticks_since_leader = TICKS
    for _ in range(TICKS):
        n.tick(1)
    n.ready()
    without = initial([Member(B, "b"), Member(W, "w", electable=False)])
    config = Entry(OpId(1, 2), 20, EntryKind.CONFIG, encode(without))
    n.step(
        Suffix(sender=W, to=A, term=1, previous=OpId(1, 1), entries=(config,), last=config.id), 1
    )
    assert n.status().role is Role.NON_PARTICIPANT
    assert not sent(n, RequestVote)


@pytest.mark.row("S1.45")
def test_witness_votes_and_counts_but_never_campaigns():
    cluster = Cluster("123", witnesses="3")
    cluster.elect("1")
    cluster.crash("2")
    op = cluster.propose("1", "x")
    cluster.settle()
    assert op is not None
    assert cluster["1"].commit_index == op.index, "leader and witness are a majority of three"
    cluster.deliver(TimeoutNow(sender=A, to=W, term=1))
    cluster.crash("1")
    cluster.tick("3", 50 * TICKS)
    assert cluster["3"].status().role is Role.FOLLOWER
    assert cluster["3"].term == 1


@pytest.mark.row("S1.53")
def test_witness_keeps_complete_log_until_it_has_data():
    cluster = Cluster("123", witnesses="3")
    cluster.elect("1")
    cluster.change("1", Change(ChangeKind.MODIFY, Member(W, "3:1", electable=False, promote=True)))
    for text in "abc":
        cluster.propose("1", text)
    cluster.settle()
    cluster.heartbeat("1")
    assert cluster["2"].view.retain_index == 6, "the other members have all entries"
    assert cluster["3"].view.retain_index == 1
    cluster.change("1", Change(ChangeKind.MODIFY, Member(W, "3:1")))
    cluster.settle()
    cluster.heartbeat("1")
    assert cluster["3"].view.retain_index == cluster["3"].last.index + 1


def test_permanent_witness_discards_only_entries_that_all_members_have():
    cluster = Cluster("123", witnesses="3")
    cluster.elect("1")
    cluster.propose("1", "a")
    cluster.settle()
    cluster.propose("1", "b")
    cluster.settle(lambda m: "2" not in (m.to, m.sender))
    cluster.tick("1", cluster.options.heartbeat_ticks)
    cluster.settle(lambda m: "2" not in (m.to, m.sender))
    assert cluster["1"].commit_index == 3
    assert cluster["3"].view.retain_index == 3, (
        "2 lacks 1.3, which only the witness may have besides the leader"
    )
    cluster.settle()
    cluster.heartbeat("1")
    assert cluster["3"].view.retain_index == 4


@pytest.mark.row("S1.46", "S1.49")
@pytest.mark.parametrize("seed", range(40))
def test_group_of_three_survives_failure_of_any_member_at_any_time(seed):
    """Loss, delay and a few writes; then one member is lost, and the other two must elect and commit."""
    rng = generator(seed)
    cluster = Cluster("123", witnesses="3", random=lambda _: rng.randrange)
    held = None
    for _ in range(rng.randrange(40, 400)):
        action = rng.random()
        if action < 0.5 and cluster.network:
            message = cluster.network.pop(rng.randrange(min(3, len(cluster.network))))
            if rng.random() < 0.8:
                cluster.deliver(message)
        elif action < 0.8:
            cluster.tick(rng.choice("123"))
        elif action < 0.95:
            for uuid in "12":
                if cluster[uuid].is_leader:
                    cluster.propose(uuid, "x")
                    cluster.work(cluster.servers[uuid])
        else:
            held = rng.choice("123")
            cluster.servers[held].disk.held ^= True
            cluster.sync(held)
    dead = rng.choice([u for u in "123" if cluster[u].is_leader] or ["1", "2"])
    if rng.random() < 0.3:
        dead = rng.choice("123")
    cluster.crash(dead)
    cluster.network.clear()
    done = None
    for server in cluster.alive:
        server.disk.held = False
        cluster.sync(server.uuid)
    for _ in range(12 * TICKS):
        for server in cluster.alive:
            cluster.tick(server.uuid)
        cluster.settle()
        leader = next((s for s in cluster.alive if s.node.status().accepting), None)
        if leader is not None:
            done = done or cluster.propose(leader.uuid, "last")
            assert done is not None
            if cluster[leader.uuid].commit_index >= done.index:
                return
    raise AssertionError([s.node.status() for s in cluster.alive])
