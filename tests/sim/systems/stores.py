"""Logs of a `CoreServer`: a plain file of minimal code, or nyala's own log."""

import asyncio
import base64
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from zlib import crc32

import msgspec

from nyala.common.ids import OpId, TabletId
from nyala.env.env import Env
from nyala.env.files import Files
from nyala.env.tasks import Lane
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.wal.log import Wal

GROUP = TabletId("1" * 32)
Record = tuple[str, list[Any]]
Done = Callable[[], None]


class Store(Protocol):
    """Keeps hard states and entries in order."""

    async def open(self, env: Env, uuid: str) -> tuple[HardState, list[Entry]]:
        """Recover."""
        ...

    def append(self, hard: HardState | None, entries: Sequence[Entry], done: Done) -> None:
        """Write; `done` is called once all of it, and all before it, is durable."""
        ...


class PlainLog:
    """One file of JSON records; the first bad one ends it."""

    async def open(self, env: Env, uuid: str) -> tuple[HardState, list[Entry]]:
        """Recover, and truncate the torn tail."""
        self._env = env
        self._queue: deque[tuple[list[Record], Done]] = deque()
        self._wake = asyncio.Event()
        files = env.files
        hard, entries, end = _recover(files)
        self._file = files.open_append("/core/log", end)
        self._file.truncate(end)
        self._file.sync(data_only=False)
        files.sync_dir("/core")
        env.tasks.spawn(self._write(), "log writer")
        return hard, entries

    def append(self, hard: HardState | None, entries: Sequence[Entry], done: Done) -> None:
        """Queue for the writer."""
        records: list[Record] = [] if hard is None else [("hard", [hard.term, hard.vote])]
        records += [("entry", _to_json(e)) for e in entries]
        self._queue.append((records, done))
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch, self._queue = self._queue, deque()
                records = [r for some, _ in batch for r in some]
                await self._env.tasks.run(Lane.DISK, self._append, records)
                for _, done in batch:
                    done()

    def _append(self, records: Sequence[Record]) -> None:
        self._file.append([_pack(r) for r in records])
        self._file.sync(data_only=True)


class WalLog:
    """nyala's log, with small segments that roll often.

    Args:
        segment_bytes: see `Wal.open`.
    """

    def __init__(self, segment_bytes: int = 16 << 10) -> None:
        self._segment_bytes = segment_bytes

    async def open(self, env: Env, uuid: str) -> tuple[HardState, list[Entry]]:
        """Recover; effects of a crash must not count as damage."""
        self.wal, groups = await Wal.open(
            env.files,
            env.tasks,
            "/core",
            server_uuid=uuid,
            segment_bytes=self._segment_bytes,
            queue_bytes=1 << 20,
            clock=env.clock,
        )
        assert not self.wal.damage, self.wal.damage
        found = groups.get(GROUP)
        if found is None:
            return HardState(), []
        assert found.corrupt is None, found.corrupt
        entries = await self.wal.read(GROUP, found.first, 1 << 40)
        return found.hard_state or HardState(), entries

    def append(self, hard: HardState | None, entries: Sequence[Entry], done: Done) -> None:
        """Reserve and submit."""

        def called(error: OSError | None) -> None:
            assert error is None, error
            done()

        self.wal.append_async(self.wal.reserve(GROUP, entries, hard), called)


def _recover(files: Files) -> tuple[HardState, list[Entry], int]:
    """Return (hard state, log, length of the good part)."""
    hard = HardState()
    log: list[Entry] = []
    data = files.read("/core/log") if files.exists("/core/log") else b""
    at = 0
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        body = data[at + 8 : at + 8 + length]
        if not length or len(body) < length:
            break
        if crc32(body) != int.from_bytes(data[at + 4 : at + 8], "little"):
            break
        kind, values = msgspec.json.decode(body)
        if kind == "hard":
            hard = HardState(values[0], values[1])
        else:
            entry = _from_json(values)
            del log[entry.id.index - 1 :]
            log.append(entry)
        at += 8 + length
    return hard, log, at


def _pack(record: Record) -> bytes:
    body = msgspec.json.encode(record)
    return len(body).to_bytes(4, "little") + crc32(body).to_bytes(4, "little") + body


def _to_json(entry: Entry) -> list[Any]:
    payload = base64.b64encode(entry.payload).decode()
    return [entry.id.term, entry.id.index, entry.stamp, int(entry.kind), payload]


def _from_json(values: list[Any]) -> Entry:
    term, index, stamp, kind, payload = values
    return Entry(OpId(term, index), stamp, EntryKind(kind), base64.b64decode(payload))
