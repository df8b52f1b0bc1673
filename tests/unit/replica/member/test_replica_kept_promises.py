"""State that a replica must still have when it restarts, or starts as a copy."""

from dataclasses import replace

from nyala.common.errors import LogGap
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.membership import Member, initial
from nyala.raft.messages import HardState, RequestVote, VoteReply
from nyala.raft.node import RaftNode
from nyala.replica.copy.protocol import CopyOffer
from nyala.replica.copy.target import initial_hard_state
from nyala.replica.status import State
from nyala.replica.superblock import ReplicaStage, Superblock
from nyala.wal.cmeta import ConsensusMetadata
from tests.unit.replica.support.replica_support import GROUP, scenario


@scenario()
async def test_log_ending_before_committed_configuration_has_lost_tail(fleet):
    """The metadata have a committed entry; no other file has the end of the log."""
    for _ in range(3):
        await fleet.write(b"k 1")
    await fleet.settled()
    last = fleet.replica(0).status().last
    fleet.processes[0].kill()
    metadata = ConsensusMetadata(fleet.processes[0].disk.mount(), "/data")
    saved = metadata.load(GROUP)
    assert saved is not None
    metadata.save(GROUP, saved[0], replace(saved[1], id=OpId(last.term, last.index + 1)))
    await fleet.boot(0)
    replica = fleet.replica(0)
    assert replica.state is State.FAILED
    assert isinstance(replica.error, LogGap)
    assert "known to be committed" in replica.error.message


A, B, C = (ServerUuid(u) for u in "abc")


def asked(promise: HardState, candidate: ServerUuid, term: int) -> bool:
    """Return True if a copy that begins with this hard state votes for a candidate whose log is no older."""
    members = initial(Member(u, f"{u}:9") for u in (A, B, C))
    node = RaftNode(C, members, promise, random=lambda n: 0)
    node.step(RequestVote(sender=candidate, to=C, term=term, last=OpId(term, 9)), 1)
    (out,) = node.ready().send
    assert isinstance(out.message, VoteReply)
    return out.message.granted


def offer(leader: ServerUuid | None) -> CopyOffer:
    members = initial(Member(u, f"{u}:9") for u in (A, B, C))
    return CopyOffer("s", 1000, NO_OP, 0, (), members, 5, leader)


def test_copied_replica_casts_no_second_vote_in_source_term():
    """The copy may replace a replica whose lost vote elected that leader: two leaders would be possible."""
    promise = initial_hard_state(offer(A), OpId(4, 9), None)
    assert promise == HardState(5, A)
    assert not asked(promise, B, 5)
    assert asked(promise, A, 5)
    assert asked(promise, B, 6)


def test_tombstone_vote_and_op_id_are_never_reset():
    def tombstone(hard: HardState) -> Superblock:
        return Superblock(GROUP, ReplicaStage.TOMBSTONED, hard, votes=True)

    assert initial_hard_state(offer(A), NO_OP, tombstone(HardState(7, B))) == HardState(7, B)
    assert initial_hard_state(offer(A), NO_OP, tombstone(HardState(5, B))) == HardState(5, B)
    assert initial_hard_state(offer(A), NO_OP, tombstone(HardState(5))) == HardState(5, A)
    assert initial_hard_state(offer(A), NO_OP, tombstone(HardState(4, B))) == HardState(5, A)
    assert initial_hard_state(offer(None), OpId(6, 1), None) == HardState(6)
