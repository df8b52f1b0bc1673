"""A collection beside concurrent events: anchors that decrease while entries are moved, and shutdown."""

from nyala.wal import collect
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_content import fill
from tests.unit.wal.support.wal_harness import A, B, Machine, collected, durable, entries, indices

SEGMENT = 2000


async def beside_a_busy_group(machine, count, busy=100):
    """Write entries of A, all needed and movable; B fills the log without needed entries."""
    wal, _ = await machine.open(segment_bytes=SEGMENT)
    await durable(wal, A, entries(1, count))
    wal.set_anchor(A, 1, count + 1, movable=True)
    await fill(wal, B, 1, busy)
    wal.set_anchor(B, 10_000)
    return wal


def test_entries_anchored_during_move_keep_their_segment():
    """A new leader is elected, without the positions of its members."""

    async def main(loop):
        machine = Machine(loop)
        wal = await beside_a_busy_group(machine, 5)
        wal.set_anchor(A, 4, 6, movable=True)
        task = wal.collect()
        for _ in range(10_000):
            if wal.stats().moved:
                break
            assert not task.done()
            wal.set_anchor(A, 4, 6, movable=True)
            if wal.stats().pending_bytes:  # the run is being written
                wal.set_anchor(A, 2, 6, movable=True)
            await loop.delay(10)
        assert wal.stats().moved == 2
        await task
        assert [e.id.index for e in await wal.read(A, 2, 1 << 20)] == [2, 3, 4, 5]
        assert await collected(wal) > 2
        assert [e.id.index for e in await wal.read(A, 2, 1 << 20)] == [2, 3, 4, 5]
        machine.disk.crash()
        wal, recovered = await machine.open(segment_bytes=SEGMENT)
        assert indices(recovered, A) == [2, 3, 4, 5]

    run(main)


def test_collection_examines_only_segments_present_at_start(monkeypatch):
    """Moved entries fill segments of their own: their collection would move the same entries repeatedly."""
    monkeypatch.setattr(collect, "MOVE_SHARE", 1)

    async def main(loop):
        machine = Machine(loop)
        wal = await beside_a_busy_group(machine, 60)
        before = wal.stats()
        removed = await collected(wal)
        assert wal.stats().moved == 60
        assert removed == before.segments - 1
        assert [e.id.index for e in await wal.read(A, 1, 1 << 20)] == list(range(1, 61))

    run(main)


def test_records_after_forgotten_empty_replica_are_kept():
    """A released replica is deleted, and copied again: its entries precede its first anchor."""

    async def main(loop):
        machine = Machine(loop)
        wal = await beside_a_busy_group(machine, 5)
        wal.release(A)
        removed = loop.create_future()
        wal.forget(A, removed.set_result)
        assert await removed is None
        await durable(wal, A, entries(1, 5))
        await fill(wal, B, 101, 200)
        await collected(wal)
        assert [e.id.index for e in await wal.read(A, 1, 1 << 20)] == [1, 2, 3, 4, 5]

    run(main)
