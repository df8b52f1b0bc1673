"""Progress of a peer that is full, that lost its log, or that needs a copy."""

from nyala.raft.progress import Flow, Progress
from tests.unit.raft.support.raft_harness import Cluster

ONE, TWO, THREE = "1", "2", "3"


def streaming(received: int, *sent: int) -> Progress:
    peer = Progress(1, now=0)
    peer.acknowledge(received, received)
    assert peer.flow is Flow.STREAM
    for last in sent:
        peer.sent(last, 100)
    return peer


def test_in_flight_entries_to_full_peer_are_resent_from_its_match():
    peer = streaming(4, 6, 9)
    peer.reading = True
    peer.mark_out_of_memory()
    assert (peer.out_of_memory, peer.next, peer.inflight_bytes) == (True, 5, 0)
    assert not peer.reading, "entries being read are not sent to a full peer"


def test_earlier_acknowledgements_of_peer_with_lost_log_are_discarded():
    peer = streaming(4)
    peer.round, peer.hlc, peer.needs_copy, peer.probe_match = 7, 900, True, True
    peer.reset(8)
    assert (peer.match, peer.received, peer.round, peer.hlc, peer.joined_round) == (0, 0, 0, 0, 8)
    assert not peer.needs_copy
    assert not peer.probe_match


def test_peer_with_all_entries_before_index_needs_no_copy():
    group = Cluster((ONE, TWO, THREE))
    group.elect(ONE)
    for payload in ("a", "b", "c"):
        group.propose(ONE, payload)
        group.settle(lambda m: THREE not in (m.to, m.sender))
    level = {str(p.uuid): p.match for p in group[ONE].status().peers}
    assert level[TWO] == 4 > level[THREE]
    group[ONE].mark_for_copy(level[THREE] + 1)
    assert not any(p.needs_copy for p in group[ONE].status().peers)
    group[ONE].mark_for_copy(level[THREE] + 2)
    assert [p.uuid for p in group[ONE].status().peers if p.needs_copy] == [THREE]


def test_constantly_lagging_member_with_progress_is_not_stuck():
    group = Cluster((ONE, TWO, THREE))
    group.elect(ONE)
    for _ in range(100):
        group.propose(ONE, "x")
        late, group.network = group.network, []
        group.tick(ONE)
        for message in late:
            group.deliver(message)
        peer = next(p for p in group[ONE].status().peers if p.uuid == TWO)
        assert peer.ticks_stuck <= 4
    assert peer.match < group[ONE].last.index
