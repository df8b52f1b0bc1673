"""Group commit: the log against a sync for each append, and against a log file for each tablet.

All of it on one disk in one run, without servers or network: entries of 256 B, every append synced before
it is acknowledged. The compared logs are minimal implementations in this file, without record headers.
Both logs are measured in turn, a fraction of a second each, since the speed of a disk varies; figures are
medians.
"""

import asyncio
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import uvloop

from benchmarks.report import Report
from nyala.common.ids import OpId, TabletId
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.raft.messages import Entry, EntryKind
from nyala.wal.log import Wal

WRITERS = (1, 4, 16, 64, 256)
TABLETS = (1, 50, 200)
TURNS = 5
SECONDS = 0.35
"""Length of one turn in seconds."""
PAYLOAD = bytes(range(256))
FILE_BYTES = 8 << 20
RECORD = 336  # bytes: 256 B and a header, as the log writes them

Append = Callable[[int, int], Awaitable[None]]
"""Append entry `index` of tablet number `tablet`; returns when it is durable."""


class File:
    """A preallocated file; each write is synced."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.posix_fallocate(self._fd, 0, FILE_BYTES)
        os.fsync(self._fd)
        self._end = 0
        self.syncs = 0

    def write(self, payloads: list[bytes]) -> None:
        data = b"".join(payloads)
        zlib.crc32(data)
        if self._end + len(data) > FILE_BYTES:
            self._end = 0
        os.pwrite(self._fd, data, self._end)
        os.fdatasync(self._fd)
        self._end += len(data)
        self.syncs += 1

    def close(self) -> None:
        os.close(self._fd)


class OneByOne:
    """One file with a sync for each append, sequentially."""

    def __init__(self, folder: str) -> None:
        self._file = File(f"{folder}/one-by-one")
        self._pool = ThreadPoolExecutor(1)

    async def append(self, tablet: int, index: int) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._file.write, [PAYLOAD])

    @property
    def syncs(self) -> int:
        return self._file.syncs

    async def close(self) -> None:
        self._pool.shutdown()
        self._file.close()


class FilePerTablet:
    """A file for each tablet with its own group commit; eight threads sync them."""

    def __init__(self, folder: str, tablets: int) -> None:
        self._files = [File(f"{folder}/tablet-{n}") for n in range(tablets)]
        self._waiting: list[list[asyncio.Future[None]]] = [[] for _ in range(tablets)]
        self._busy = [False] * tablets
        self._pool = ThreadPoolExecutor(8)
        self._rounds: set[asyncio.Task[None]] = set()

    async def append(self, tablet: int, index: int) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting[tablet].append(done)
        if not self._busy[tablet]:
            self._busy[tablet] = True
            task = asyncio.ensure_future(self._drain(tablet))
            self._rounds.add(task)
            task.add_done_callback(self._rounds.discard)
        await done

    async def _drain(self, tablet: int) -> None:
        loop = asyncio.get_running_loop()
        while group := self._waiting[tablet]:
            self._waiting[tablet] = []
            payloads = [PAYLOAD] * len(group)
            await loop.run_in_executor(self._pool, self._files[tablet].write, payloads)
            for done in group:
                done.set_result(None)
        self._busy[tablet] = False

    @property
    def syncs(self) -> int:
        return sum(f.syncs for f in self._files)

    async def close(self) -> None:
        await asyncio.gather(*self._rounds)
        self._pool.shutdown()
        for file in self._files:
            file.close()


class OneLog:
    """nyala's log."""

    def __init__(self, wal: Wal, tasks: LoopTasks) -> None:
        self._wal, self._tasks = wal, tasks

    @classmethod
    async def open(cls, folder: str) -> "OneLog":
        tasks = LoopTasks()
        wal, _ = await Wal.open(
            SystemFiles(), tasks, folder, server_uuid="ab" * 16, segment_bytes=FILE_BYTES,
            queue_bytes=64 << 20,
        )  # fmt: skip
        return cls(wal, tasks)

    async def append(self, tablet: int, index: int) -> None:
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        entry = Entry(OpId(1, index), index, EntryKind.OPERATION, PAYLOAD)
        slot = self._wal.reserve(TabletId(f"{tablet + 1:032x}"), [entry], None)
        self._wal.append_async(slot, done.set_result)
        err = await done
        assert err is None, err

    @property
    def syncs(self) -> int:
        return self._wal.stats().syncs

    async def close(self) -> None:
        await self._wal.close()
        await self._tasks.close()


