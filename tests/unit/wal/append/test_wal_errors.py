"""Each file operation of the log fails in turn: affected appends fail, no acknowledged entry is lost."""

import contextlib
import errno
import logging
import os
import random

import pytest

from nyala.common.errors import Throttled, Unavailable
from nyala.wal.cmeta import ConsensusMetadata
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_cmeta import CONFIG
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    Machine,
    SpyAppendFile,
    SpyFiles,
    append,
    durable,
    entry,
    open_wal,
    vote,
)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("nyala.wal").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("nyala.wal").setLevel(logging.NOTSET)


class FailingFiles(SpyFiles):
    """Files of which one operation, or every one from it on, fails as a disk does.

    A failing write has written a part; a failing sync has lost its data.
    """

    def __init__(self, files, at, code, *, always):
        super().__init__(files)
        self.fail = self.due
        self.at, self.code, self.always = at, code, always
        self.hit = None
        self.opened = []

    def due(self, call, path):
        count = len(self.calls)
        if count == self.at or (self.always and count > self.at):
            self.hit = self.hit or call
            return OSError(self.code, os.strerror(self.code), path)
        return None

    def open_append(self, path, offset=0, *, direct=False):
        self.opened.append(FailingAppendFile(self, path, self._files.open_append(path, offset)))
        return self.opened[-1]

    def left_open(self):
        """Return the paths of the files that were opened and not closed."""
        return [file._path for file in self.opened if not file.closed]


