"""Status of a replica and outcome of a write: values for servers, reports and pages."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.raft.membership import Configuration
from nyala.raft.status import PeerStatus, Role


class State(StrEnum):
    """The state of a replica, by the names that reports and pages show (S4.40)."""

    BOOTSTRAPPING = "BOOTSTRAPPING"
    """Its files and its log are being opened."""
    CONFIGURING = "CONFIGURING"
    """No leader is known, or this one leads and no entry of its term is applied yet."""
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    """Broken or damaged: files are kept; it neither votes nor acknowledges."""
    TOMBSTONED = "TOMBSTONED"
    """Deleted; its vote and last op id are kept."""


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica at one moment.

    Without a Raft node (BOOTSTRAPPING, FAILED, TOMBSTONED) Raft's fields are those known last, and
    `role` is NON_PARTICIPANT.

    Attributes:
        group: id of the tablet, which is the id of its Raft group.
        state: see `State`.
        role: see `raft.status.Role`.
        term: current term.
        leader: leader of this term, when known.
        config: active configuration, committed or not.
        committed_config: last committed configuration.
        commit: last index known to be committed.
        applied: op id of the last applied entry.
        applied_stamp: its hybrid time.
        known_commit: highest commit index that a leader has sent; this replica may lack the entry.
        durable: last index known to be on disk here.
        last: op id of the last entry.
        flush_op: op id of the flush point of the state machine's files.
        closed: hybrid time at or below which all is applied here and nothing is stamped any more; 0: unknown.
        vote: candidate that got its vote in this term.
        unflushed_bytes: memory that a flush would free.
        peers: a leader's status of its peers.
        quiesced: its group is idle and sends no heartbeats.
        error: the reason why it is FAILED, or why its server cannot vote or acknowledge now; empty otherwise.
        warning: a problem of its server, which still works; empty otherwise.
    """

    group: TabletId
    state: State
    role: Role
    term: int
    leader: ServerUuid | None
    config: Configuration
    committed_config: Configuration
    commit: int = 0
    applied: OpId = NO_OP
    applied_stamp: int = 0
    known_commit: int = 0
    durable: int = 0
    last: OpId = NO_OP
    flush_op: OpId = NO_OP
    closed: int = 0
    vote: ServerUuid | None = None
    unflushed_bytes: int = 0
    peers: tuple[PeerStatus, ...] = ()
    quiesced: bool = False
    error: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """Outcome of an applied operation.

    Attributes:
        stamp: hybrid time at which it took effect; of the first attempt when it is a duplicate.
        result: what the state machine returned.
        duplicate: it had taken effect before; this is the kept result.
    """

    stamp: int
    result: bytes
    duplicate: bool


@dataclass(frozen=True, slots=True)
class MaintenanceStats:
    """Cost of a replica's flushes and compactions since it was opened.

    Attributes:
        running: `flush` or `compaction`, which is under way; empty: none.
        running_us: time since it began; 0: none is under way.
        log_bytes: payload in the log that is not flushed to files yet.
        flushes: number of flushes.
        flush_us: total time of flushes.
        compactions: number of compactions.
        compaction_us: total time of compactions.
    """

    running: str
    running_us: int
    log_bytes: int
    flushes: int
    flush_us: int
    compactions: int
    compaction_us: int
