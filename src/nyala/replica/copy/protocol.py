"""Protocol of a copy: the values that source and target exchange, and the source as the target sees it.

A copy is a state machine's files at one cut and the group's log from there. `source_sessions.py` is the side
that has a replica, `target.py` the side that gets one; the transport between them (`copying/`, or a test)
satisfies `CopySource`. Nothing here knows what is replicated.
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
    """One file to be copied; names have no folder."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """Answer of a source to the begin of a session.

    Attributes:
        session: its id.
        ttl_ms: the source keeps everything for so long after each word that it hears.
        cut: the last entry whose effect the files hold.
        stamp: that entry's hybrid time.
        files: in the order in which they are written; the last one names the others.
        config: the committed configuration.
        term: the source's.
        leader: of that term, where the source knows it.
        may_lose: what the copy may lack, since no leader was found or the source is none; empty: nothing.
    """

    session: str
    ttl_ms: int
    cut: OpId
    stamp: int
    files: tuple[CopyFile, ...]
    config: Configuration
    term: int
    leader: ServerUuid | None = None
    may_lose: str = ""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(f.size_bytes for f in self.files)


class CopySource(Protocol):
    """A replica on another server, for one copy of it.

    All methods raise `Unavailable` or `TimedOut` when the server cannot be reached, and `SessionExpired`
    when it does not know the session (any more).
    """

    @property
    def uuid(self) -> ServerUuid:
        """Of the server."""
        ...

    @property
    def address(self) -> str:
        """Public address of the server."""
        ...

    async def begin(self, group: TabletId, *, least: int, force: bool) -> CopyOffer:
        """Begin a session; an earlier one of this target for the group ends.

        Args:
            group: whose replica.
            least: the files must stand for this index at least.
            force: also if the replica may lack acknowledged entries.

        Raises:
            NotFound: no such replica. NotLeader: another one leads. InvalidArgument: no data there.
            Forbidden: it is of another cluster. Throttled: too many sessions.
        """
        ...

    def read(self, session: str, name: str, offset: int) -> AsyncGenerator[Buffer, None]:
        """Yield a file from an offset to its end in pieces.

        Args:
            session: from `begin`.
            name: of the file, as offered.
            offset: of the first byte.

        Raises:
            BadChecksum: a piece was altered on its way; it was not yielded.
        """
        ...

    async def entries(self, session: str, after: OpId) -> list[Entry]:
        """Return committed entries that follow `after`, as many as fit; none: there are no more now."""
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
    """The replica runs here and is no member yet; the source still keeps the log for it."""
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


ENDED = (CopyStage.DONE, CopyStage.FAILED, CopyStage.CANCELLED)


@dataclass(slots=True)
class CopyProgress:
    """Progress of one copy. Loop only.

    Attributes:
        group: of the replica.
        source: uuid of the server that it is copied from.
        address: of that server.
        stage: see `CopyStage`.
        bytes_total: of the files.
        bytes_done: of the files, on this disk.
        log_bytes: of entries copied.
        last: the last entry that the copy has.
        may_lose: see `CopyOffer`.
        error: why it FAILED.
        began_us: when; monotonic.
        ended_us: when it was over; 0: not yet.
        retries: how often the source had to be asked again.
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