class FailingAppendFile(SpyAppendFile):
    closed = False

    def close(self):
        self.closed = True
        super().close()

    def append(self, buffers):
        data = b"".join(bytes(b) for b in buffers)
        try:
            self._spy.note("append", self._path, len(data))
        except OSError:
            self._file.append([data[: len(data) // 2]])
            raise
        return self._file.append([data])

    def sync(self, *, data_only):
        try:
            self._spy.note("sync", self._path, data_only)
        except OSError:
            self._file._inode.fail_sync()  # type: ignore[attr-defined]
            raise
        self._file.sync(data_only=data_only)


async def workload(loop, files, tasks, acked, voted):
    """Appends of two groups over several segments, votes, a collection, the end."""
    wal, _ = await open_wal(files, tasks, segment_bytes=900)
    for i in range(1, 13):
        state = vote(i) if i % 4 == 1 else None
        try:
            done = [append(wal, A, [entry(i, bytes(90))], state), append(wal, B, [entry(i)])]
        except (Throttled, Unavailable):
            break
        for _ in range(300):
            if all(d.done() for d in done):
                break
            await loop.delay(10_000)
        else:  # a full disk: it waits for space, until it is closed
            assert files.code == errno.ENOSPC
            await wal.close()
            assert [d.result() is None for d in done] == [False, False]
            return
        for group, one in zip((A, B), done, strict=True):
            if one.result() is None:
                acked[group] = i
                voted[0] = max(voted[0], i if group == A and state is not None else 0)
        if None not in [d.result() for d in done]:
            assert wal.failed is not None
            break
        wal.set_anchor(A, max(1, i - 4))
        wal.set_anchor(B, max(1, i - 4))
        if i % 5 == 0:
            await wal.collect()
        await loop.delay(20_000)
    if wal.failed is not None:  # permanently, even if the disk works again
        assert await append(wal, A, [entry(acked[A] + 1)]) is wal.failed
    await wal.close()


def lasts(recovered):
    return {g: r.entries[-1].id.index for g, r in recovered.items() if r.entries}


@pytest.mark.row("S4.14", "S4.19")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("always", [False, True])
def test_each_failing_file_operation_loses_nothing_acknowledged(code, always):
    seen = set()

    async def main(loop):
        at = 0
        while True:
            at += 1
            machine = Machine(loop, at)
            machine.rng = random.Random(0)  # the same delays each time
            files = FailingFiles(machine.files(), at, code, always=always)
            acked, voted = {A: 0, B: 0}, [0]
            with contextlib.suppress(OSError):  # the log could not be opened, which was reported
                await workload(loop, files, machine.tasks(), acked, voted)
            if files.hit is None:
                assert acked == {A: 12, B: 12}
                return at
            seen.add(files.hit)
            machine.disk.crash()
            wal, recovered = await machine.open(segment_bytes=900)
            assert not wal.damage, (at, files.hit, wal.damage)
            found = lasts(recovered)
            assert all(found.get(g, 0) >= acked[g] for g in (A, B)), (at, files.hit, found, acked)
            for own in recovered.values():
                assert own.corrupt is None
                assert all(e.payload == entry(e.id.index).payload or e.payload == bytes(90)
                           for e in own.entries)  # fmt: skip
            state = recovered[A].hard_state if A in recovered else None
            assert (state.term if state is not None else 0) >= voted[0]
            await durable(wal, A, [entry(found.get(A, 0) + 1)])  # and it continues
            await wal.close()

    assert run(main) > 60
    assert seen == {
        "append", "preallocate", "remove", "rename", "sync", "sync_dir", "truncate", "write_atomic"
    }  # fmt: skip


def test_log_that_failed_in_any_file_operation_leaves_no_file_open_when_closed():
    """A server continues without its log, so a file that stays open stays so for long."""

    async def main(loop):
        at, failed = 0, set()
        while True:
            at += 1
            machine = Machine(loop, at)
            files = FailingFiles(machine.files(), 0, errno.EIO, always=False)
            wal, _ = await open_wal(files, machine.tasks(), segment_bytes=900)
            files.at = len(files.calls) + at
            with contextlib.suppress(
                Throttled
            ):  # the next segment was not made, and is tried again
                for i in range(1, 9):
                    if await append(wal, A, [entry(i, bytes(90))]) is not None:
                        failed.add(files.hit)
                        break
                    await loop.delay(20_000)
            if files.hit is None:  # the rest are those of an orderly end
                await wal.close()
                return failed
            await wal.close()
            assert not files.left_open(), (at, files.hit)

    assert run(main) >= {"append", "sync", "truncate", "rename", "sync_dir"}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_failing_file_operation_during_recovery_does_not_change_its_result(code):
    async def main(loop):
        at = 0
        while True:
            at += 1
            machine = Machine(loop, at)
            wal, _ = await machine.open(segment_bytes=900)
            for i in range(1, 9):
                await durable(wal, A, [entry(i, bytes(90))])
            append(wal, A, [entry(9, bytes(90))])
            machine.disk.crash()
            files = FailingFiles(machine.files(), at, code, always=False)
            with contextlib.suppress(OSError):
                wal, recovered = await open_wal(files, machine.tasks(), segment_bytes=900)
                assert lasts(recovered)[A] in (8, 9)
            machine.disk.crash()
            wal, recovered = await machine.open(segment_bytes=900)
            assert not wal.damage
            assert lasts(recovered)[A] in (8, 9)
            if files.hit is None:
                return at

    assert run(main) > 8


def test_failing_metadata_save_leaves_old_or_new_content():
    async def main(loop):
        at = 0
        while True:
            at += 1
            machine = Machine(loop, at)
            ConsensusMetadata(machine.files(), "/d").save(A, vote(1), CONFIG)
            files = _SavingFiles(machine.files(), at)
            try:
                ConsensusMetadata(files, "/d").save(A, vote(2), CONFIG)
                saved = True
            except OSError:
                saved = False
            machine.disk.crash()
            found = ConsensusMetadata(machine.files(), "/d").load(A)
            assert found is not None
            assert found[0].term in ((2,) if saved else (1, 2))
            if saved:
                return at

    assert run(main) == 4


class _SavingFiles:
    """Files whose atomic write is split into steps, so that each can fail."""

    def __init__(self, files, at):
        self._files, self._at = files, at

    def __getattr__(self, name):
        return getattr(self._files, name)

    def write_atomic(self, path, data):
        beside = path + ".tmp"
        steps = (
            lambda: self._files.write_new(beside, [data]),
            lambda: self._files.rename(beside, path),
            lambda: self._files.sync_dir(path.rpartition("/")[0]),
        )
        for number, step in enumerate(steps, 1):
            if number == self._at:
                raise OSError(errno.EIO, "x")
            step()
