"""Invariants that hold after every step, recomputed from the state (dissertation figure 3.2).

Called by tests and the simulator; nothing is changed. Invariants over several members (one leader per term,
log matching, committed entries stay) take all nodes.
"""

from collections.abc import Iterable, Sequence

from nyala.raft import membership
from nyala.raft.messages import Entry, EntryKind
from nyala.raft.node import RaftNode
from nyala.raft.progress import Flow
from nyala.raft.state import RaftCore, RaftState


def check(node: RaftNode) -> None:
    """Check one member.

    Raises:
        AssertionError: an invariant is violated; the message has the values.
    """
    core = node.core
    _check_log(core)
    _check_role(core)
    if core.leadership is not None:
        _check_leader(core)
    if core.quiesced and not core.dirty:  # a pending input wakes it in its next `ready()`
        _check_asleep(core)


def _check_log(core: RaftCore) -> None:
    log, what = core.log, f"{core.uuid}: {core.log!r}"
    assert log.base.index <= log.applied <= log.handed_apply <= log.committed <= log.last.index, (
        what
    )
    assert log.handed_apply <= log.stable <= log.handed <= log.last.index, what
    assert log.first_cached <= log.applied + 1 or log.first_cached <= log.committed + 1, what
    assert core.term >= log.last.term, f"term {core.term} is below the log's: {what}"
    entries = log.slice(log.first_cached, 1 << 62)
    assert entries is not None, what
    before, stamp = log.op_id(log.first_cached - 1), log.stamp(log.first_cached - 1)
    for entry in entries:
        assert entry.id.index == before.index + 1, f"gap at {entry.id}: {what}"
        assert entry.id.term >= before.term, f"terms fall at {entry.id}: {what}"
        assert log.term(entry.id.index) == entry.id.term, f"runs differ at {entry.id}: {what}"
        assert entry.stamp > stamp, f"stamps fall at {entry.id}: {what}"
        before, stamp = entry.id, entry.stamp
    assert (before, stamp) == (log.last, log.last_stamp), what
    assert core.configs.committed.id.index <= min(log.committed, log.stable), what
    _check_configs(core, entries, what)
    assert log.committed <= core.verified <= log.last.index or core.leadership is not None, what


def _check_configs(core: RaftCore, entries: Sequence[Entry], what: str) -> None:
    """Check that the active configuration is the last one in the log (4.1)."""
    active = core.configs.active
    assert active.id.index <= core.log.last.index, what
    logged = [e for e in entries if e.kind is EntryKind.CONFIG]
    if logged and logged[-1].id.index > core.configs.committed.id.index:
        last = membership.decode(logged[-1].payload, logged[-1].id)
        assert active == last, f"{active} is active, and {last} the last in {what}"
    elif active is not core.configs.committed:
        assert active.id.index < core.log.first_cached, f"{active} is not in {what}"


def _check_role(core: RaftCore) -> None:
    what = f"{core.uuid}: {core.state} in term {core.term}, leader {core.leader}, vote {core.hard.vote}"
    assert (core.state is RaftState.LEADER) == (core.leadership is not None), what
    assert (core.state is RaftState.LEADER) == (core.leader == core.uuid), what
    if core.state in (RaftState.CANDIDATE, RaftState.LEADER):
        assert core.hard.vote == core.uuid, what
    if core.state is not RaftState.FOLLOWER:
        assert core.may_campaign, what
    assert core.durable_version <= core.version_out <= core.version, what
    assert core.role is core.role_now(), f"{core.role}: {what}"
    if core.state is RaftState.LEADER:
        assert core.configs.active.may_lead(core.uuid), f"{core.configs.active}: {what}"
    assert core.suffix_candidate is None or not core.may_campaign, what


def _check_leader(core: RaftCore) -> None:
    lead = core.leadership
    assert lead is not None
    assert core.log.term(lead.first) == core.log.last.term == core.term, (
        f"{core.log!r} {lead.first}"
    )
    members = {m.uuid for m in core.configs.active.members}
    assert set(lead.peers) == members - {core.uuid}, f"{set(lead.peers)} of {members}"
    assert not members & set(lead.removed), f"{set(lead.removed)} leave, and are of {members}"
    for uuid, peer in lead.peers.items():
        what = f"{uuid}: {peer.match} {peer.received} {peer.next} {peer.flow} {core.log!r}"
        assert peer.match <= peer.received < peer.next <= core.log.last.index + 1, what
        assert peer.inflight_bytes == sum(size for _, size in peer.inflight), what
        assert peer.flow is Flow.STREAM or not peer.inflight, what
    assert [r.number for r in lead.rounds] == sorted({r.number for r in lead.rounds}), lead.rounds


def _check_asleep(core: RaftCore) -> None:
    what = f"{core.uuid} is quiesced: {core.state}, leader {core.leader}, {core.log!r}"
    assert core.state in (RaftState.LEADER, RaftState.FOLLOWER), what
    assert core.leader is not None, what
    assert core.log.applied == core.log.committed == core.log.stable == core.log.last.index, what
    lead = core.leadership
    assert lead is None or not (lead.rounds or lead.transfer), what


def check_group(nodes: Iterable[RaftNode]) -> None:
    """Check each member, and the log matching property (3.5: logs with the same op id agree up to it).

    Raises:
        AssertionError: an invariant is violated; the message has the values.
    """
    together = list(nodes)
    for node in together:
        check(node)
    leaders: dict[int, str] = {}
    for node in together:
        if node.is_leader:
            other = leaders.setdefault(node.term, node.core.uuid)
            assert other == node.core.uuid, f"{other} and {node.core.uuid} lead term {node.term}"
    for position, one in enumerate(together):
        for other_node in together[position + 1 :]:
            _check_matching(one.core, other_node.core)


def _check_matching(one: RaftCore, other: RaftCore) -> None:
    low = max(one.log.base.index, other.log.base.index)
    high = min(one.log.last.index, other.log.last.index)
    committed = min(one.log.committed, other.log.committed)
    same = False
    for index in range(high, low, -1):
        equal = one.log.term(index) == other.log.term(index)
        what = f"{one.uuid} {one.log!r} and {other.uuid} {other.log!r} differ at {index}"
        assert equal or not same, f"logs do not match: {what}"
        assert equal or index > committed, f"committed entries differ: {what}"
        same = equal
