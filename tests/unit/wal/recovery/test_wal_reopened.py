"""A reopened log: truncated records stay so, and recovered ones are durable."""

import pytest

from nyala.common.errors import Throttled
from nyala.raft.messages import Entry, EntryKind
from nyala.wal.append.slots import Slot, SlotQueue
from nyala.wal.recovery.opening import recover
from nyala.wal.segments.extent import Extent, ExtentFile
from nyala.wal.segments.format import LogPosition
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_content import fill
from tests.unit.wal.support.wal_harness import (
    UUID,
    A,
    B,
    Machine,
    SpyFiles,
    collected,
    durable,
    entry,
)


def config(index: int, term: int) -> Entry:
    one = entry(index, term=term)
    return Entry(one.id, one.stamp, EntryKind.CONFIG, b"members")


def test_replaced_configuration_entry_is_no_longer_in_log():
    """Its index is below the files' cut at the next start: if replayed, it would be active again."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, [config(1, 1), entry(2), config(3, 1)])
        await durable(wal, A, [entry(3, term=2), entry(4, term=2)])
        await wal.close()
        _, recovered = await machine.open()
        assert [c.id for c in recovered[A].own.configs] == [config(1, 1).id]

    run(main)


def test_extent_record_read_at_start_is_durable_and_never_decreases():
    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        spy.make_dir("/d")
        ExtentFile(spy, "/d").save(Extent(1, LogPosition(5, 700)))
        note = ExtentFile(spy, "/d")
        spy.calls.clear()
        note.load()
        assert ("sync_dir", "d") in spy.calls, (
            "the directory is synced, so that a power failure cannot undo the record"
        )
        note.advance_end(LogPosition(4, 900), 1)
        assert note.extent == Extent(1, LogPosition(5, 700))

    run(main)


def test_number_of_removed_segment_is_not_reused():
    """Records have positions: one of a new segment would prove records of the old one."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, [entry(1)])
        await wal.close()
        machine.files().remove("/d/wal/0000000001.wal")
        wal, _ = await machine.open()
        assert machine.disk.mount().list("/d/wal") == ["0000000002.wal"]

    run(main)


def test_segment_with_inconsistent_reads_is_neither_torn_nor_damaged():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, [entry(1, bytes(100)), entry(2, bytes(100))])
        await wal.close()
        files, at = machine.files(), 0
        read = files.read

        def differs(path):
            nonlocal at
            data = bytearray(read(path))
            at += 1
            data[90 + at] ^= 1
            return bytes(data)

        files.read = differs
        with pytest.raises(OSError, match="returned different bytes"):
            recover(files, "/d/wal", UUID, 0)

    run(main)


def test_slots_taken_from_queue_no_longer_count_as_freeing_space():
    queue = SlotQueue(1000)

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        slot = Slot(A, forget=True)
        queue.add(slot)
        assert queue.freeing == 1
        wal.append_async(slot, lambda err: None)
        assert queue.drain() == [slot]
        assert queue.freeing == 0
        await wal.close()

    run(main)


async def until_refused(wal, loop, disk):
    """Fill the log with B's entries until there is space for no further segment."""
    for index in range(1, 200):
        try:
            await fill(wal, B, index, index)
        except Throttled:
            return
        await loop.delay(10_000)
        if wal.stats().rolls == 3:  # the next segment is not made yet
            disk.faults.capacity_bytes = disk.used_bytes() + 50_000
    raise AssertionError("never refused")


@pytest.mark.parametrize(("size", "moved"), [(400, 1), (450, 0)])
def test_rewrites_on_full_disk_use_only_part_of_reserve(size, moved):
    """A quarter of 2000 bytes, less the header of a record."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=4000, reserve_bytes=50_000, cleanup_bytes=2000)
        await durable(wal, A, [entry(1, bytes(size))])
        wal.set_anchor(A, 1, 2, movable=True)
        await until_refused(wal, loop, machine.disk)
        wal.set_anchor(B, 1000)
        assert (await collected(wal) > 0) is bool(moved)
        assert wal.stats().moved == moved
        await wal.close()

    run(main)
