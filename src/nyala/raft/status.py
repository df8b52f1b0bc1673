"""Status of a node: roles, and one immutable snapshot for listings."""

from enum import StrEnum

import msgspec

from nyala.common.ids import OpId, ServerUuid
from nyala.raft.membership import Configuration


class Role(StrEnum):
    """Role of a replica in its group."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"
    LEARNER = "LEARNER"
    """A non-voter."""
    NON_PARTICIPANT = "NON_PARTICIPANT"
    """Not in the configuration that it knows: removed, or not added yet."""


ROLE_TRANSITIONS: frozenset[tuple[Role, Role]] = frozenset(
    {
        (Role.NON_PARTICIPANT, Role.LEARNER),  # a configuration names it a non-voter
        (Role.NON_PARTICIPANT, Role.FOLLOWER),  # ... or a voter at once
        (Role.LEARNER, Role.FOLLOWER),  # promoted
        (Role.FOLLOWER, Role.LEARNER),  # demoted (S1.49), or its promotion was rolled back
        (Role.FOLLOWER, Role.CANDIDATE),
        (Role.CANDIDATE, Role.LEADER),
        (Role.CANDIDATE, Role.FOLLOWER),
        (Role.LEADER, Role.FOLLOWER),
        (Role.FOLLOWER, Role.NON_PARTICIPANT),  # removed, or its addition was rolled back
        (Role.LEARNER, Role.NON_PARTICIPANT),
    }
)
"""All possible transitions; a candidate or leader becomes a follower before its removal is active."""


class PeerStatus(msgspec.Struct, frozen=True):
    """Progress of one peer, as its leader knows it.

    Attributes:
        uuid: the peer.
        match: last index known to be durable there and to agree with the leader's log.
        next: the index that is sent next.
        inflight_bytes: entries sent and not acknowledged.
        ticks_silent: ticks since it last answered in this term.
        needs_copy: it lacks entries that the leader's log no longer holds.
        out_of_memory: its server has no memory for entries now.
        ticks_stuck: ticks since its match index last grew, while it lacks entries.
    """

    uuid: ServerUuid
    match: int
    next: int
    inflight_bytes: int
    ticks_silent: int
    needs_copy: bool
    out_of_memory: bool = False
    ticks_stuck: int = 0


class Status(msgspec.Struct, frozen=True):
    """Status of one replica.

    Attributes:
        uuid: this replica's server.
        role: see `Role`; a pre-candidate counts as CANDIDATE.
        term: current term.
        vote: candidate that it voted for in this term.
        leader: leader of this term, when known.
        commit: last index known to be committed.
        applied: last index that the host reported as applied.
        durable: last index that is durable here.
        last: op id of the last entry.
        config: active configuration, committed or not.
        committed_config: last committed configuration.
        accepting: leads, has committed *and applied* an entry of its own term, and is not transferring
            leadership: decisions on the applied state then include everything that earlier leaders committed.
        transferee: successor in a leadership transfer; None: none is in progress.
        closed: closed time; 0: unknown.
        known_commit: highest commit index received from any leader; may exceed `commit`.
        quiesced: see `quiescence.py`.
        peers: progress of the other members, in configuration order; empty unless it leads.
    """

    uuid: ServerUuid
    role: Role
    term: int
    vote: ServerUuid | None
    leader: ServerUuid | None
    commit: int
    applied: int
    durable: int
    last: OpId
    config: Configuration
    committed_config: Configuration
    accepting: bool
    transferee: ServerUuid | None
    closed: int
    known_commit: int = 0
    quiesced: bool = False
    peers: tuple[PeerStatus, ...] = ()
