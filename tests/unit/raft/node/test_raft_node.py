"""RaftNode's contract with its host: effects of each input, and refusals of invalid input."""

import pytest

from nyala.common.errors import Corrupt, InvalidArgument, LogGap, NotLeader
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft import membership
from nyala.raft.membership import Member, initial
from nyala.raft.messages import (
    AppendEntries,
    AppendReply,
    DurablePoint,
    Entry,
    EntryKind,
    HardState,
    RequestVote,
    VoteReply,
)  # fmt: skip
from nyala.raft.node import RaftNode
from nyala.raft.options import RaftOptions
from nyala.raft.ready import NOTHING, Ready
from nyala.raft.status import Role
from tests.unit.raft.support.raft_harness import Cluster, altered, log_of
from tests.unit.raft.support.raft_node import A, B, C, cluster_with_leader, node


def entry(term, index, payload=b"", stamp=None):
    return Entry(OpId(term, index), stamp or 10 * index, EntryKind.OPERATION, payload)


# ---- proposals ---------------------------------------------------------------------------------------


@pytest.mark.row("S4.30")
def test_leader_orders_entries_and_majority_commits():
    cluster = cluster_with_leader()
    assert cluster.propose("2", "no") is None, "a follower refuses proposals"
    ops = [cluster.propose("1", text) for text in ("a", "b", "c")]
    assert [op.index for op in ops] == [2, 3, 4], "the order of the calls is the order of the log"
    cluster.work(cluster.servers["1"])
    assert cluster["1"].commit_index == 1, "an entry durable only on the leader is not committed"
    assert [e.payload for e in cluster.servers["1"].applied] == [b""]
    reply_lost = [m for m in cluster.network if m.to == "2"]
    cluster.network.clear()
    cluster.servers["2"].disk.held = True
    for message in reply_lost:
        cluster.deliver(message)
    cluster.settle()
    assert cluster["1"].commit_index == 1, (
        "an entry received by a majority and not durable is not committed"
    )
    cluster.sync("2")
    cluster.settle()
    assert [e.payload for e in cluster.servers["1"].applied] == [b"", b"a", b"b", b"c"]
    for _ in range(4):
        cluster.heartbeat("1")
    cluster.sync("2")
    assert len({tuple(s.applied) for s in cluster.alive}) == 1


@pytest.mark.row("S4.31")
def test_followers_are_passive_until_leader_is_silent():
    cluster = cluster_with_leader()
    sent_messages: list[object] = []
    for _ in range(200):  # twenty seconds
        for uuid in "123":
            cluster.tick(uuid)
        sent_messages += [m for m in cluster.network if m.sender != "1"]
        cluster.settle()
    assert not [m for m in sent_messages if not isinstance(m, AppendReply)]
    assert {cluster[u].term for u in "123"} == {1}
    cluster.crash("1")
    for _ in range(2 * cluster.options.election_ticks):
        cluster.tick("2")
        cluster.tick("3")
    assert any(isinstance(m, RequestVote) for m in cluster.network)


def test_batched_proposals_form_one_message_per_peer():
    cluster = cluster_with_leader()
    for number in range(50):
        cluster.propose("1", str(number))
    ready = cluster["1"].ready()
    assert len(ready.append) == 50
    assert [len(o.message.entries) for o in ready.send] == [50, 50]


def test_non_increasing_timestamp_raises_invariant_error():
    cluster = cluster_with_leader()
    with pytest.raises(AssertionError, match="stamps fall"):
        cluster["1"].propose(b"x", cluster["1"].last_stamp)


def test_promised_time_is_not_used_again():
    cluster = cluster_with_leader()
    cluster["1"].publish_closed(10_000)
    with pytest.raises(AssertionError, match="closed time"):
        cluster["1"].propose(b"x", 10_000)
    assert cluster["1"].propose(b"x", 10_001) is not None
    cluster.heartbeat("1")
    cluster.heartbeat("1")
    assert cluster["2"].status().closed == 10_000


def test_new_leader_noop_timestamp_is_above_log_and_clock():
    cluster = cluster_with_leader()
    cluster.propose("1", "x")
    cluster.settle()
    cluster.servers["3"].clock = 1_000_000  # a vote carries the voter's time
    cluster.crash("1")
    cluster.elect("2")
    noop = cluster.servers["2"].applied[-1]
    assert noop.kind is EntryKind.NOOP
    assert noop.stamp > 1_000_000


