"""Making a voter of a non-voter that has caught up, by rounds (dissertation 4.2.1).

A round ends when the member has, durably, all that the log held when the round began. One that took no longer
than an election timeout says that the rest will not take longer either: as a voter it would not hold up
commits for more than that. Any number of members catch up at once; they are promoted one by one, as every
other change of a voter (`changes.py`), and only while they answer.
"""

from dataclasses import replace

from nyala.common.ids import ServerUuid
from nyala.raft import changes, leader
from nyala.raft.changes import Change, ChangeKind
from nyala.raft.progress import CatchUp, Leadership
from nyala.raft.state import RaftCore


def tick(core: RaftCore, lead: Leadership) -> None:
    """Begin and end rounds, and promote the first member that is ready, when a change may begin."""
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
    assert member is not None, f"{uuid} is to be promoted, and not in {active}"
    voter = Change(ChangeKind.MODIFY, replace(member, voter=True, promote=False))
    changes.append(core, lead, changes.edited(active, [voter]), leader.own_stamp(core))
