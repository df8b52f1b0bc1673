"""A full disk, and the reserve: appends are refused, no entry is lost, and the log recovers."""

import errno

import pytest

from nyala.common.errors import Throttled
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_full import RESERVE, SEGMENT, fill, until_refused
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    Machine,
    append,
    durable,
    entry,
    indices,
)


@pytest.mark.row("S4.25")
def test_log_stops_growing_before_disk_is_full_and_resumes():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT, reserve_bytes=RESERVE)
        machine.disk.faults.capacity_bytes = RESERVE + 5 * SEGMENT
        last, refusal = await until_refused(wal, loop, 1)
        assert "cannot grow" in refusal.message
        assert f"the log leaves {RESERVE} (wal_reserve_mb)" in refusal.message
        assert int(refusal.details["retry_after_ms"]) > 0
        assert last > 30
        free = machine.disk.faults.capacity_bytes - machine.disk.used_bytes()
        assert free >= RESERVE  # others can still flush
        assert wal.failed is None
        assert wal.stats().disk_error is not None
        machine.disk.faults.capacity_bytes += 5 * SEGMENT
        await loop.delay(2_000_000)
        assert wal.stats().disk_error is None
        await fill(wal, last + 1, last + 20)
        await wal.close()
        _, recovered = await machine.open()
        assert indices(recovered, A) == list(range(1, last + 21))

    run(main)


@pytest.mark.row("S4.25")
def test_log_has_space_after_collection():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT, reserve_bytes=RESERVE)
        machine.disk.faults.capacity_bytes = RESERVE + 5 * SEGMENT
        last, _ = await until_refused(wal, loop, 1)
        wal.set_anchor(A, last)
        assert await wal.collect()
        await loop.delay(2_000_000)
        await fill(wal, last + 1, last + 5)

    run(main)


@pytest.mark.row("S4.25")
def test_server_starts_on_disk_below_reserve():
    """Only a running server can free space."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT)
        await fill(wal, 1, 3)
        machine.disk.crash()
        machine.disk.faults.capacity_bytes = machine.disk.used_bytes() + RESERVE // 2
        wal, recovered = await machine.open(segment_bytes=SEGMENT, reserve_bytes=RESERVE)
        assert indices(recovered, A) == [1, 2, 3]
        last, _ = await until_refused(wal, loop, 4)
        assert last > 4

    run(main)


@pytest.mark.row("S4.19", "S4.25")
@pytest.mark.parametrize("reserve_bytes", [0, RESERVE])
def test_append_round_beyond_preallocation_waits_for_space_without_loss(reserve_bytes):
    """A round may be longer than the rest of its segment, with a full disk at that time."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT, reserve_bytes=reserve_bytes)
        machine.disk.faults.capacity_bytes = machine.disk.used_bytes() + reserve_bytes
        large = append(wal, A, [entry(1, bytes(2 * SEGMENT))])
        await loop.delay(3_000_000)
        assert not large.done()
        assert wal.failed is None
        with pytest.raises(Throttled, match="cannot grow"):
            wal.reserve(B, [entry(1)], None)
        machine.disk.faults.capacity_bytes += 10 * SEGMENT
        assert await large is None
        await durable(wal, B, [entry(1)])
        await loop.delay(2_000_000)
        assert wal.stats().disk_error is None
        machine.disk.crash()
        _, recovered = await machine.open()
        assert recovered[A].entries == [entry(1, bytes(2 * SEGMENT))]
        assert indices(recovered, B) == [1]

    run(main)


@pytest.mark.row("S4.19")
def test_close_abandons_round_without_space():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT)
        await durable(wal, B, [entry(1)])
        machine.disk.faults.capacity_bytes = machine.disk.used_bytes()
        large = append(wal, A, [entry(1, bytes(2 * SEGMENT))])
        await loop.delay(500_000)
        await wal.close()
        err = large.result()
        assert err is not None
        assert err.errno == errno.ENOSPC
        machine.disk.faults.capacity_bytes = None
        _, recovered = await machine.open()
        assert (indices(recovered, A), indices(recovered, B)) == ([], [1])

    run(main)


@pytest.mark.row("S4.25")
def test_segment_without_space_for_its_footer_is_sealed_when_space_returns():
    """Flushes and copies may use the reserve while the last round of a segment is written."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT)
        await fill(wal, 1, 8)
        await loop.delay(1_000_000)  # the next segment is prepared
        machine.disk.faults.capacity_bytes = machine.disk.used_bytes() + 450
        await fill(wal, 9, 9)
        await loop.delay(3_000_000)
        assert wal.failed is None
        assert wal.stats().disk_error is not None
        with pytest.raises(Throttled, match="cannot grow"):
            wal.reserve(A, [entry(10)], None)
        machine.disk.faults.capacity_bytes += 10 * SEGMENT
        await loop.delay(3_000_000)
        assert wal.stats().disk_error is None
        await fill(wal, 10, 30)
        machine.disk.crash()
        _, recovered = await machine.open()
        assert indices(recovered, A) == list(range(1, 31))

    run(main)
