"""`wal_sync`: syncs of each policy, and losses in power failures."""

import random

import pytest

from nyala.wal.segments.segment import RELEASE_BYTES
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_harness import (
    A,
    B,
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

NEVER = {"sync": False}
INTERVAL = {"sync": False, "sync_interval_ms": 200}


def syncs(spy):
    return spy.count("sync")


@pytest.mark.row("S4.4")
def test_each_sync_policy_syncs_as_documented():
    """always: with each round; interval: within that time after a round; never: with the segment."""

    async def main(loop):
        for options, now, later in (({}, 3, 4), (INTERVAL, 0, 1), (NEVER, 0, 0)):
            machine = Machine(loop)
            spy = SpyFiles(machine.files())
            wal, _ = await open_wal(spy, machine.tasks(), **options)
            spy.calls.clear()
            for i in range(1, 4):
                await durable(wal, A, [entry(i)])
            assert syncs(spy) == now == wal.stats().syncs
            await loop.delay(500_000)
            assert syncs(spy) == later == wal.stats().syncs
            await loop.delay(60_000_000)
            assert syncs(spy) == later  # an idle log is left alone
            await wal.close()

    run(main)


@pytest.mark.row("S4.4")
def test_interval_policy_bounds_loss_of_power_failure_during_writes():
    async def main(loop):
        for seed in range(10):
            machine = Machine(loop, seed)
            wal, _ = await machine.open(**INTERVAL)
            acked: list[int] = []
            rng = random.Random(seed)
            while loop.now_us() < 2_000_000 * (seed + 1):
                await durable(wal, A, [entry(len(acked) + 1)])
                acked.append(loop.now_us())
                await loop.delay(rng.randrange(20_000))
            assert wal.stats().syncs >= 5
            cut = loop.now_us()
            machine.disk.crash()
            _, recovered = await machine.open()
            old = [at for at in acked if at < cut - 250_000]  # the interval, and the sync itself
            assert len(indices(recovered, A)) >= len(old) > 10

    run(main)


@pytest.mark.row("S4.4")
@pytest.mark.parametrize("options", [NEVER, INTERVAL])
def test_terms_and_votes_are_synced_under_every_policy(options):
    """A server that votes twice in a term endangers writes that others acknowledged, not only its own."""

    async def main(loop):
        for seed in range(8):
            machine = Machine(loop, seed)
            wal, _ = await machine.open(**options)
            await durable(wal, A, entries(1, 3))
            await durable(wal, B, [], vote(7, "cd" * 16))
            machine.disk.crash()
            _, recovered = await machine.open()
            assert recovered[B].hard_state == vote(7, "cd" * 16)
            assert indices(recovered, A) == [1, 2, 3]  # earlier records are synced with it

    run(main)


@pytest.mark.row("S4.4", "S4.14")
def test_failed_background_sync_fails_the_log():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(**INTERVAL)
        await durable(wal, A, [entry(1)])
        machine.disk.faults.sync_eio_rate = 1.0
        await loop.delay(300_000)
        assert wal.failed is not None
        err = await append(wal, A, [entry(2)])
        assert err is wal.failed

    run(main)


def test_log_that_failed_gets_no_marker():
    """Nothing would write it: it would count as waiting to be written for ever."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(**INTERVAL)
        await durable(wal, A, [entry(1)])
        machine.disk.faults.sync_eio_rate = 1.0
        assert await append(wal, A, [entry(2)], vote(1)) is wal.failed is not None
        await loop.delay(1_000_000)
        stats = wal.stats()
        assert (stats.markers, stats.pending_bytes) == (0, 0)

    run(main)


def test_proven_durable_index_is_never_beyond_last_sync():
    """Otherwise the tail lost in a power failure would look like damage."""

    async def main(loop):
        for options in (NEVER, INTERVAL):
            for seed in range(20):
                machine = Machine(loop, seed)
                wal, _ = await machine.open(segment_bytes=3000, **options)
                for i in range(1, 40):
                    await durable(
                        wal, A, [entry(i, bytes([i]) * 200)], vote(i) if i % 9 == 0 else None
                    )
                    await loop.delay(20_000)
                machine.disk.crash()
                wal, recovered = await machine.open()
                assert not wal.damage
                assert len(indices(recovered, A)) >= 36

    run(main)


def test_synced_pages_are_evicted_from_page_cache_in_large_steps():
    """Only durable records are released, and the log reads as before."""

    async def main(loop):
        for options, released in (({"segment_bytes": 8 << 20}, [3, 6]), (NEVER, [])):
            machine = Machine(loop)
            spy = SpyFiles(machine.files())
            wal, _ = await open_wal(spy, machine.tasks(), **options)
            spy.calls.clear()
            after = []
            for i in range(1, 7):
                before = spy.count("release")
                await durable(wal, A, [entry(i, payload=bytes(RELEASE_BYTES * 2 // 5))])
                after += [i] * (spy.count("release") - before)
            assert after == released
            assert [e.id.index for e in await wal.read(A, 1, 1 << 30)] == list(range(1, 7))
            await wal.close()

    run(main)