def test_proposal_outcome_is_known_at_its_index():
    cluster = cluster_with_leader()
    op = cluster.propose("1", "in flight")
    cluster.work(cluster.servers["1"])
    cluster.network.clear()
    for other in ("2", "3"):
        cluster[other].core.ticks_since_leader = 99
    cluster.servers["1"].alive = False
    cluster.elect("2")
    cluster.servers["1"].alive = True
    assert cluster["1"].is_leader, "the old leader does not know its successor yet"
    assert not [e for e in cluster.servers["1"].applied if e.id.index == op.index]
    for _ in range(3):
        cluster.heartbeat("2")
    (applied,) = [e for e in cluster.servers["1"].applied if e.id.index == op.index]
    assert applied.id.term != op.term, (
        "an entry of another term is at the index: the proposal has no effect"
    )


# ---- reads -------------------------------------------------------------------------------------------


def test_only_leader_starts_read_rounds():
    cluster = cluster_with_leader()
    assert cluster["2"].read_index(5) is None
    assert cluster["1"].read_index(5) == 1
    assert cluster["1"].read_index(6) == 1, "reads of one ready() share a round"
    cluster["1"].ready()
    assert cluster["1"].read_index(7) == 2


def test_echo_counts_when_its_hybrid_time_reaches_read_time():
    cluster = cluster_with_leader()
    n = cluster["1"]
    number = n.read_index(9_000)
    assert {m.message.hlc for m in n.ready().send} == {9_000}, "the message carries the read's time"
    echo = AppendReply(
        sender=B, to=A, term=1, success=True, match=1, hint=OpId(1, 1), round=number, hlc=8_999
    )
    n.step(echo, 9_001)
    assert n.ready().confirmed is None
    n.step(altered(echo, hlc=9_000), 9_002)
    assert n.ready().confirmed.round == number


# ---- durability --------------------------------------------------------------------------------------


def test_durable_point_before_truncation_does_not_cover_new_log():
    n = node(HardState(1))
    n.step(
        AppendEntries(sender=B, to=A, term=1, entries=(entry(1, 1), entry(1, 2), entry(1, 3))), 1
    )
    first = n.ready()
    n.step(AppendEntries(sender=C, to=A, term=2, entries=(entry(2, 1),)), 1)
    second = n.ready()
    (reply,) = [o for o in second.send if isinstance(o.message, AppendReply)]
    assert not first.point.covers(reply.after), "the 3 durable entries belong to the replaced log"
    n.durable(first.point)
    assert n.status().durable == 0
    n.durable(second.point)
    assert n.status().durable == 1
    assert second.point.covers(reply.after)
    assert second.persist is not None, "a truncation begins a new version of the log"


@pytest.mark.parametrize(
    ("have", "need", "covers"),
    [
        (DurablePoint(1, OpId(1, 5)), DurablePoint(1, OpId(1, 5)), True),
        (DurablePoint(1, OpId(1, 4)), DurablePoint(1, OpId(1, 5)), False),
        (DurablePoint(0, OpId(1, 9)), DurablePoint(1, OpId(1, 5)), False),
        (DurablePoint(2, OpId(2, 3)), DurablePoint(1, OpId(1, 5)), True),
    ],
)
def test_durable_point_covers_earlier_entries(have, need, covers):
    assert have.covers(need) == covers


def test_entries_are_applied_only_when_locally_durable():
    n = node(HardState(1))
    n.step(AppendEntries(sender=B, to=A, term=1, entries=(entry(1, 1),), commit=1), 1)
    ready = n.ready()
    assert n.commit_index == 1
    assert ready.apply == ()
    n.durable(ready.point)
    assert [e.id for e in n.ready().apply] == [OpId(1, 1)]


def test_node_without_pending_output_reports_none():
    assert node().ready() is NOTHING
    assert Ready().empty
    cluster = cluster_with_leader()
    assert all(cluster[u].ready().empty for u in "123")


# ---- starting ----------------------------------------------------------------------------------------


def test_restart_resumes_after_applied_index_of_files():
    log = [entry(1, i) for i in range(11, 21)]
    n = node(
        HardState(3, B), log, base=OpId(1, 10), base_stamp=100, commit_index=15, applied_index=12
    )
    assert [e.id.index for e in n.ready().apply] == [13, 14, 15]
    status = n.status()
    assert (status.term, status.vote, status.role, status.last) == (
        3,
        B,
        Role.FOLLOWER,
        OpId(1, 20),
    )


