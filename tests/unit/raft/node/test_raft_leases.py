"""Commitments of followers to take part in no election, and the rounds that give their leader a lease."""

from nyala.common.ids import OpId
from nyala.raft.membership import Member
from nyala.raft.messages import (
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    RequestVote,
    Suffix,
    TimeoutNow,
    VoteReply,
)
from nyala.raft.options import RaftOptions
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.raft.roles import reads
from tests.unit.raft.support.raft_quiescence import IDLE, ONE, THREE, TWO, Group

PROMISE = 3
RESTART = 6
LEASE = RaftOptions(
    quiesce_heartbeats=IDLE, promise_ms=100, promise_ticks=PROMISE, restart_ticks=RESTART
)


def group_with_leader(**more):
    group = Group(options=more.pop("options", LEASE), **more)
    group.elect("1")
    return group


def confirm(group, uuid="1"):
    """Confirm a read round; return it."""
    group.read(uuid)
    group.settle()
    group.heartbeat(uuid)
    return group.servers[uuid].confirmed[-1]


def leases(group, confirmed, uuid="1"):
    return reads.gives_lease(group[uuid].core, confirmed.round)


def request(group, sender, to, *, pre, term=None, override=False):
    return RequestVote(
        sender=sender,
        to=to,
        term=group[to].term + 1 if term is None else term,
        last=OpId(99, 99),
        pre=pre,
        override=override,
    )


def granted(group, message):
    group.network.clear()
    group.deliver(message)
    return [m.granted for m in group.network if isinstance(m, VoteReply)]


def test_confirmed_round_has_promise_of_a_majority():
    group = group_with_leader()
    assert confirm(group).promise_ms == 100
    for uuid, promise_ms in (("2", 60), ("3", 0)):
        group[uuid].core.options = changed_options(promise_ms)
    newest = confirm(group)
    assert newest.promise_ms == 60, "the leader itself and one follower"
    group.heartbeat("1")
    assert (
        reads.promised_by_majority(group["1"].core, group["1"].core.leadership, newest.round) == 60
    )
    group["2"].core.options = changed_options(0)
    assert confirm(group).promise_ms == 0, "members of an earlier version promise nothing"


def changed_options(promise_ms):
    return RaftOptions(quiesce_heartbeats=IDLE, promise_ms=promise_ms, promise_ticks=PROMISE)


def test_late_reply_does_not_renew_a_promise():
    """Its sender has been started again with another option since."""
    group = group_with_leader()
    group.crash("3")
    group["2"].core.options = changed_options(0)
    late = AppendReply(
        sender=TWO, to=ONE, term=1, success=True, match=1, hint=OpId(1, 1), promise_ms=100,
        round=group["1"].core.leadership.peers[TWO].round,
    )  # fmt: skip
    newest = confirm(group).round
    group.deliver(late)
    assert reads.promised_by_majority(group["1"].core, group["1"].core.leadership, newest) == 0


def test_follower_that_assumes_leader_exit_keeps_its_promise():
    group = group_with_leader()
    group.heartbeat("1")
    for uuid in "23":
        assert group[uuid].peer_exited(ONE)
        assert not group[uuid].core.has_live_leader
        group[uuid].core.timeout = 1
    group.crash("1")
    group.network.clear()
    for _ in range(PROMISE - 1):
        group.tick("2")
        assert not group.network, "it does not stand"
    assert granted(group, request(group, TWO, THREE, pre=True)) == [False]
    assert granted(group, request(group, TWO, THREE, pre=False)) == []
    assert group["3"].term == 1, "nor does it enter the candidate's term"
    group.tick("3", PROMISE)
    assert granted(group, request(group, TWO, THREE, pre=True)) == [True]
    assert granted(group, request(group, TWO, THREE, pre=False)) == [True]


def test_suspicion_waits_for_the_end_of_the_promise():
    group = group_with_leader()
    group.heartbeat("1")
    for uuid in "23":
        group[uuid].peer_exited(ONE)
        assert group[uuid].core.timeout > PROMISE
    group.crash("1")
    group.everyone_ticks(LEASE.election_ticks + PROMISE)
    assert [u for u in "23" if group[u].is_leader]


def test_candidate_refused_for_a_promise_tries_again_soon():
    """The other voter has just been restarted when the leader's process exits."""
    group = group_with_leader()
    group.heartbeat("1")
    group.crash("1")
    for uuid in "23":
        group[uuid].peer_exited(ONE)
    group["2"].core.timeout = group["2"].core.promise_ticks + 1
    group["3"].core.promise_ticks, group["3"].core.timeout = 6, 99
    group.everyone_ticks(LEASE.election_ticks)
    assert group["2"].is_leader


def test_promise_holds_in_later_terms():
    """The follower learns a later term from a reply that went astray, and knows no leader in it."""
    group = group_with_leader()
    group.heartbeat("1")
    group.deliver(VoteReply(sender=THREE, to=TWO, term=5, granted=False))
    assert (group["2"].term, group["2"].leader) == (5, None)
    assert granted(group, request(group, THREE, TWO, pre=False, term=5)) == []
    assert granted(group, request(group, THREE, TWO, pre=False, term=6)) == []
    group.tick("2", PROMISE)
    assert granted(group, request(group, THREE, TWO, pre=False, term=6)) == [True]


