"""Groups that sleep, at the level of the core: who falls asleep when, and what wakes it."""

import random
from dataclasses import replace

import pytest

from nyala.common.ids import OpId, ServerUuid
from nyala.raft.changes import Change, ChangeKind
from nyala.raft.farewell import HEARTBEATS
from nyala.raft.membership import Member
from nyala.raft.memory import Stand
from nyala.raft.messages import AppendEntries, AppendReply, RequestVote
from nyala.raft.options import RaftOptions
from nyala.raft.quiescence import SILENT_TIMEOUTS
from tests.unit.raft.raft_harness import Cluster, altered

ONE, TWO, THREE = (ServerUuid(u) for u in "123")
IDLE = 3
OPTIONS = RaftOptions(quiesce_heartbeats=IDLE)


class Group(Cluster):
    """A cluster that quiesces; `absent` is what the hosts believe."""

    def __init__(self, uuids="123", **more):
        super().__init__(uuids, options=more.pop("options", OPTIONS), **more)
        self.absent: tuple[ServerUuid, ...] = ()

    def tick(self, uuid, ticks=1):
        for _ in range(ticks):
            server = self.servers[uuid]
            server.node.tick(self.now(server), self.absent)
            self.work(server)

    def beat(self, uuid="1", times=1):
        """Let heartbeats of the leader go round."""
        for _ in range(times):
            self.heartbeat(uuid)

    def asleep(self):
        return [s.uuid for s in self.alive if s.node.asleep]

    def rest(self, uuid="1"):
        """Let the group fall asleep."""
        self.beat(uuid, IDLE + 3)
        return self

    def everyone_ticks(self, ticks):
        for _ in range(ticks):
            for server in self.alive:
                self.tick(server.uuid)
            self.settle()


def offered(message):
    return getattr(message, "quiesce", False)


def lose_offers(group, to):
    group.network = [m for m in group.network if m.to != to or not offered(m)]


def asleep_group(**more):
    group = Group(**more)
    group.elect("1")
    group.propose("1", "x")
    group.settle()
    group.rest()
    assert group.asleep() == ["1", "2", "3"]
    return group


def test_an_idle_group_falls_asleep_and_then_time_means_nothing_to_it():
    group = asleep_group()
    group.everyone_ticks(12_000)  # ten minutes
    assert group.network == []
    assert group.asleep() == ["1", "2", "3"]
    assert [group[u].term for u in "123"] == [1, 1, 1]
    assert group["2"].status().quiesced
    group.check_all()


def test_a_group_whose_options_do_not_say_so_never_sleeps():
    group = Group(options=RaftOptions())
    group.elect("1")
    group.beat(times=50)
    assert group.asleep() == []


def test_a_group_that_is_asked_something_now_and_then_stays_up():
    group = Group()
    group.elect("1")
    for n in range(10):
        for _ in range(IDLE - 1):
            group.beat()
            assert group.asleep() == []
        if n % 2:
            group.propose("1", f"{n}")
        else:
            assert group.read("1") is not None
        group.settle()
        assert group.asleep() == []
    group.rest()
    assert group.asleep() == ["1", "2", "3"]


@pytest.mark.parametrize("doing", ["write", "read", "transfer", "close"])
def test_whatever_a_leader_is_asked_for_wakes_its_group(doing):
    group = asleep_group()
    if doing == "write":
        group.propose("1", "y")
    elif doing == "read":
        group.read("1")
    elif doing == "close":
        group["1"].publish_closed(group.now(group.servers["1"]))
        group["1"].read_index()
    else:
        group["1"].transfer(TWO)
    group.settle()
    assert group.asleep() == []
    if doing == "write":
        assert group["1"].commit_index == group["1"].last.index == 3
    elif doing == "read":
        assert group.servers["1"].confirmed
    elif doing == "transfer":
        assert group["2"].is_leader
    leader = "2" if doing == "transfer" else "1"
    group.rest(leader)
    assert group.asleep() == ["1", "2", "3"]


# ---- who may fall asleep ----------------------------------------------------------------------------


