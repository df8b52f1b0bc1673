"""Moves of entries that end before their run is complete, and groups that are removed meanwhile."""

import errno
from typing import Any

import pytest

from nyala.env.tasks import Lane
from nyala.wal import collect
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_content import fill
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    Machine,
    SpyFiles,
    append,
    collected,
    durable,
    entries,
    entry,
    indices,
    open_wal,
)

SEGMENT = 2000


async def in_two_segments(wal):
    """Write needed, movable entries 1 to 3 and 4 to 6 of A into two segments, beside a busy B."""
    await durable(wal, A, entries(1, 3))
    await fill(wal, B, 1, 30)
    await durable(wal, A, entries(4, 6))
    await fill(wal, B, 31, 100)
    wal.set_anchor(A, 1, 7, movable=True)
    wal.set_anchor(B, 1000)


@pytest.mark.parametrize("why", ["unreadable", "replaced"])
def test_originals_are_kept_until_run_of_moved_entries_is_complete(why, monkeypatch):
    """Recovery ignores an incomplete run, so its entries exist only where they were before."""
    monkeypatch.setattr(collect, "MOVE_BYTES", 1)

    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        wal, _ = await open_wal(spy, machine.tasks(), segment_bytes=SEGMENT)
        await in_two_segments(wal)
        reads, images = [], []

        def note(call, path):
            if call == "sync_dir":
                images.append(machine.disk.image())  # a segment was removed
            if call == "read":
                reads.append(path)
                if why == "replaced" and len(reads) == 5:
                    append(wal, A, [entry(6, term=2)])
                if why == "unreadable" and 5 <= len(reads) < 10:
                    return OSError(errno.EMFILE, "Too many open files")
            return None

        spy.fail = note
        assert await collected(wal) == 0
        assert 3 <= wal.stats().moved < 6
        for _ in range(10):
            await collected(wal)
        assert wal.stats().segments <= 2
        spy.fail = lambda call, path: None
        await wal.close()
        for image in images:
            machine.disk.kill()
            machine.disk.put_back(image)
            again, recovered = await machine.open(segment_bytes=SEGMENT)
            assert indices(recovered, A) == [1, 2, 3, 4, 5, 6]
            await again.close()

    run(main)


def test_entries_of_group_being_forgotten_are_not_moved():
    """Records after the one that voids the group would retain their segment permanently."""

    async def main(loop):
        machine, begun = Machine(loop), list[int]()
        tasks: Any = machine.tasks()
        wal, _ = await open_wal(machine.files(), tasks, segment_bytes=SEGMENT)
        await in_two_segments(wal)
        removed = loop.create_future()
        in_lane = tasks.run

        async def read_then_forgotten(lane, work, *args, **more):
            found = await in_lane(lane, work, *args, **more)
            if lane is Lane.COMPUTE and not wal.stats().collected and not begun:
                begun.append(wal.stats().segments)
                wal.forget(A, removed.set_result)
            return found

        tasks.run = read_then_forgotten
        await collected(wal)
        assert await removed is None
        assert wal.stats().moved == 0
        await fill(wal, B, 101, 200)
        await collected(wal)
        assert not wal.stats().pinned_by
        assert wal.stats().segments <= 2

    run(main)


def test_needed_end_of_run_survives_collection_of_its_beginning(monkeypatch):
    """The run spans segments, and is needed from its middle on when the first of them is the oldest."""
    monkeypatch.setattr(collect, "MOVE_BYTES", 500)

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT)
        await durable(wal, A, entries(1, 60))
        wal.set_anchor(A, 1, 61, movable=True)
        await fill(wal, B, 1, 200)
        wal.set_anchor(B, 1000)
        assert await collected(wal) > 2
        assert wal.stats().moved == 60
        await fill(wal, B, 201, 240)
        wal.set_anchor(A, 50)  # a lagging member has caught up, and no flush has released the rest
        assert await collected(wal) > 0
        assert wal.stats().moved == 60
        machine.disk.kill()
        _, recovered = await machine.open(segment_bytes=SEGMENT)
        assert indices(recovered, A)[-11:] == list(range(50, 61))

    run(main)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("interval_ms", [0, 200])
def test_moved_entries_are_synced_before_originals_are_removed(interval_ms, seed):
    """Without a sync of each round a power failure loses the last entries, never old ones."""

    async def main(loop):
        machine = Machine(loop, seed)
        wal, _ = await machine.open(segment_bytes=SEGMENT, sync=False, sync_interval_ms=interval_ms)
        await in_two_segments(wal)
        await loop.delay(1_000_000)
        assert await collected(wal) > 2
        machine.disk.crash()
        _, recovered = await machine.open(segment_bytes=SEGMENT)
        assert indices(recovered, A) == [1, 2, 3, 4, 5, 6]

    run(main)


def test_originals_of_incomplete_run_are_kept_after_restart(monkeypatch):
    """A crash ends the move, the next incarnation removes the originals, and another crash follows."""
    monkeypatch.setattr(collect, "MOVE_BYTES", 1)

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT)
        await in_two_segments(wal)
        task = wal.collect()
        while wal.stats().moved < 4:
            await loop.delay(10)
        machine.disk.kill()
        task.cancel()
        spy = SpyFiles(machine.files())
        wal, recovered = await open_wal(spy, machine.tasks(), segment_bytes=SEGMENT)
        assert indices(recovered, A) == [1, 2, 3, 4, 5, 6]
        wal.set_anchor(A, 1, 7, movable=True)
        wal.set_anchor(B, 1000)
        images = []
        spy.fail = lambda call, _: (
            images.append(machine.disk.image()) if call == "sync_dir" else None
        )
        await collected(wal)
        assert images
        for image in images:
            machine.disk.kill()
            machine.disk.put_back(image)
            wal, recovered = await machine.open(segment_bytes=SEGMENT)
            assert indices(recovered, A) == [1, 2, 3, 4, 5, 6]

    run(main)
