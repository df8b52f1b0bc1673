"""Promotion of non-voters that have caught up, by rounds (dissertation 4.2.1).

A round ends when the member has, durably, all entries that the log had at the start of the round. A round
within one election timeout shows that the member keeps up: as a voter it would delay commits by no more than
that. Any number of members catch up at once; they are promoted one by one, like every change of a voter
(`changes.py`), and only while they reply.
"""

from dataclasses import replace

from nyala.common.ids import ServerUuid
from nyala.raft.progress import CatchUp, Leadership
from nyala.raft.reconfiguration import changes
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.raft.roles import leader
from nyala.raft.state import RaftCore


def tick(core: RaftCore, lead: Leadership) -> None:
    """Start and end catch-up rounds, and promote the first member that is ready, if a change may begin."""
    ready = [uuid for uuid in core.configs.active.promoting if _caught_up(core, lead, uuid)]
    if ready and changes.may_begin(core, lead):
        _promote(core, lead, ready[0])


def _caught_up(core: RaftCore, lead: Leadership, uuid: ServerUuid) -> bool:
    peer = lead.peers[uuid]
    current = lead.catch_ups.get(uuid)
    if current is not None and peer.match < current.target:
        return False
    lead.catch_ups[uuid] = CatchUp(core.log.last.index, core.ticks)
    longest = core.options.election_ticks
    return (
        current is not None
        and core.ticks - current.began <= longest
        and core.ticks - peer.last_reply_at <= longest
    )


def _promote(core: RaftCore, lead: Leadership, uuid: ServerUuid) -> None:
    active = core.configs.active
    member = active.get(uuid)
    assert member is not None, f"{uuid} is to be promoted but is not in {active}"
    voter = Change(ChangeKind.MODIFY, replace(member, voter=True, promote=False))
    changes.append(core, lead, changes.edited(active, [voter]), leader.own_stamp(core))