def test_a_follower_with_a_shorter_log_does_not_take_the_offer():
    group = Group()
    group.elect("1")
    offer = AppendEntries(
        sender=ONE, to=TWO, term=1, hlc=9, previous=OpId(1, 1), commit=1, quiesce=True
    )
    group.propose("1", "x")
    group.settle(lambda m: m.to != "2")  # 2 lacks the last entry
    group.network.clear()
    group.deliver(altered(offer, previous=OpId(1, 2), commit=2))
    assert not group["2"].asleep
    assert not offered(group.network[-1])
    group.deliver(offer)
    assert group["2"].asleep
    assert offered(group.network[-1])


def test_a_follower_with_a_longer_log_does_not_take_a_late_offer():
    group = Group()
    group.elect("1")
    late = AppendEntries(
        sender=ONE, to=TWO, term=1, hlc=9, previous=OpId(1, 1), commit=1, quiesce=True
    )
    group.propose("1", "x")
    group.settle()
    group.beat()
    assert group["2"].status().applied == 2
    group.deliver(late)
    assert not group["2"].asleep


def test_a_follower_that_has_not_applied_or_written_everything_stays_up():
    group = Group()
    group.elect("1")
    group.servers["2"].disk.held = True
    group.propose("1", "x")
    group.settle()
    group.beat(times=IDLE + 3)
    assert group.asleep() == []
    offer = AppendEntries(
        sender=ONE, to=TWO, term=1, hlc=9, previous=OpId(1, 2), commit=2, quiesce=True
    )
    group.deliver(offer)
    assert not group["2"].asleep, "committed, but not on its own disk"
    group.servers["2"].disk.held = False
    group.sync("2")
    group.settle()
    group.rest()
    assert group.asleep() == ["1", "2", "3"]


@pytest.mark.parametrize("lagging", [True, False])
def test_a_leader_with_an_entry_in_flight_or_unwritten_stays_up(lagging):
    group = Group()
    group.elect("1")
    if lagging:
        group.propose("1", "x")
        for _ in range(IDLE + 3):
            group.tick("1", 2)
            group.settle(lambda m: m.to != "3")
            group.network.clear()
    else:
        group.servers["1"].disk.held = True
        group.propose("1", "x")
        group.settle()
        group.beat(times=IDLE + 3)
        assert group["1"].commit_index == 2, "the others hold it"
    assert group.asleep() == []


def test_a_leader_that_hands_over_stays_up():
    group = Group()
    group.elect("1")
    group["1"].transfer(TWO)
    group.network.clear()
    for _ in range(IDLE):
        group.tick("1", 2)
        group.settle(lambda m: type(m).__name__ != "TimeoutNow")
        assert not any(offered(m) for m in group.network)
    assert group.asleep() == []


# ---- lost and late messages -------------------------------------------------------------------------


def test_a_leader_falls_asleep_only_when_every_follower_has_said_that_it_sleeps():
    group = Group()
    group.elect("1")
    group.beat(times=IDLE - 1)
    for _ in range(5):  # the offers to 3 are lost
        group.tick("1", 2)
        lose_offers(group, "3")
        group.settle()
        assert group.asleep() == ["2"]
    group.rest()
    assert group.asleep() == ["1", "2", "3"]


def test_answers_to_offers_that_come_late_do_not_wake_the_leader():
    group = Group()
    group.elect("1")
    group.beat(times=IDLE)
    late = [
        AppendReply(sender=TWO, to=ONE, term=1, success=True, match=1, hint=OpId(1, 1), quiesce=q)
        for q in (True, False)
    ]
    group.rest()
    group.deliver(late[0])
    assert group.network == []
    assert group.asleep() == ["1", "2", "3"]
    group.deliver(late[1])
    assert not group["1"].asleep, "somebody is up"
    group.rest()
    assert group.asleep() == ["1", "2", "3"]


def test_an_answer_to_an_offer_of_before_the_last_write_does_not_count():
    group = Group()
    group.elect("1")
    group.beat(times=IDLE + 1)
    late = AppendReply(
        sender=THREE, to=ONE, term=1, success=True, match=1, hint=OpId(1, 1), quiesce=True
    )
    group.propose("1", "x")
    group.settle()
    group.beat(times=IDLE - 1)
    group.deliver(altered(late, hint=OpId(1, 2), match=2))  # of no offer that stands
    for _ in range(3):
        group.tick("1", 2)
        assert not group["1"].asleep
        lose_offers(group, "3")
        group.deliver(late)
        group.settle()
    assert not group["1"].asleep