def test_late_suffix_of_a_witness_breaks_no_promise():
    """It arrives at a member that knows no leader of its term, but had one a moment ago."""
    group = Group(uuids="12", witnesses="3", options=LEASE)
    group.elect("1")
    group.heartbeat("1")
    group.deliver(VoteReply(sender=THREE, to=TWO, term=5, granted=False))
    assert (group["2"].term, group["2"].leader) == (5, None)
    core = group["2"].core
    entry = Entry(OpId(2, core.log.last.index + 1), core.log.last_stamp + 1, EntryKind.NOOP)
    group.network.clear()
    group.deliver(
        Suffix(
            sender=THREE, to=TWO, term=5, previous=core.log.last, entries=(entry,), last=entry.id
        )
    )
    assert not any(isinstance(m, RequestVote) for m in group.network)


def test_restarted_member_takes_part_in_no_election_for_a_while():
    group = group_with_leader()
    group.propose("1", "x")
    group.settle()
    group.crash("2")
    group.restart("2")
    assert granted(group, request(group, THREE, TWO, pre=True)) == [False]
    group["2"].core.timeout = 1
    group.network.clear()
    group.tick("2", RESTART - 1)
    assert not group.network
    assert granted(group, request(group, THREE, TWO, pre=False)) == []
    group.tick("2")
    assert granted(group, request(group, THREE, TWO, pre=False)) == [True]


def test_new_member_and_sole_voter_have_promised_nothing():
    assert Group(options=LEASE)["1"].core.promise_ticks == 0
    alone = Group("1", options=LEASE)
    alone.elect("1")
    alone.crash("1")
    alone.restart("1")
    assert alone["1"].core.promise_ticks == 0


def test_leader_that_ordered_an_election_has_no_lease_for_the_rest_of_its_term():
    group = group_with_leader()
    before = confirm(group)
    assert leases(group, before)
    group["1"].transfer(THREE)
    group.work(group.servers["1"])
    order = [m for m in group.network if isinstance(m, TimeoutNow)]
    assert order, "the successor has the whole log"
    assert not leases(group, before), "before the order is sent"
    group.network.clear()
    for _ in range(LEASE.election_ticks):
        group.tick("1")
        group.network = [m for m in group.network if not isinstance(m, TimeoutNow)]
        group.settle()
    assert not group["1"].view.transferring
    newest = confirm(group)
    assert group["1"].is_leader
    assert not leases(group, newest), "the order may arrive after any delay"
    group.deliver(order[0])
    assert group["3"].term == 2


def test_ordered_election_overrides_promises():
    group = group_with_leader()
    group.heartbeat("1")
    group["1"].transfer(THREE)
    group.settle()
    assert group["3"].is_leader


def test_configuration_change_drops_the_lease():
    group = group_with_leader(spares="4")
    before = confirm(group)
    group.change("1", Change(ChangeKind.ADD, Member(group.servers["4"].uuid, "4:1", voter=False)))
    assert not leases(group, before)
    assert leases(group, confirm(group))


def test_round_under_way_at_a_configuration_change_gives_no_lease():
    group = group_with_leader(spares="4")
    number = group.read("1")
    group.work(group.servers["1"])
    group.change("1", Change(ChangeKind.ADD, Member(group.servers["4"].uuid, "4:1", voter=False)))
    group.settle()
    assert group.servers["1"].confirmed[-1].round >= number
    assert not reads.gives_lease(group["1"].core, number)


def test_quiesced_leader_has_no_lease():
    group = group_with_leader()
    group.propose("1", "x")
    group.settle()
    before = confirm(group)
    group.rest()
    assert group["1"].quiesced
    assert not leases(group, before)
    assert leases(group, confirm(group))


def test_lease_ends_with_the_term():
    group = group_with_leader()
    before = confirm(group)
    group.deliver(VoteReply(sender=THREE, to=ONE, term=5, granted=False))
    assert not leases(group, before)
    for uuid in "23":
        group.tick(uuid, PROMISE)
    group.elect("1")
    assert not leases(group, before), "a round of an earlier term"
    assert leases(group, confirm(group))


def test_survivor_of_unsafe_recovery_waits_for_the_end_of_its_promise():
    group = group_with_leader()
    group.heartbeat("1")
    group.unsafe_config("2", [TWO])
    group.tick("2", PROMISE - 1)
    assert not group["2"].is_leader
    group.tick("2", 2)
    assert group["2"].is_leader


def test_no_message_has_a_round_that_later_reads_may_join():
    """Entries that were read from the log are sent before the next `ready()`."""
    group = group_with_leader()
    node = group["1"]
    group.crash("2")
    group.propose("1", "x")
    group.settle()
    peer = node.core.leadership.peers[TWO]
    number = node.read_index()
    peer.probe(2)
    peer.reading = True
    node.entries_read(TWO, list(group.servers["1"].disk.entries())[1:])
    (sent,) = (o.message for o in node.take_messages())
    assert isinstance(sent, AppendEntries)
    assert sent.round < number
    assert node.read_index() == number
