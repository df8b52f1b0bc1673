"""Segments: preallocated in the background, swapped in, sealed; a disk that is full or fails."""

import asyncio
import errno

import pytest

from nyala.common.errors import Throttled
from nyala.env.files import SystemFiles
from nyala.env.tasks import Lane
from nyala.wal.segments.format import (
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    find_footer,
    unpack_footer,
    unpack_record,
)
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_content import RECORD, content, fill
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    HeldTasks,
    Machine,
    SpyFiles,
    append,
    durable,
    entries,
    entry,
    indices,
    open_wal,
    vote,
)
from tests.waiting import eventually


@pytest.mark.row("S4.15")
def test_sync_within_preallocation_is_data_only_and_beyond_it_includes_length():
    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        wal, _ = await open_wal(
            spy, machine.tasks(), segment_bytes=SEGMENT_HEADER_BYTES + 2 * RECORD
        )
        assert ("preallocate", "0000000001.wal.new", SEGMENT_HEADER_BYTES + 2 * RECORD) in spy.calls
        spy.calls.clear()
        full = OSError(errno.ENOSPC, "full")
        spy.fail = lambda call, path: full if call == "preallocate" and "2.wal" in path else None
        await durable(wal, A, [entry(1, bytes(100))])
        await append(wal, A, [entry(i, bytes(100)) for i in (2, 3)])
        syncs = [c[2] for c in spy.calls if c[0] == "sync"]
        assert syncs == [True, False]

    run(main)


@pytest.mark.row("S4.16", "S4.17")
def test_next_segment_is_created_in_background_while_appends_continue(tmp_path):
    """Real threads: the preallocating pool is blocked, the log continues in the old segment."""

    async def main():
        tasks = HeldTasks()
        spy = SpyFiles(SystemFiles())
        wal, _ = await open_wal(spy, tasks, directory=str(tmp_path), segment_bytes=1000)
        tasks.held = Lane.COMPUTE
        await fill(wal, A, 1, 20)
        assert wal.stats().rolls == 0
        assert {c[1] for c in spy.calls if c[0] == "append"} == {
            "0000000001.wal.new"
        }  # opened under its first name
        assert ("preallocate", "0000000002.wal.new", 1000) not in spy.calls
        spy.calls.clear()
        tasks.gate.set()
        await eventually(lambda: wal.stats().rolls == 1, "the segment that is ready is swapped in")
        tasks.held = None
        names = ["0000000001.wal", "0000000002.wal"]
        assert [n for n in spy.list(f"{tmp_path}/wal") if n.endswith(".wal")] == names
        order = [c[0] for c in spy.calls]
        sealed = order.index("truncate")
        created = ["remove", "preallocate", "append", "sync"]
        assert order[:sealed] == [*created, "preallocate", "append"]  # space for the footer first
        assert order[sealed:] == ["truncate", "sync", "rename", "sync_dir", "write_atomic"]
        await fill(wal, A, 21, 22)
        await wal.close()
        await tasks.close()

    asyncio.run(main())


@pytest.mark.row("S4.18", "S4.20")
def test_closed_segment_has_footer_with_index():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(clock=machine.clock)
        await durable(wal, A, entries(1, 2), vote(1))
        await durable(wal, B, [entry(7)])
        assert len(content(machine, 1)) == 1 << 14
        closing_us = machine.clock.wall_us()
        await wal.close()
        data = content(machine, 1)
        assert len(data) < 1000
        footer = find_footer(data, len(data), 1)
        assert footer is not None
        record = unpack_record(data, footer, 1)
        assert record is not None
        assert footer + record.length + TRAILER_BYTES == len(data)
        close_time_us, rows = unpack_footer(record)
        assert closing_us <= close_time_us <= machine.clock.wall_us()
        assert [(r.group.hex(), r.term, r.index) for r in rows] == [
            (A, 1, 0), (A, 1, 1), (A, 1, 2), (B, 1, 7),
        ]  # fmt: skip

    run(main)


def test_segment_left_open_by_crash_is_sealed_at_next_open():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, entries(1, 3), vote(2))
        machine.disk.crash()
        await machine.open(clock=machine.clock)
        data = content(machine, 1)
        footer = find_footer(data, len(data), 1)
        assert footer is not None
        record = unpack_record(data, footer, 1)
        assert record is not None
        close_time_us, rows = unpack_footer(record)
        assert close_time_us > 0
        assert [r.index for r in rows] == [0, 1, 2, 3]

    run(main)


@pytest.mark.row("S4.19", "S4.25")
def test_full_disk_refuses_appends_without_loss_and_recovers():
    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        full = OSError(errno.ENOSPC, "No space left on device")
        spy.fail = lambda call, path: full if call == "preallocate" and "2.wal" in path else None
        wal, _ = await open_wal(
            spy, machine.tasks(), segment_bytes=SEGMENT_HEADER_BYTES + 8 * RECORD
        )
        count = 0

        async def append_until_it_is_refused():
            nonlocal count
            while count < 20:
                await durable(wal, A, [entry(count + 1, bytes(100))])
                count += 1

        with pytest.raises(Throttled, match=r"cannot grow.*No space left.*free space") as caught:
            await append_until_it_is_refused()
        assert count == 7  # it ends within the preallocated length, without space for a hard state
        assert caught.value.details["retry_after_ms"] == "1000"
        assert wal.failed is None
        assert wal.stats().disk_error is full
        assert [e.id.index for e in await wal.read(A, 1, 10_000)] == list(range(1, 8))
        assert spy.list("/d/wal") == ["0000000001.wal"]  # no placeholder is left
        spy.fail = lambda call, path: None
        await loop.delay(2_000_000)
        assert wal.stats().disk_error is None
        await fill(wal, A, 8, 12)
        await wal.close()
        _, recovered = await machine.open()
        assert indices(recovered, A) == list(range(1, 13))

    run(main)


@pytest.mark.row("S4.19")
def test_close_does_not_wait_for_full_disk():
    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        wal, _ = await open_wal(spy, machine.tasks(), segment_bytes=600)
        spy.fail = lambda call, path: OSError(errno.ENOSPC, "x") if call == "preallocate" else None
        await fill(wal, A, 1, 2)
        await loop.delay(100_000)
        before = loop.now_us()
        await wal.close()
        assert loop.now_us() - before < 100_000

    run(main)


def test_close_removes_unused_next_segment():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await fill(wal, A, 1, 3)
        await loop.delay(100_000)
        files = machine.disk._mounted
        assert files is not None
        assert files.list("/d/wal")[-1] == "0000000002.wal.new"
        await wal.close()
        assert files.list("/d/wal") == ["0000000001.wal"]

    run(main)


def test_failed_segment_swap_fails_the_log():
    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        wal, _ = await open_wal(spy, machine.tasks(), segment_bytes=600)
        bad = OSError(errno.EIO, "rename")
        spy.fail = lambda call, path: bad if call == "rename" else None
        failed = []
        for i in range(1, 20):
            failed.append(await append(wal, A, [entry(i, bytes(100))]))
            await loop.delay(10_000)
        assert failed[0] is None
        assert failed[-1] is bad
        await wal.close()
        _, recovered = await machine.open()
        acked = failed.index(bad)
        assert indices(recovered, A) == list(range(1, acked + 1))

    run(main)