def test_a_follower_that_is_up_is_seen_before_the_leader_sleeps():
    group = Group()
    group.elect("1")
    group.beat(times=IDLE)
    assert group.asleep() == ["2", "3"]
    heartbeat = AppendEntries(sender=ONE, to=TWO, term=1, hlc=9, previous=OpId(1, 1), commit=1)
    group.deliver(heartbeat)  # late: it wakes 2, whose answer says so
    group.settle()
    group.tick("1", 2)
    assert group.asleep() == ["3"]
    group.rest()
    assert group.asleep() == ["1", "2", "3"]


# ---- candidates, and terms --------------------------------------------------------------------------


def candidate(group, to, *, pre=True, override=False):
    last = group[to].last
    return RequestVote(sender=THREE, to=to, term=2, hlc=9, last=last, pre=pre, override=override)


def test_a_follower_refuses_a_candidate_in_its_sleep_and_a_leader_speaks_up():
    group = asleep_group()
    for pre in (True, False):
        group.deliver(candidate(group, "2", pre=pre))
        assert group["2"].asleep
        assert all(not m.granted for m in group.network)
        assert group["2"].term == 1
    group.network.clear()
    group.deliver(candidate(group, "1"))
    assert group.asleep() == ["2", "3"]
    group.tick("1")
    assert {m.to for m in group.network if isinstance(m, AppendEntries)} == {"2", "3"}


def test_a_leader_that_stands_for_election_leads_no_more():
    group = asleep_group()
    group.deliver(altered(candidate(group, "2"), sender=ONE))
    assert group.asleep() == ["1", "3"]
    assert not group.network[-1].granted, "it was heard of a moment ago"


def test_an_election_that_the_leader_ordered_is_not_slept_through():
    group = asleep_group()
    group.deliver(candidate(group, "2", pre=False, override=True))
    assert not group["2"].asleep
    assert group["2"].term == 2
    assert group.network[-1].granted


def test_a_message_of_an_earlier_term_wakes_nobody():
    group = asleep_group()
    group.deliver(AppendEntries(sender=THREE, to=TWO, term=0, previous=OpId(0, 0)))
    assert group["2"].asleep
    assert [(m.term, m.success) for m in group.network] == [(1, False)]


# ---- servers in doubt -------------------------------------------------------------------------------


def test_a_roused_follower_asks_its_leader_and_is_content_with_an_answer():
    group = asleep_group()
    group["2"].rouse()
    group.settle()
    assert group.asleep() == ["3"], "the leader heard of it"
    group.everyone_ticks(4)
    assert not group["2"].asleep
    assert group["2"].core.hears_leader
    group.everyone_ticks(40)
    assert group.asleep() == ["1", "2", "3"]
    assert group["1"].term == 1


def test_roused_followers_of_a_dead_leader_elect_one_within_an_election_timeout():
    group = asleep_group()
    group.crash("1")
    for u in "23":
        group[u].rouse()
        assert not group[u].core.hears_leader
    group.everyone_ticks(OPTIONS.election_ticks + 1)
    assert [u for u in "23" if group[u].is_leader]


def test_the_elections_of_roused_groups_are_spread():
    draw = random.Random(1)
    groups = [asleep_group(random=lambda _: draw.randrange) for _ in range(30)]
    for group in groups:
        group["2"].rouse()
    timeouts = {g["2"].core.timeout for g in groups}
    assert min(timeouts) >= 2
    assert max(timeouts) <= OPTIONS.election_ticks + 1
    assert len(timeouts) > OPTIONS.election_ticks // 2


def test_a_roused_leader_that_reaches_nobody_steps_down():
    group = asleep_group()
    group.crash("2")
    group.crash("3")
    group["1"].rouse()
    group.tick("1", 2 * OPTIONS.election_ticks)
    assert group["1"].core.stand is not Stand.LEADER


