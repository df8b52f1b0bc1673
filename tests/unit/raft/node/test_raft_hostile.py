"""Arbitrary bytes from outside are refused as damage, and change nothing."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nyala.common.errors import Corrupt
from nyala.common.ids import OpId, ServerUuid
from nyala.raft import membership
from nyala.raft.membership import Member, initial
from nyala.raft.messages import AppendEntries, AppendReply, Entry, EntryKind, HardState
from nyala.raft.node import RaftNode
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from tests.unit.raft.support.raft_harness import Cluster

A, B = (ServerUuid(u) for u in "12")
CONFIG = initial(Member(u, f"{u}:1") for u in (A, B))

GOOD = membership.encode(initial([Member(A, "a:1", "a:2"), Member(B, "b:1", electable=False)]))


@given(
    st.one_of(
        st.binary(max_size=60),
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 20), st.binary(max_size=8)).map(
            lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]
        ),
    )
)
@example(GOOD.replace(b"a:1", b"a\xff1"))
@example(b'[{"uuid":"a","peer_address":"b","x":' + b"[" * 2000)
def test_malformed_configuration_bytes_are_damage(payload):
    try:
        assert membership.decode(payload, OpId(3, 4)).id == OpId(3, 4)
    except Corrupt:
        member = RaftNode(A, CONFIG, HardState(), random=lambda n: 0)
        before = member.status()
        message = AppendEntries(
            sender=B,
            to=A,
            term=9,
            entries=(Entry(OpId(1, 1), 1, EntryKind.CONFIG, payload),),
        )
        with pytest.raises(Corrupt):
            member.step(message, 0)
        assert member.status() == before


@pytest.mark.parametrize("acknowledged", [{"match": 50}, {"hint": OpId(1, 50)}])
def test_removed_member_cannot_acknowledge_entries_that_do_not_exist(acknowledged):
    group = Cluster("123")
    group.elect("1")
    leader, stamp = group["1"], group["1"].last_stamp + 1
    gone = leader.config.get(ServerUuid("3"))
    assert gone is not None
    leader.change_config([Change(ChangeKind.REMOVE, gone)], stamp)
    group.settle(lambda m: "3" not in (m.to, m.sender))
    assert leader.commit_index == leader.last.index
    answer = AppendReply(
        sender=ServerUuid("3"), to=A, term=leader.term, success=True, round=99, **acknowledged
    )
    with pytest.raises(Corrupt, match="acknowledges"):
        leader.step(answer, stamp)
