"""Protocol of a copy: the values that source and target exchange, and the source as the target sees it.

A copy is a state machine's files at one flush point, and the group's log from there on. `source_sessions.py`
is the side of the source, `target.py` that of the target; the transport between them (`copying/`, or a test)
satisfies `CopySource`. This module does not depend on what is replicated.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.env.files import Buffer
from nyala.raft.membership import Configuration
from nyala.raft.messages import Entry


@dataclass(frozen=True, slots=True)
class CopyFile:
    """One file to be copied; its name contains no directory."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """Response of a source when a session begins.

    Attributes:
        session: id of the session.
        ttl_ms: lifetime of the session after each request of its target.
        flush_op: op id of the last entry whose effect the files contain.
        stamp: that entry's hybrid time.
        files: in the order in which they are to be written; the last one is the manifest.
        config: the committed configuration.
        term: current term of the source.
        leader: leader of that term; None: not known.
        may_lose: description of what the copy may lack, when the source is not a confirmed leader; empty:
            nothing.
    """

    session: str
    ttl_ms: int
    flush_op: OpId
    stamp: int
    files: tuple[CopyFile, ...]
    config: Configuration
    term: int
    leader: ServerUuid | None = None
    may_lose: str = ""

    @property
    def size_bytes(self) -> int:
        """Size of all files, in bytes."""
        return sum(f.size_bytes for f in self.files)


class CopySource(Protocol):
    """A replica on another server, as the source of one copy.

    All methods raise `Unavailable` or `TimedOut` when the server cannot be reached, and `SessionExpired` when
    the session does not exist (any more).
    """

    @property
    def uuid(self) -> ServerUuid:
        """Uuid of the server."""
        ...

    @property
    def address(self) -> str:
        """Public address of the server."""
        ...

    async def begin(self, group: TabletId, *, min_index: int, force: bool) -> CopyOffer:
        """Begin a session; an earlier session of the same target and group ends.

        Args:
            group: group of the replica.
            min_index: lowest index that the flush point of the files may have.
            force: begin even if the replica may lack acknowledged entries.

        Raises:
            NotFound: no such replica. NotLeader: another replica leads. InvalidArgument: the replica has no
                data. Forbidden: the server belongs to another cluster. Throttled: too many sessions.
        """
        ...

    def read(self, session: str, name: str, offset: int) -> AsyncGenerator[Buffer, None]:
        """Yield a file in pieces, from an offset to its end.

        Args:
            session: from `begin`.
            name: name of the file, as offered.
            offset: offset of the first byte.

        Raises:
            BadChecksum: a piece was damaged in transfer; it was not yielded.
        """
        ...

    async def entries(self, session: str, after: OpId) -> list[Entry]:
        """Return the committed entries after `after`, as many as fit a message; empty: no more now."""
        ...

    async def hold(self, session: str, *, end: bool = False) -> None:
        """Keep the session alive, or end it."""
        ...


class CopyStage(StrEnum):
    """Stage of a copy."""

    STARTING = "STARTING"
    FILES = "FILES"
    LOG = "LOG"
    INSTALLING = "INSTALLING"
    WAITING = "WAITING"
    """The replica runs and is not a member yet; the source still retains the log for it."""
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


ENDED = (CopyStage.DONE, CopyStage.FAILED, CopyStage.CANCELLED)


@dataclass(slots=True)
class CopyProgress:
    """Progress of one copy. Loop only.

    Attributes:
        group: group of the replica.
        source: uuid of the source server.
        address: address of that server.
        stage: see `CopyStage`.
        bytes_total: size of the files.
        bytes_done: bytes of the files that are on this disk.
        log_bytes: size of the entries copied.
        last: op id of the last entry received.
        may_lose: see `CopyOffer`.
        error: the reason for FAILED; None otherwise.
        began_us: start of the copy, monotonic.
        ended_us: end of the copy, monotonic; 0: not yet.
        retries: number of repeated requests to the source.
        for_member: only masters have ordered it: each adds the member before it orders the copy.
    """

    group: TabletId
    source: ServerUuid
    address: str
    stage: CopyStage = CopyStage.STARTING
    bytes_total: int = 0
    bytes_done: int = 0
    log_bytes: int = 0
    last: OpId = NO_OP
    may_lose: str = ""
    error: Exception | None = None
    began_us: int = 0
    ended_us: int = 0
    retries: int = 0
    for_member: bool = False