def test_rousing_who_is_up_does_nothing():
    group = Group()
    group.elect("1")
    for u in "123":
        before = (group[u].core.silent, group[u].core.timeout)
        group[u].rouse()
        assert (group[u].core.silent, group[u].core.timeout) == before
    assert group.network == []


# ---- a process that has ended -----------------------------------------------------------------------


def test_followers_who_are_told_that_their_leader_is_gone_elect_another_within_an_election_timeout():
    group = Group()
    group.elect("1")
    group.crash("1")
    for u in "23":
        assert group[u].lose(ONE)
        assert not group[u].core.hears_leader
        assert not group[u].lose(ONE), "told again"
    group.everyone_ticks(OPTIONS.election_ticks + 1)
    assert [u for u in "23" if group[u].is_leader]


def test_a_follower_told_wrongly_is_content_when_its_leader_speaks():
    group = Group()
    group.elect("1")
    assert group["2"].lose(ONE)
    group.settle()
    group.everyone_ticks(40)
    assert (group["1"].is_leader, group["1"].term) == (True, 1)
    assert group["2"].core.hears_leader


def test_a_follower_who_alone_takes_the_leader_for_gone_is_refused():
    group = Group()
    group.elect("1")
    assert group["2"].lose(ONE)
    group.network.clear()
    group.tick("2", OPTIONS.election_ticks + 1)
    group.settle()
    assert (group["1"].is_leader, group["1"].term, group["3"].term) == (True, 1, 1)


def test_the_end_of_another_than_the_leader_changes_nothing():
    group = Group()
    group.elect("1")
    before = [(group[u].core.silent, group[u].core.timeout) for u in "123"]
    assert not any(group[u].lose(THREE) for u in "123")
    assert not group["1"].lose(ONE)
    assert [(group[u].core.silent, group[u].core.timeout) for u in "123"] == before
    assert group.network == []


# ---- members that are not there ---------------------------------------------------------------------


def test_a_group_sleeps_without_an_absent_member_and_catches_it_up_when_roused():
    group = Group()
    group.elect("1")
    group.crash("3")
    group.propose("1", "x")
    group.settle()
    group.rest()
    assert group.asleep() == [], "it is waited for"
    group.absent = (THREE,)
    group.rest()
    assert group.asleep() == ["1", "2"]
    group.restart("3")
    group.absent = ()
    group["1"].rouse()
    group.rest()
    assert group["3"].last == group["1"].last
    assert group.asleep() == ["1", "2", "3"]


