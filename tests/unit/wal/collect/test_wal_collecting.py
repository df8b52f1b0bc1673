"""Reads and collection: only segments that no group needs are removed."""

import asyncio
import errno

import pytest

from nyala.common.errors import BadChecksum, LogGap
from nyala.raft.messages import HardState
from nyala.wal.segments.format import RECORD_HEADER_BYTES
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_content import RECORD, content, fill
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    C,
    Machine,
    SpyFiles,
    collected,
    durable,
    entries,
    entry,
    ids,
    indices,
    open_wal,
    vote,
)


@pytest.mark.row("S4.23", "S4.26")
def test_later_entry_replaces_index_in_reads_and_after_restart():
    """The index is in memory only: after a restart it is rebuilt from the segments."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await durable(wal, A, entries(1, 6))
        await durable(wal, B, entries(1, 9))
        await durable(wal, A, entries(4, 5, term=2), vote(2))
        read = await wal.read(A, 1, 10_000)  # entries after the replaced ones are removed too
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


def test_read_is_bounded_and_returns_at_least_one_entry():
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


def test_read_of_damaged_record_raises_bad_checksum():
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
def test_segment_is_kept_while_any_group_needs_it():
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
        with pytest.raises(LogGap, match="needs a tablet copy"):
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
def test_reader_anchors_its_segment():
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


def test_collection_keeps_requested_number_of_segments():
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


def test_last_vote_is_rewritten_before_its_segment_is_removed():
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


def test_forgotten_group_anchors_nothing_and_does_not_reappear():
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


def test_failed_segment_removal_is_retried_by_next_collection():
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


def test_collections_do_not_overlap_each_other_or_close():
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


def test_one_marker_proves_tail_of_idle_log():
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


def test_restarts_without_writes_do_not_accumulate_segments():
    async def main(loop):
        machine = Machine(loop)
        for _ in range(5):
            wal, recovered = await machine.open()
            assert not recovered
            machine.disk.crash()
        assert machine.files().list("/d/wal") == ["0000000001.wal"]
        assert wal.stats().segments == 1

    run(main)
