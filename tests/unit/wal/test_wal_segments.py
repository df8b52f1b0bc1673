"""Segments: preallocated in the background, swapped in, sealed; read back; collected when unneeded."""

import asyncio
import errno

import pytest

from nyala.common.errors import BadChecksum, LogGap, Throttled
from nyala.env.files import SystemFiles
from nyala.env.tasks import Lane
from nyala.raft.messages import HardState
from nyala.wal.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    find_footer,
    unpack_footer,
    unpack_record,
)
from tests.sim.loop import run
from tests.unit.wal.wal_harness import (
    A,
    B,
    C,
    HeldTasks,
    Machine,
    SpyFiles,
    append,
    collected,
    durable,
    entries,
    entry,
    ids,
    indices,
    open_wal,
    vote,
)
from tests.waiting import eventually

RECORD = RECORD_HEADER_BYTES + 100


def content(machine, sequence):
    return bytes(machine.disk.names.get(f"/d/wal/{sequence:010d}.wal").content)


async def fill(wal, group, first, last):
    for i in range(first, last + 1):
        await durable(wal, group, [entry(i, bytes(100))])


@pytest.mark.row("S4.15")
def test_inside_the_preallocated_length_only_the_data_is_synced_beyond_it_the_length_too():
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
def test_the_next_segment_is_made_in_the_background_while_appends_go_on(tmp_path):
    """Real threads: the pool that preallocates is held up, the log goes on in the old segment."""

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
        assert order[:sealed] == ["remove", "preallocate", "append", "sync", "append"]
        assert order[sealed:] == ["truncate", "sync", "rename", "sync_dir"]
        await fill(wal, A, 21, 22)
        await wal.close()
        await tasks.close()

    asyncio.run(main())


@pytest.mark.row("S4.18", "S4.20")
def test_a_closed_segment_ends_with_its_footer_which_tells_what_is_in_it():
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


def test_a_segment_that_a_crash_left_open_is_sealed_by_the_next_open():
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
def test_a_full_disk_refuses_what_does_not_fit_loses_nothing_and_heals():
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
        assert count == 7  # it stops inside the preallocated length, with room for no hard state
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
def test_closing_does_not_wait_for_a_disk_that_stays_full():
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


def test_closing_removes_a_segment_that_was_never_swapped_in():
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


def test_a_failed_swap_fails_the_log():
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


