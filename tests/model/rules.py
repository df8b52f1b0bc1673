"""Rules that hold in every state, and the history that they need, as plain values.

A `Face` has the part of a member that rules read. A `Past` has the history: leaders by term, and all entries
known to be committed, with the term in which they became known. Dissertation figure 3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nyala.common.ids import OpId
from nyala.raft import quorum
from nyala.raft.messages import EntryKind
from nyala.raft.state import RaftState
from tests.model.member import Member


@dataclass(frozen=True, slots=True)
class Face:
    """One member as the rules see it: `log` in memory, `disk` after a crash."""

    uuid: str
    term: int
    leads: bool
    may_lead: bool
    voters: tuple[str, ...]
    log: tuple[OpId, ...]
    committed: int
    disk: tuple[OpId, ...]
    votes: tuple[int, str | None]


@dataclass(frozen=True, slots=True)
class Past:
    """Leaders and commits of all earlier states and this one."""

    leaders: tuple[tuple[int, str], ...] = ()
    committed: tuple[tuple[OpId, int], ...] = ()  # (entry, term in which it was known) by index


def face(member: Member) -> Face:
    """Check a member's own rules; return its face."""
    core = member.node.core
    entries = core.log.slice(core.log.first_cached, 1 << 62) or ()
    configs = [e.id for e in entries if e.kind is EntryKind.CONFIG]
    newest = configs[-1] if configs else member.config.id
    assert core.configs.active.id == newest, (
        f"{core.uuid} uses the configuration of {core.configs.active.id}, its log's last is {newest}"
    )
    before = 0
    for entry in entries:
        assert entry.stamp > before, f"{core.uuid}: stamps fall at {entry.id}"
        before = entry.stamp
    return Face(
        core.uuid,
        core.term,
        core.state is RaftState.LEADER,
        core.may_campaign,
        tuple(core.voters),
        tuple(e.id for e in entries),
        core.log.committed,
        tuple(e.id for e in member.log),
        (member.hard.term, member.hard.vote),
    )


def remember(past: Past, one: Face) -> Past:
    """Add a member's face to the history.

    Raises:
        AssertionError: it contradicts the history.
    """
    leaders, committed = past.leaders, past.committed
    if one.leads:
        known = dict(leaders)
        other = known.setdefault(one.term, one.uuid)
        assert other == one.uuid, f"one leader a term: {other} and {one.uuid} led term {one.term}"
        leaders = tuple(sorted(known.items()))
    for index in range(one.committed):
        op = one.log[index]
        if index < len(committed):
            known_op = committed[index][0]
            assert known_op == op, (
                f"state-machine safety: {one.uuid} commits {op}, committed was {known_op}"
            )
        else:
            committed = (*committed, (op, one.term))
    return Past(leaders, committed)


def check(past: Past, faces: Sequence[Face], fixed: bool) -> None:
    """Check all members together.

    Args:
        past: history, including these faces.
        faces: faces of all members.
        fixed: whether the configuration never changes, so that majorities are known.

    Raises:
        AssertionError: with the rule's name and the values.
    """
    for one in faces:
        for op, known in past.committed:
            lacks = op.index > len(one.log) or one.log[op.index - 1] != op
            if one.leads and one.term > known:
                assert not lacks, f"leader completeness: {one.uuid} leads {one.term} without {op}"
    for position, one in enumerate(faces):
        for other in faces[position + 1 :]:
            _matching(one, other)
    if fixed:
        _kept(past, faces)


def _matching(one: Face, other: Face) -> None:
    same = False
    for left, right in zip(reversed_common(one, other), reversed_common(other, one), strict=True):
        assert left == right or not same, (
            f"log matching: {one.uuid} {left} and {other.uuid} {right}"
        )
        same = left == right


def reversed_common(one: Face, other: Face) -> tuple[OpId, ...]:
    """Return the op ids at the indexes that both have, the last first."""
    return one.log[: min(len(one.log), len(other.log))][::-1]


def _kept(past: Past, faces: Sequence[Face]) -> None:
    """Committed entries are on a majority's disks, and on every member that a majority may elect."""
    voters = next(f.voters for f in faces if f.uuid in f.voters)
    needed = quorum.majority(len(voters))
    counted = [f for f in faces if f.uuid in voters]
    for op, _ in past.committed:
        held = [f.uuid for f in counted if op in f.disk]
        assert len(held) >= needed, f"committed {op} is durable only at {held}"
        for one in counted:
            if not one.may_lead or op in one.log:
                continue
            last = one.log[-1] if one.log else OpId(0, 0)
            grants = sum((f.log[-1] if f.log else OpId(0, 0)) <= last for f in counted)
            assert grants < needed, f"committed {op} would be lost: {one.uuid} can be elected"