Log = OneByOne | FilePerTablet | OneLog


class Load:
    """Writers on one log, each appending one entry at a time to its tablet; their rates and latencies."""

    def __init__(self, log: Log, writers: int, tablets: int) -> None:
        self.log = log
        self.rates: list[float] = []
        self.p50s_us: list[float] = []
        self._writers = writers
        self._last = [0] * tablets
        self._appends = 0

    async def turn(self) -> None:
        times_s: list[float] = []
        began = time.perf_counter()

        async def write(tablet: int) -> None:
            while (start := time.perf_counter()) - began < SECONDS:
                self._last[tablet] += 1
                await self.log.append(tablet, self._last[tablet])
                times_s.append(time.perf_counter() - start)

        await asyncio.gather(*(write(n % len(self._last)) for n in range(self._writers)))
        self.rates.append(len(times_s) / (time.perf_counter() - began))
        self.p50s_us.append(1e6 * statistics.median(times_s))
        self._appends += len(times_s)

    @property
    def syncs_each(self) -> float:
        return self.log.syncs / self._appends


def bare_us(file: File) -> float:
    """Return the median of one write and fdatasync, without threads and event loop."""
    times, began = [], time.perf_counter()
    while (start := time.perf_counter()) - began < SECONDS:
        file.write([bytes(RECORD)])
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


async def compare(
    report: Report, title: str, names: tuple[str, str], rival: Load, log: Load, bare: File | None
) -> None:
    """Measure two logs in turn, and add a line for each."""
    bare_p50s_us = []
    for _ in range(TURNS):
        if bare is not None:
            bare_p50s_us.append(bare_us(bare))
        await rival.turn()
        await log.turn()
    await rival.log.close()
    await log.log.close()
    if bare is not None:
        report.add("write + fdatasync, bare", statistics.median(bare_p50s_us), "us p50")
    for name, one in zip(names, (rival, log), strict=True):
        text = (
            f"p50 {statistics.median(one.p50s_us):,.0f} us, {one.syncs_each:.3f} syncs per append"
        )
        if one is log:
            text += f"; {ratio(log.rates, rival.rates):.1f}x {names[0]}"
        if one is log and bare is not None:
            text += f"; round trip {ratio(log.p50s_us, bare_p50s_us):.2f}x the bare write"
        report.add(f"{title}: {name}", statistics.median(one.rates), "appends/s", text)


def ratio(left: list[float], right: list[float]) -> float:
    """Return the median ratio over the turns."""
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


async def measure(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="nyala-bench-", dir=".") as folder:
        for writers in WRITERS:
            os.makedirs(own := f"{folder}/w{writers}")
            rival = Load(OneByOne(own), writers, 1)
            log = Load(await OneLog.open(own), writers, min(writers, 50))
            bare = File(f"{folder}/bare") if writers == 1 else None
            title = f"{writers} writers" if writers > 1 else "1 writer"
            await compare(report, title, ("one by one", "group commit"), rival, log, bare)
        for tablets in TABLETS:
            os.makedirs(own := f"{folder}/t{tablets}")
            rival = Load(FilePerTablet(own, tablets), max(TABLETS), tablets)
            log = Load(await OneLog.open(own), max(TABLETS), tablets)
            title = f"{max(TABLETS)} writers, {tablets} active tablet{'s' * (tablets > 1)}"
            await compare(report, title, ("a file each", "one log"), rival, log, None)


def run() -> Report:
    """Run the benchmark."""
    report = Report("group_commit", "256 B entries, each synced before it is acknowledged")
    uvloop.run(measure(report))
    return report