@pytest.mark.parametrize(
    ("hard", "log", "commit", "error"),
    [
        (HardState(1), [entry(1, 2)], 0, LogGap),
        (HardState(1), [entry(1, 1)], 2, LogGap),
        (HardState(1), [entry(2, 1)], 0, Corrupt),
    ],
    ids=["gap", "shorter than what is committed", "newer than the term"],
)
def test_node_refuses_damaged_initial_state(hard, log, commit, error):
    with pytest.raises(error):
        node(hard, log, commit_index=commit)


def test_member_outside_configuration_is_passive():
    config = initial([Member(B, "b"), Member(C, "c")])
    n = RaftNode(A, config, HardState(), random=lambda n: 0)
    for _ in range(99):
        n.tick(1)
    assert n.ready().empty
    assert n.status().role is Role.NON_PARTICIPANT


# ---- peers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("previous", "entries"),
    [
        (NO_OP, (entry(1, 2),)),
        (NO_OP, (entry(2, 1),)),
        (NO_OP, (entry(1, 1), entry(1, 1))),
        (NO_OP, (entry(1, 1, stamp=20), entry(1, 2, stamp=20))),
        (OpId(1, 1), (entry(1, 2, stamp=10),)),
        (OpId(1, 1), (Entry(OpId(1, 2), 30, EntryKind.CONFIG, b"no json"),)),
    ],
    ids=[
        "gap",
        "newer than its sender",
        "twice",
        "one stamp twice",
        "stamp falls",
        "no configuration",
    ],
)
def test_inconsistent_message_changes_nothing(previous, entries):
    n = node(HardState(1), [entry(1, 1)])
    with pytest.raises(Corrupt, match=r"dropped|cannot be read"):
        n.step(AppendEntries(sender=B, to=A, term=1, previous=previous, entries=entries), 1)
    assert log_of(n) == ["1.1"]


def test_acknowledgement_of_unknown_entry_is_dropped():
    cluster = cluster_with_leader()
    with pytest.raises(Corrupt, match="dropped"):
        cluster["1"].step(
            AppendReply(sender=B, to=A, term=1, success=True, match=9, hint=OpId(1, 9)), 1
        )
    assert cluster["1"].commit_index == 1


def test_misaddressed_and_foreign_messages_are_ignored():
    cluster = cluster_with_leader()
    n = cluster["1"]
    n.step(AppendEntries(sender=B, to=C, term=9), 1)
    n.step(AppendReply(sender=ServerUuid("9"), to=A, term=1, success=True, match=1), 1)
    n.step(VoteReply(sender=B, to=A, term=1, granted=True), 1)
    assert n.is_leader
    assert n.ready().empty


def test_late_log_reads_are_not_sent():
    cluster = Cluster("123", options=RaftOptions(cache_bytes=0))
    cluster.elect("1")
    n = cluster["1"]
    n.entries_read(B, [entry(1, 1)])
    n.entries_read(ServerUuid("9"), [])
    assert n.ready().empty
    assert not any(p.needs_copy for p in n.status().peers)


def test_leadership_transfer_requires_leader_and_another_voter():
    cluster = Cluster("123", nonvoters="4", witnesses="3")
    with pytest.raises(NotLeader):
        cluster["1"].transfer(B)
    cluster.elect("1")
    for wrong in ("1", "3", "4", "9"):
        with pytest.raises(InvalidArgument, match="electable voter"):
            cluster["1"].transfer(ServerUuid(wrong))
    assert cluster["1"].status().transferee is None


# ---- membership --------------------------------------------------------------------------------------


def test_configuration_round_trips_completely():
    config = initial(
        [Member(B, "b:1", voter=False, promote=True), Member(A, "a:1", electable=False)]
    )
    assert [m.uuid for m in config.members] == [A, B], "members are sorted"
    assert membership.decode(membership.encode(config), OpId(3, 4)).members == config.members
    assert config.voters == (A,)


@pytest.mark.parametrize(
    "members", [[], [Member(A, "a", voter=False)], [Member(A, "a"), Member(A, "b")]]
)
def test_configuration_requires_voter_and_unique_members(members):
    with pytest.raises(InvalidArgument):
        initial(members)