@pytest.mark.row("S4.23", "S4.26")
def test_a_later_entry_for_an_index_wins_in_reads_and_after_a_restart():
    """The index is in memory only: after a restart it is rebuilt from the segments."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await durable(wal, A, entries(1, 6))
        await durable(wal, B, entries(1, 9))
        await durable(wal, A, entries(4, 5, term=2), vote(2))
        read = await wal.read(A, 1, 10_000)  # what followed the replaced entries is gone too
        assert [(e.id.term, e.id.index) for e in read][3:] == [(2, 4), (2, 5)]
        await durable(wal, A, entries(5, 8, term=3))
        expected = [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5), (3, 6), (3, 7), (3, 8)]
        for _ in range(2):
            read = await wal.read(A, 1, 10_000)
            assert [(e.id.term, e.id.index) for e in read] == expected
            assert [e.payload for e in read] == [b"%d/%d" % pair for pair in expected]
            assert [e.id.index for e in await wal.read(B, 1, 10_000)] == list(range(1, 10))
            await wal.close()
            wal, recovered = await machine.open()
            assert ids(recovered, A) == expected
            assert recovered[A].hard_state == HardState(2)
            assert recovered[A].entries == read

    run(main)


def test_a_read_keeps_to_its_limit_and_returns_at_least_one():
    async def main(loop):
        wal, _ = await Machine(loop).open(segment_bytes=1000)
        await fill(wal, A, 1, 30)

        async def read(first, limit):
            return [e.id.index for e in await wal.read(A, first, limit)]

        assert await read(1, 0) == [1]
        assert await read(3, 3 * RECORD) == [3, 4, 5]
        assert await read(3, 3 * RECORD - 1) == [3, 4]
        assert await read(28, 10**9) == [28, 29, 30]
        assert await read(31, 10**9) == []
        assert await wal.read(B, 1, 10) == []

    run(main)


def test_a_read_of_a_damaged_record_is_an_error_and_not_a_wrong_entry():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, entries(1, 3))
        at = content(machine, 1).index(b"1/2")
        machine.disk.flip_bit("/d/wal/0000000001.wal", at)
        assert [e.id.index for e in await wal.read(A, 1, 1)] == [1]
        with pytest.raises(BadChecksum) as caught:
            await wal.read(A, 1, 1000)
        assert caught.value.details["offset"] == str(at - RECORD_HEADER_BYTES)

    run(main)


@pytest.mark.row("S4.24")
def test_a_segment_stays_while_any_group_needs_an_entry_of_it():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        for i in range(1, 31):
            await durable(wal, (A, B)[i % 2], [entry((i + 1) // 2, bytes(100))])
        await loop.delay(50_000)  # a roll under way ends
        total = wal.stats().segments
        assert total > 4
        wal.set_anchor(A, 1000)
        assert wal.stats().pinned_by == (B,)  # no anchor: it may need everything
        assert await collected(wal) == 0
        wal.set_anchor(B, 9)
        assert wal.stats().pinned_by == ()
        removed = await collected(wal)
        assert 0 < removed < total - 1
        assert wal.stats().segments == total - removed
        assert wal.stats().pinned_by == (B,)
        assert [e.id.index for e in await wal.read(B, 9, 10**6)] == list(range(9, 16))
        with pytest.raises(LogGap, match="has to be copied"):
            await wal.read(B, 1, 10**6)
        wal.set_anchor(B, 1000)
        await collected(wal)
        assert wal.stats().segments == 1  # never the active one
        await fill(wal, A, 16, 17)
        await wal.close()
        _, recovered = await machine.open()
        assert indices(recovered, A)[-2:] == [16, 17]

    run(main)


@pytest.mark.row("S4.24")
def test_a_reader_holds_a_segment_until_it_is_done():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await fill(wal, A, 1, 12)
        wal.set_anchor(A, 1000)
        reading = asyncio.ensure_future(wal.read(A, 1, 10**6))
        await loop.delay(0)
        assert await collected(wal) == 0
        assert [e.id.index for e in await reading] == list(range(1, 13))
        assert await collected(wal) > 0

    run(main)


def test_a_collection_leaves_as_many_segments_as_it_is_told():
    async def main(loop):
        wal, _ = await Machine(loop).open(segment_bytes=1000)
        await fill(wal, A, 1, 30)
        await loop.delay(50_000)
        wal.set_anchor(A, 31)
        for keep in (3, 2):
            assert await wal.collect(keep)
            assert wal.stats().segments == keep
            assert await wal.collect(keep) == 0

    run(main)


def test_a_last_vote_is_written_anew_before_its_segment_goes():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await durable(wal, A, [], vote(4, "cd" * 16))
        await durable(wal, B, [], vote(1))
        await fill(wal, C, 1, 12)
        await durable(wal, B, [], vote(2))
        wal.set_anchor(C, 13)
        assert await collected(wal) > 0
        await wal.close()
        machine.disk.crash()
        _, recovered = await machine.open()
        assert recovered[A].hard_state == vote(4, "cd" * 16)
        assert recovered[B].hard_state == vote(2)

    run(main)


def test_a_forgotten_group_pins_nothing_and_does_not_come_back():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await durable(wal, A, entries(1, 5), vote(3))
        await fill(wal, B, 1, 12)
        wal.set_anchor(A, 2)
        wal.set_anchor(B, 13)
        assert wal.stats().pinned_by == (A,)
        wal.forget(A)
        await durable(wal, B, [entry(13)])
        assert await wal.read(A, 1, 100) == []
        assert wal.stats().pinned_by == ()
        await durable(wal, A, [entry(3, b"new life")])  # a copied replica may begin anywhere
        await wal.close()
        wal, recovered = await machine.open(segment_bytes=1000)
        assert [e.payload for e in recovered[A].entries] == [b"new life"]
        assert recovered[A].hard_state is None
        wal.forget(A)
        await wal.close()
        _, recovered = await machine.open()
        assert A not in recovered

    run(main)


def test_a_removal_that_fails_is_tried_again_by_the_next_collection():
    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        wal, _ = await open_wal(spy, machine.tasks(), segment_bytes=1000)
        await fill(wal, A, 1, 12)
        wal.set_anchor(A, 13)
        spy.fail = lambda call, path: OSError(errno.EIO, "x") if call == "remove" else None
        assert await collected(wal) == 0
        spy.fail = lambda call, path: None
        spy.calls.clear()
        removed = await collected(wal)
        assert removed > 1
        assert len(spy.list("/d/wal")) <= 2
        # Each removal is durable before the next: a power cut must not undo an earlier one alone.
        steps = [c[0] for c in spy.calls if c[0] in ("remove", "sync_dir")]
        assert steps[: 2 * removed] == ["remove", "sync_dir"] * removed

    run(main)


def test_collections_do_not_run_into_each_other_or_into_the_end():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await durable(wal, B, [], vote(1))
        await fill(wal, A, 1, 12)
        wal.set_anchor(A, 13)
        counts = await asyncio.gather(wal.collect(), wal.collect(), wal.close())
        assert counts[1] == 0
        _, recovered = await machine.open()
        assert recovered[B].hard_state == vote(1)

    run(main)


def test_one_marker_proves_the_tail_of_an_idle_log():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        for i in range(1, 4):
            await durable(wal, A, [entry(i)])
            await loop.delay(1_000_000)
            assert wal.stats().markers == i
            assert wal.stats().rounds == 2 * i
        await loop.delay(60_000_000)
        assert wal.stats().markers == 3
        machine.disk.crash()
        _, recovered = await machine.open()
        assert indices(recovered, A) == [1, 2, 3]

    run(main)


def test_restarts_without_writes_do_not_pile_up_segments():
    async def main(loop):
        machine = Machine(loop)
        for _ in range(5):
            wal, recovered = await machine.open()
            assert not recovered
            machine.disk.crash()
        assert machine.files().list("/d/wal") == ["0000000001.wal"]
        assert wal.stats().segments == 1

    run(main)
