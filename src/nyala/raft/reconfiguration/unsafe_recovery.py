"""Unsafe recovery: a group whose majority is lost for good continues with the surviving members.

A survivor acts as if a leader of a later term had sent it one more entry: a configuration of survivors only.
The surviving logs agree about it as about any other entry; it replaces a pending change and needs no restart.
The survivor's log becomes authoritative; entries that only the lost members had are lost. The lost members
are named in the configuration, and their messages are ignored: if they returned as a majority they would lead
and truncate the recovered log. They rejoin by being deleted, added and copied as new members; one that is
added with its old replica fails as soon as the leader's log conflicts with its committed entries
(`roles/follower.py`).
"""

from collections.abc import Sequence

from nyala.common.errors import InvalidArgument
from nyala.common.ids import OpId, ServerUuid
from nyala.raft import membership
from nyala.raft.membership import Configuration
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.raft.roles import quiescence
from nyala.raft.state import RaftCore

TERM_GAP = 500_000
"""Number of terms that a tool skips between the highest that it finds and that of the recovery.

The lost members need days of elections to reach it. If both used the same term, different entries would have
the same op id, and a lost member that returns with its old log would seem to agree.
"""


def surviving_config(core: RaftCore, keep: Sequence[ServerUuid]) -> Configuration:
    """Return the committed configuration reduced to `keep`, without an id; the others are listed as lost.

    Raises:
        InvalidArgument: `keep` is empty, names a server twice or one that is not in the committed
            configuration, or this server is not kept or may not lead.
    """
    committed, active = core.configs.committed, core.configs.active
    known = [m.uuid for m in committed.members]
    strangers = [u for u in keep if u not in known]
    if strangers or not keep or len(set(keep)) != len(keep):
        raise InvalidArgument(
            f"keep some members of the committed configuration of {committed.id}, each named once: "
            f"{', '.join(known)}; not {', '.join(strangers or keep) or 'none'}"
        )
    if core.uuid not in keep or not committed.may_lead(core.uuid):
        raise InvalidArgument(
            f"{core.uuid} must be kept and be a voter with data, because it will lead; send this to "
            "another surviving replica"
        )
    removed = {m.uuid for m in (*committed.members, *active.members)} - set(keep)
    return membership.initial(
        [m for m in committed.members if m.uuid in keep], {*active.lost, *removed}
    )


def change_config(core: RaftCore, keep: Sequence[ServerUuid], stamp: int, term: int) -> OpId:
    """Append the configuration of survivors in a new term; see `RaftNode.unsafe_change_config`.

    Args:
        core: Raft state of a surviving member.
        keep: members of the committed configuration to keep, this one among them.
        stamp: timestamp of the entry.
        term: term of the entry, unless this member's next term is higher.

    Returns:
        Op id of the configuration; of the active one if it is the same already.

    Raises:
        InvalidArgument: see `surviving_config`; nothing was changed.
    """
    after = surviving_config(core, keep)
    active = core.configs.active
    if active.members == after.members and active.lost == after.lost:
        return active.id
    if core.quiesced:
        quiescence.wake(core)
    term = max(term, core.term + 1)
    core.become_follower(term, None)
    core.set_hard_state(HardState(term, core.uuid))  # as if it had won the election of this term
    op = OpId(term, core.log.last.index + 1)
    core.append(Entry(op, stamp, EntryKind.CONFIG, membership.encode(after)))
    core.ticks_since_leader = core.options.election_ticks
    core.reset_timer()
    return op
