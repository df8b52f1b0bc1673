"""The extent record on a full disk may be removed, without a missed loss or a false one."""

import asyncio
import errno
import threading

import pytest

from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.wal.segments.extent import FILE_NAME, Extent, ExtentFile, decode
from nyala.wal.segments.format import LogPosition
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_harness import A, Machine, SpyFiles, durable, entry, open_wal

NOTE = f"/d/{FILE_NAME}"


def full(call, path):
    """No new extent record and no new segment fits; files may be removed."""
    if call in ("write_atomic", "preallocate"):
        return OSError(errno.ENOSPC, "no space", path)
    return None


def full_for_the_note(call, path):
    return full(call, path) if call == "write_atomic" else None


async def some_segments(loop):
    """A machine with a closed log of five segments."""
    machine = Machine(loop)
    wal, _ = await machine.open(segment_bytes=900)
    for index in range(1, 60):
        if wal.stats().rolls == 4:
            break
        await durable(wal, A, [entry(index, bytes(300))])
        await loop.delay(10_000)
    await wal.close()
    return machine


@pytest.mark.parametrize("how", [full, full_for_the_note])
def test_loss_detected_by_start_on_full_disk_is_detected_again(how):
    async def main(loop):
        machine = await some_segments(loop)
        machine.files().remove("/d/wal/0000000001.wal")
        spy = SpyFiles(machine.files())
        spy.fail = how
        with pytest.raises(OSError, match="no space"):
            await open_wal(spy, machine.tasks(), segment_bytes=900)
        wal, recovered = await machine.open(segment_bytes=900)
        assert wal.unattributed is not None
        assert recovered[A].corrupt is not None
        await wal.close()

    run(main)


def test_loss_not_yet_accepted_stays_recorded_on_full_disk():
    async def main(loop):
        machine = await some_segments(loop)
        machine.files().remove("/d/wal/0000000001.wal")
        wal, _ = await machine.open(segment_bytes=900)
        await wal.close()
        spy = SpyFiles(machine.files())
        spy.fail = full_for_the_note
        note = ExtentFile(spy, "/d")
        note.load()
        note.advance_end(LogPosition(9, 48), 2)
        with pytest.raises(OSError, match="no space"):
            note.advance_first(3)
        found = decode(machine.files().read(NOTE))
        assert found is not None
        assert found.missing

    run(main)


def test_new_extent_record_omits_segment_being_removed():
    """The disk was full when the segment began; a later roll is recorded before the segment is removed."""

    async def main(loop):
        machine = await some_segments(loop)
        spy = SpyFiles(machine.files())
        note = ExtentFile(spy, "/d")
        note.load()
        spy.fail = full_for_the_note
        note.advance_first(2)
        assert note.extent is None
        spy.fail = lambda call, path: None
        note.advance_end(LogPosition(7, 48), 1)
        assert note.extent == Extent(2, LogPosition(7, 48))

    run(main)


def test_log_closed_during_segment_removal_opens_without_reported_loss(
    tmp_path,
):
    directory = str(tmp_path)
    removing, closed = threading.Event(), threading.Event()

    async def main():
        wal, _ = await open_wal(SystemFiles(), LoopTasks(), segment_bytes=900, directory=directory)
        for index in range(1, 2000):
            if wal.stats().rolls == 4:
                break
            await durable(wal, A, [entry(index, bytes(300))])
        await wal.close()
        newest = max((tmp_path / "wal").iterdir()).name
        assert newest >= f"{5:010d}.wal"
        spy = SpyFiles(SystemFiles())
        wal, _ = await open_wal(spy, LoopTasks(), segment_bytes=900, directory=directory)
        wal.set_anchor(A, 1 << 40)

        def removes(call, path):
            if call == "remove" and path.endswith(newest):
                removing.set()
                assert closed.wait(60)
            return full_for_the_note(call, path)

        spy.fail = removes
        collecting = wal.collect()
        await asyncio.to_thread(removing.wait, 60)
        spy.fail = lambda call, path: None
        await wal.close()  # its lane is free: the record is written in lane DISK
        closed.set()
        await collecting
        wal, _ = await open_wal(SystemFiles(), LoopTasks(), segment_bytes=900, directory=directory)
        assert wal.unattributed is None
        await wal.close()

    asyncio.run(main())
