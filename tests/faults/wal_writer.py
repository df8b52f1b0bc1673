"""One incarnation of a process that writes the real log as fast as it can, with a notebook of results.

The notebook is a file on another disk, one line of JSON each: `["recovered", groups]` what opening the log
found; `["slot", number, records]` before a slot is submitted; `["durable", number]` when its callback
reported it; `["anchor", group, index]` before older entries are released; `["error", errno]` for a callback
with one.
"""

import asyncio
import json
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

from nyala.common.errors import Throttled
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.wal.log import Wal
from nyala.wal.recovery.recovered import RecoveredGroup

UUID = ServerUuid("5e" * 16)
GROUPS = [TabletId(f"{n:032x}") for n in range(1, 7)]
SEGMENT_BYTES = 256 << 10
"""Bytes of a segment, about 50 slots, so that power failures occur in rolls and preallocations."""

MOST_REFUSED = 4_000
"""Consecutive refused appends after which a writer stops: at least a second."""


class Notebook:
    """Lines of the notebook, which survive this process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *line: object) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")


async def found(wal: Wal, recovered: dict[TabletId, RecoveredGroup]) -> dict[str, object]:
    """Return the recovered log in the notebook's format: group -> [hard state, entries, problem]."""
    return {
        group: [
            None if own.hard_state is None else [own.hard_state.term, own.hard_state.vote],
            [
                [e.id.index, e.id.term, zlib.crc32(e.payload)]
                for e in await wal.read(group, own.first, 1 << 40)
            ],
            None if own.corrupt is None else own.corrupt.message,
        ]
        for group, own in recovered.items()
    }


class Writer:
    """Writes one group: new entries, hard states, replaced suffixes, anchors."""

    def __init__(
        self, wal: Wal, notebook: Notebook, group: TabletId, had: RecoveredGroup, rng: random.Random,
        number: Callable[[], int],
    ) -> None:  # fmt: skip
        self._wal, self._notebook, self._group, self._rng = wal, notebook, group, rng
        self._number = number
        self._first, self._last = had.first, had.last.index
        self._term = 1 + max(had.hard_state.term if had.hard_state else 0, had.last.term)
        self._new_term = True
        self._failed = False
        self._refused = 0  # appends in a row
        self._tasks = LoopTasks()

    async def run(self) -> None:
        """Write until the log fails."""
        while not self._failed:
            waits = [self._append() for _ in range(self._rng.randrange(1, 5))]
            await asyncio.gather(*waits)
            if self._refused:
                await self._tasks.sleep_ms(1)
            if self._rng.random() < 0.1:
                self._term, self._new_term = self._term + 1, True
            if self._rng.random() < 0.2 and self._last - self._first > 100:
                self._first = self._last - 40
                self._notebook.note("anchor", self._group, self._first)
                self._wal.set_anchor(self._group, self._first)
                await self._wal.collect()

    def _append(self) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failed:
            done.set_result(None)
            return done
        before = self._new_term, self._last
        hard_state = HardState(self._term, UUID) if self._new_term else None
        replaced = self._rng.randrange(0, 4) if self._new_term else 0
        first = max(self._first + 1, self._last + 1 - replaced)
        count = self._rng.randrange(0 if hard_state else 1, 5)
        entries = [self._entry(first + n) for n in range(count)]
        self._new_term = False
        if entries:
            self._last = entries[-1].id.index
        records: list[object] = [[self._group, self._term, UUID]] if hard_state else []
        records += [[self._group, e.id.index, e.id.term, zlib.crc32(e.payload)] for e in entries]
        try:
            slot = self._wal.reserve(self._group, entries, hard_state)
        except Throttled:  # the next segment is late; permanently after a power failure
            self._new_term, self._last = before
            self._refused += 1
            self._failed = self._refused > MOST_REFUSED
            done.set_result(None)
            return done
        self._refused = 0
        number = self._number()
        self._notebook.note("slot", number, records)

        def on_durable(err: OSError | None) -> None:
            self._failed = self._failed or err is not None
            line = ("durable", number) if err is None else ("error", err.errno)
            self._notebook.note(*line)
            done.set_result(None)

        self._wal.append_async(slot, on_durable)
        return done

    def _entry(self, index: int) -> Entry:
        size = self._rng.choice((0, 20, 200, 200, 3_000, 40_000))
        stamp = self._term * 1_000_000 + index
        return Entry(OpId(self._term, index), stamp, EntryKind.OPERATION, self._rng.randbytes(size))


async def live(
    directory: Path, notebook: Notebook, rng: random.Random, *, sync: bool, write: bool
) -> None:
    """Open the log, record its content, and write until the disk fails; or close it."""
    tasks = LoopTasks()
    wal, recovered = await Wal.open(
        SystemFiles(), tasks, str(directory), server_uuid=UUID, segment_bytes=SEGMENT_BYTES,
        queue_bytes=1 << 20, sync=sync,
    )  # fmt: skip
    damage = [d.error.message for d in wal.damage]
    notebook.note("recovered", await found(wal, recovered), damage, wal.torn is not None)
    if write:
        numbers = iter(range(1, 1 << 60))
        groups = [(g, recovered.get(g) or RecoveredGroup()) for g in GROUPS]
        writers = [
            Writer(
                wal,
                notebook,
                g,
                had,
                random.Random(rng.random()),
                lambda: next(numbers),
            )
            for g, had in groups
        ]
        await asyncio.gather(*(w.run() for w in writers))
    await wal.close()
    await tasks.close()
