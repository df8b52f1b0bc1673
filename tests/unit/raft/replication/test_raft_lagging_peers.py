"""Members that a leader releases for a copy when the log is too large for the entries they lack."""

from nyala.common.ids import ServerUuid
from nyala.raft.messages import AnyMessage, AppendEntries, AppendReply
from nyala.raft.options import RaftOptions
from nyala.raft.roles.quiescence import SILENT_TIMEOUTS
from tests.unit.raft.support.raft_harness import Cluster, altered

ONE, TWO, THREE, FOUR, FIVE = "1", "2", "3", "4", "5"


def needing_copies(group: Cluster, leader: str = ONE) -> list[str]:
    return [str(p.uuid) for p in group[leader].status().peers if p.needs_copy]


def write(group: Cluster, leader: str, count: int, *, without: tuple[str, ...] = ()) -> None:
    """Replicate entries; messages to some members are lost."""
    for _ in range(count):
        group.propose(leader, "x")
        group.settle(lambda m: m.to not in without)
        group.network.clear()


def votes_only(group: Cluster, leader: str) -> None:
    """Elect another leader that has no answers yet."""
    for other in group.alive:
        other.node.core.ticks_since_leader = group.options.election_ticks
    for _ in range(3):
        if not group[leader].is_leader:
            group.tick(leader, group[leader].core.timeout - group[leader].core.elapsed)
            group.settle(lambda m: not isinstance(m, AppendEntries))
    assert group[leader].is_leader
    group.network.clear()


def led_anew(options: RaftOptions | None = None) -> Cluster:
    """Return a group with a new leader, 1, without answers yet; the log of 3 is behind."""
    group = Cluster((ONE, TWO, THREE), options=options)
    group.elect(TWO)
    write(group, TWO, 5, without=(THREE,))
    votes_only(group, ONE)
    return group


def test_furthest_lagging_peers_are_abandoned_first():
    group = Cluster((ONE, TWO, THREE, FOUR, FIVE))
    group.elect(ONE)
    write(group, ONE, 2, without=(FOUR, FIVE))
    group.heartbeat(ONE)
    group.heartbeat(ONE)
    write(group, ONE, 3, without=(FIVE,))
    group.heartbeat(ONE)
    write(group, ONE, 3, without=(FOUR, FIVE))
    match = {str(p.uuid): p.match for p in group[ONE].status().peers}
    assert match[FIVE] < match[FOUR] < match[TWO] == match[THREE]
    end = group[ONE].last.index + 1
    group[ONE].mark_for_copy(end)
    assert needing_copies(group) == [FIVE]
    assert group[ONE].view.retain_index == match[FOUR] + 1
    group[ONE].mark_for_copy(end)
    assert needing_copies(group) == [FOUR, FIVE]
    group[ONE].mark_for_copy(end)
    assert needing_copies(group) == [FOUR, FIVE], "the other members have caught up"


def test_new_leader_abandons_no_peer_before_hearing_from_it():
    group = led_anew()
    end = group[ONE].last.index + 1
    group[ONE].mark_for_copy(end)
    assert needing_copies(group) == [], "both members may have caught up"
    assert group[ONE].view.retain_index == 1
    grace = SILENT_TIMEOUTS * group.options.election_ticks
    for _ in range(grace - 1):
        group.tick(ONE)
        group.settle(lambda m: THREE not in (m.to, m.sender))
        group.network = []
        group[ONE].mark_for_copy(end)
        assert needing_copies(group) == []
    group.tick(ONE)
    group[ONE].mark_for_copy(end)
    assert needing_copies(group) == [THREE], "the member has not answered for long"


def test_new_leader_abandons_known_lagging_peer_at_once():
    group = led_anew()
    end = group[ONE].last.index + 1
    group.tick(ONE, group.options.heartbeat_ticks)
    # the answer to the refused probe has the index at which the logs diverge; no match is known yet
    group.settle(lambda m: THREE in (m.to, m.sender) and not _resent(m))
    assert [p.ticks_silent for p in group[ONE].status().peers if p.uuid == THREE] == [0]
    group[ONE].mark_for_copy(end)
    assert needing_copies(group) == []
    batch, group.network = group.network, []
    for message in batch:
        if message.to == THREE:
            group.deliver(altered(message, entries=()))
    group.settle(lambda m: m.to == ONE and isinstance(m, AppendReply))
    group[ONE].mark_for_copy(end)
    assert needing_copies(group) == [THREE]


def _resent(message: AnyMessage) -> bool:
    """True for a message sent since the leader knows at which index the logs diverge."""
    return isinstance(message, AppendEntries) and message.previous.index < 2


def test_peer_absent_during_quiescence_is_abandoned_without_ticks():
    group = led_anew(RaftOptions(quiesce_heartbeats=2))
    group.crash(THREE)
    server = group.servers[ONE]
    for _ in range(20):
        server.node.tick(group.now(server), (ServerUuid(THREE),))
        group.work(server)
        group.settle()
    assert group[ONE].quiesced
    group[ONE].mark_for_copy(group[ONE].last.index + 1)
    assert needing_copies(group) == [THREE]