def test_a_group_sleeps_without_a_voter_that_is_silent_for_long_and_is_woken_by_it():
    """Its replica has FAILED, and its server lives."""
    group = Group()
    group.elect("1")
    group.crash("3")
    group.propose("1", "x")
    group.settle()
    group.beat(times=SILENT_TIMEOUTS * OPTIONS.election_ticks // OPTIONS.heartbeat_ticks - 1)
    assert group.asleep() == [], "it is waited for"
    group.rest()
    assert group.asleep() == ["1", "2"]
    group.propose("1", "y")
    group.rest()
    assert group.asleep() == ["1", "2"], "not again"
    group.restart("3")
    group.everyone_ticks(2 * OPTIONS.election_ticks)
    assert group["3"].last == group["1"].last
    group.rest()
    assert group.asleep() == ["1", "2", "3"]
    assert group["1"].term == 1, "and it disturbed nobody"


@pytest.mark.parametrize(
    "more", [{"nonvoters": "4"}, {"witnesses": "3"}], ids=["non-voter", "witness"]
)
def test_who_cannot_ask_for_votes_is_waited_for_while_its_server_lives(more):
    group = Group("123", **more)
    group.elect("1")
    gone = "4" if "4" in group.servers else "3"
    group.crash(gone)
    group.propose("1", "x")
    group.settle()
    group.beat(times=4 * SILENT_TIMEOUTS * OPTIONS.election_ticks // OPTIONS.heartbeat_ticks)
    assert group.asleep() == []


def test_a_leader_stays_up_until_who_was_removed_is_told_or_given_up():
    group = asleep_group()
    group.crash("3")
    group.change("1", Change(ChangeKind.REMOVE, Member(THREE, "3:1")))
    group.settle()
    group.rest()
    assert group.asleep() == [], "3 is asked still"
    group.beat(times=HEARTBEATS)
    assert group.asleep() == ["1", "2"]


def test_a_minority_does_not_sleep():
    group = Group()
    group.elect("1")
    group.absent = (TWO, THREE)
    group.beat(times=IDLE + 4)
    assert group.asleep() == []


def test_a_nonvoter_that_is_to_be_promoted_keeps_its_group_up():
    group = Group("123", nonvoters="4")
    group.elect("1")
    group.rest()
    assert group.asleep() == ["1", "2", "3", "4"]
    promoted = tuple(replace(m, promote=True) if not m.voter else m for m in group.config.members)
    group.config = replace(group.config, members=promoted)
    for u in "1234":
        group.crash(u)
    for u in "123":
        group.restart(u)
    group.elect("1")
    group.absent = (ServerUuid("4"),)
    group.rest()
    assert group.asleep() == []
    group.absent = ()
    group.restart("4")
    group.rest()
    group.rest()
    assert group["4"].status().config.voters == ("1", "2", "3", "4")
    assert group.asleep() == ["1", "2", "3", "4"]


# ---- at random --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_groups_that_sleep_and_wake_under_loss_doubling_and_crashes_keep_every_promise(seed):
    rng = random.Random(seed)
    group = Group("123", random=lambda _: rng.randrange)
    slept = 0
    for step in range(1500):
        draw = rng.random()
        names = [s.uuid for s in group.alive]
        if draw < 0.55 and group.network:
            message = group.network.pop(rng.randrange(len(group.network)))
            if rng.random() < 0.85:
                group.deliver(message)
            if rng.random() < 0.05:
                group.network.append(message)
        elif draw < 0.9 and names:
            group.tick(rng.choice(names))
        elif draw < 0.92 and names:
            group.propose(rng.choice(names), f"{step}")
        elif draw < 0.94 and names:
            group[rng.choice(names)].rouse()
        elif draw < 0.95 and names:
            group.absent = (rng.choice((ONE, TWO, THREE)),) if rng.random() < 0.5 else ()
        elif draw < 0.96 and len(names) == 3:
            group.crash(rng.choice(names))
        elif draw < 0.98:
            for u in "123":
                if not group.servers[u].alive:
                    group.restart(u)
        slept += len(group.asleep()) > 0
        group.check_all()
    group.absent = ()
    for u in "123":
        if not group.servers[u].alive:
            group.restart(u)
    for _ in range(100):  # the hosts wake whoever sleeps on a server that is in doubt
        for u in "123":
            group[u].rouse()
        group.everyone_ticks(10)
        leaders = [u for u in "123" if group[u].is_leader]
        if leaders and group.propose(leaders[-1], "last") is not None:
            group.everyone_ticks(20)
            if len({group[u].commit_index for u in "123"}) == 1:
                break
    group.everyone_ticks(60)
    assert group.asleep() == ["1", "2", "3"]
    assert len({group[u].last for u in "123"}) == 1
    assert slept


def test_a_new_eager_group_stands_at_once_and_sleeps_at_once_and_an_old_one_does_neither():
    least = OPTIONS.election_ticks
    group = Group(options=replace(OPTIONS, eager=True))
    waited = 0
    while not any(s.node.is_leader for s in group.alive):
        group.everyone_ticks(1)
        waited += 1
    assert waited < least, "nobody is disturbed: there never was a leader"
    (leader,) = [s for s in group.alive if s.node.is_leader]
    assert all(s.node.core.timeout >= least for s in group.alive if s is not leader)
    group.beat(leader.uuid, 3)
    assert group.asleep() == ["1", "2", "3"], "it has its first leader's entry and nothing else"
    leader.node.propose(b"x", leader.node.core.hlc + 1)
    group.work(leader)
    group.settle()
    group.beat(leader.uuid, 3)
    assert group.asleep() == []
    assert group.rest(leader.uuid).asleep() == ["1", "2", "3"]
