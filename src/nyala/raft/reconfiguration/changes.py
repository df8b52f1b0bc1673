"""Membership changes of one voter at a time (dissertation 4.1, 4.2): their effect, and when one may begin.

A change is one CONFIG entry that holds the whole new configuration; it is active from the moment it is in the
log. It is refused while an earlier change is not committed, and until the leader has committed an entry of
its own term: otherwise changes of two leaders could both succeed with majorities that do not overlap. A
leader never commits its own removal: it transfers leadership first and names its successor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nyala.common.errors import CasFailed, InvalidArgument, NotLeader, Unavailable
from nyala.common.ids import OpId, ServerUuid
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import Entry, EntryKind
from nyala.raft.progress import Leadership
from nyala.raft.roles import election, leader, reads
from nyala.raft.state import RaftCore


class ChangeKind(Enum):
    """Kind of a change."""

    ADD = "add"
    REMOVE = "remove"
    MODIFY = "modify"


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of a configuration. A REMOVE uses the member's uuid only."""

    kind: ChangeKind
    member: Member


def edited(config: Configuration, changes: Sequence[Change]) -> Configuration:
    """Return `config` with all `changes` applied; its id stays the same.

    Raises:
        InvalidArgument: no change, a server named twice, unknown or already a member, more than one voter
            added or removed, or no voter left that may lead.
    """
    members = {m.uuid: m for m in config.members}
    named: set[ServerUuid] = set()
    for change in changes:
        uuid = change.member.uuid
        if not uuid or uuid in named:
            raise InvalidArgument(
                f"a configuration change names the server {uuid!r} twice, or no server; send one "
                "edit for each server"
            )
        named.add(uuid)
        if (change.kind is ChangeKind.ADD) == (uuid in members):
            presence = "already" if uuid in members else "not"
            raise InvalidArgument(
                f"cannot {change.kind.value} {uuid}: it is {presence} in the configuration of {config.id}; "
                "read the configuration again from the leader"
            )
        if change.kind is ChangeKind.REMOVE:
            del members[uuid]
        else:
            members[uuid] = change.member
    after = replace(membership.initial(members.values(), config.lost), id=config.id)
    _check_voters(config, after, changes)
    return after


def _check_voters(config: Configuration, after: Configuration, changes: Sequence[Change]) -> None:
    if not changes:
        raise InvalidArgument("a configuration change needs at least one edit; add one")
    moved = sorted(set(config.voters) ^ set(after.voters))
    if len(moved) > 1:
        raise InvalidArgument(
            f"a change may add or remove one voter, not {len(moved)} ({', '.join(moved)}): two majorities "
            "might not overlap; send one change after the other"
        )
    if not any(after.may_lead(m.uuid) for m in after.members):
        raise InvalidArgument("a configuration needs at least one voter that may lead")


def change(
    core: RaftCore, changes: Sequence[Change], stamp: int, expected: OpId | None = None
) -> OpId:
    """Append a changed configuration, which is active at once. Raises as `RaftNode.change_config`.

    Args:
        core: Raft state of the leader.
        changes: at most one for each server.
        stamp: timestamp of the entry.
        expected: op id that the active configuration must have; None: any.

    Returns:
        Op id of the configuration.
    """
    lead = core.leadership
    if lead is None:
        raise NotLeader(
            f"{core.uuid} does not lead its group; ask the leader to change its members",
            {"leader": core.leader} if core.leader else None,
        )
    if lead.transfer is not None:
        raise _stepping_down(core, lead.transfer.to)
    if why := _reason_to_wait(core, lead):
        raise Unavailable(f"{why}; retry")
    active = core.configs.active
    if expected is not None and expected != active.id:
        raise CasFailed(
            f"the configuration is that of {active.id}, not of {expected}: another change came first; "
            "read it again and repeat the decision",
            {"expected": str(expected), "found": str(active.id)},
        )
    after = edited(active, changes)
    if not after.may_lead(core.uuid):
        successor = most_up_to_date(core, lead)
        election.transfer(core, successor)
        raise _stepping_down(core, successor)
    return append(core, lead, after, stamp)


def _stepping_down(core: RaftCore, successor: ServerUuid) -> NotLeader:
    return NotLeader(
        f"{core.uuid} is transferring leadership to {successor} first; send the change to the new leader",
        {"reason": "STEPPING_DOWN", "leader": successor},
    )


def _reason_to_wait(core: RaftCore, lead: Leadership) -> str:
    """Return why no change may begin now; empty: one may."""
    if core.configs.pending:
        return f"the configuration of {core.configs.active.id} is not committed yet"
    if core.log.committed < lead.first:
        return f"the leader of term {core.term} has not committed an entry of its own yet"
    return ""


def may_begin(core: RaftCore, lead: Leadership) -> bool:
    """Return whether a change may begin now."""
    return lead.transfer is None and not _reason_to_wait(core, lead)


def append(core: RaftCore, lead: Leadership, after: Configuration, stamp: int) -> OpId:
    """Append a configuration, update the peers accordingly, and return its op id.

    Args:
        core: Raft state of the leader.
        lead: its leadership.
        after: the configuration.
        stamp: timestamp of the entry.
    """
    assert may_begin(core, lead), f"a change on top of another: {core.configs.active}"
    assert stamp > core.closed, f"stamp {stamp} is at or below the closed time {core.closed}"
    op = OpId(core.term, core.log.last.index + 1)
    core.append(Entry(op, stamp, EntryKind.CONFIG, membership.encode(after)))
    core.round += 1
    reads.drop_lease(core, lead)
    leader.update_peers(core, lead)
    core.dirty = True
    return op


def most_up_to_date(core: RaftCore, lead: Leadership) -> ServerUuid:
    """Return the best successor: one that replies, then the one with the most of the log (3.10).

    Raises:
        InvalidArgument: no other member may lead.
    """
    alive_since = core.ticks - core.options.election_ticks

    def fitness(uuid: ServerUuid) -> tuple[bool, int, int]:
        peer = lead.peers[uuid]
        return (peer.last_reply_at >= alive_since, peer.match, peer.last_reply_at)

    able = [u for u in lead.peers if core.configs.active.may_lead(u)]
    if not able:
        raise InvalidArgument(
            f"{core.uuid} leads, and no other member may lead; make one an electable voter first"
        )
    return max(able, key=fitness)
