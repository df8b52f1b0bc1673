"""The write-ahead log of one data directory: reserve, append_async, one appender, group commit.

Signatures first; the page of its bytes is docs/internals/formats-wal.md.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nyala.common.errors import Corrupt
from nyala.common.ids import TabletId
from nyala.env.clock import Clock
from nyala.env.files import Files
from nyala.env.tasks import Tasks
from nyala.raft.messages import Entry, HardState

Callback = Callable[[OSError | None], None]


@dataclass(frozen=True, slots=True)
class RecoveredGroup:
    """What the log held of one group (moves to wal/recovery.py; import it from there or from here)."""

    entries: list[Entry]
    hard_state: HardState | None
    corrupt: Corrupt | None


class Slot:
    """A place in the order of the log, got from `Wal.reserve`."""


class Wal:
    """`directory` is the data directory; the segments live in `<directory>/wal/`."""

    @classmethod
    async def open(
        cls,
        files: Files,
        tasks: Tasks,
        directory: str,
        *,
        server_uuid: str,
        segment_bytes: int,
        queue_bytes: int,
        sync: bool = True,
        clock: Clock | None = None,
    ) -> tuple["Wal", dict[TabletId, RecoveredGroup]]:
        """Recover what is there and start a new segment. Raises Corrupt, BadVersion, OSError."""
        ...

    def reserve(
        self, group: TabletId, entries: Sequence[Entry], hard_state: HardState | None
    ) -> Slot:
        """Fix the order. Raises Throttled (queue or disk full), Unavailable (closed)."""
        ...

    def append_async(self, slot: Slot, callback: Callback) -> None:
        """Hand the slot over; callback(None) once durable, callback(OSError) if it never will be."""
        ...

    async def read(self, group: TabletId, first_index: int, max_bytes: int) -> list[Entry]:
        """Durable entries from first_index on (at least one if there is one). Raises LogGap, BadChecksum."""
        ...

    def set_anchor(self, group: TabletId, first_needed_index: int) -> None:
        """Entries >= it are kept. A group without an anchor pins everything."""
        ...

    def forget(self, group: TabletId) -> None:
        """All earlier records of the group are void, durably with the next round (replica deleted)."""
        ...

    def collect(self) -> asyncio.Task[Any]:
        """Start removing segments that nobody needs; may be awaited (number removed)."""
        ...

    def stats(self) -> Any:
        """Counts: appends, rounds, syncs, bytes, segments, pinned_by."""
        ...

    @property
    def failed(self) -> OSError | None:
        """The I/O error after which nothing is acknowledged any more."""
        ...

    async def close(self) -> None:
        """Flush what is ready, seal the segment; later reserves raise Unavailable."""
        ...
