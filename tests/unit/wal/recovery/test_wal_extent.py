"""A lost log, or lost first or last segments, are detected by the extent record beside the log."""

import errno
import random

import pytest

from nyala.common.errors import BadChecksum, LogGap
from nyala.wal.segments.extent import FILE_NAME, Extent, ExtentFile, decode, encode
from nyala.wal.segments.format import LogPosition
from nyala.wal.segments.scan import scan
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_crashed import FIRST, content, flipped
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    C,
    Machine,
    collected,
    durable,
    entries,
    entry,
    open_wal,
    vote,
)

NOTE = f"/d/{FILE_NAME}"


def extent(machine):
    return decode(content(machine, NOTE))


def names(machine):
    return machine.files().list("/d/wal")


def drop(machine, wanted):
    files = machine.files()
    for name in wanted:
        files.remove(f"/d/wal/{name}")
    files.sync_dir("/d/wal")


async def some_segments(loop, *, closed: bool):
    """A machine with five segments of A's entries, the first with B's too."""
    machine = Machine(loop)
    wal, _ = await machine.open(segment_bytes=900)
    await durable(wal, B, [entry(1)], vote(1))
    for index in range(1, 60):
        if wal.stats().rolls == 4:
            break
        await durable(wal, A, [entry(index, bytes(300))])
        await loop.delay(10_000)
    assert wal.stats().segments == 5
    if closed:
        await wal.close()
    else:
        machine.disk.kill()
    return machine


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("removed", ["all", "first", "last but one on"])
def test_missing_first_or_last_segments_are_reported_until_accepted(removed, closed):
    async def main(loop):
        machine = await some_segments(loop, closed=closed)
        segments = names(machine)
        drop(
            machine,
            {"all": segments, "first": segments[:1], "last but one on": segments[3:]}[removed],
        )
        for start in range(1, 4):  # the same verdict at each start
            wal, recovered = await machine.open(segment_bytes=900)
            assert wal.unattributed is not None
            assert isinstance(wal.unattributed.error, LogGap)
            assert not wal.unattributed.certain
            assert all(g == C or own.corrupt is not None for g, own in recovered.items())
            assert (A in recovered) == (removed != "all")
            await durable(wal, C, [entry(start)])
            await wal.close()
        wal, _ = await machine.open(segment_bytes=900)
        await wal.accept_damage()
        await wal.close()
        wal, _ = await machine.open(segment_bytes=900)
        assert wal.unattributed is None
        await wal.close()

    run(main)


@pytest.mark.parametrize("kept", [0, 48, 700])
def test_last_segment_shorter_than_at_close_is_damaged(kept):
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, [entry(i, bytes(200)) for i in range(1, 9)], vote(1))
        await wal.close()
        machine.put(FIRST, content(machine)[:kept])
        for first in (True, False):
            wal, recovered = await machine.open()
            assert wal.damage
            assert not first or any(not d.certain for d in wal.damage)
            assert A not in recovered or recovered[A].corrupt is not None
            await wal.close()

    run(main)


def test_collected_segments_are_not_reported_missing():
    async def main(loop):
        machine = await some_segments(loop, closed=True)
        wal, _ = await machine.open(segment_bytes=900)
        wal.set_anchor(A, 1 << 40)
        wal.set_anchor(B, 1 << 40)
        assert await collected(wal) == 5
        assert extent(machine).first == 6
        await wal.close()
        wal, recovered = await machine.open(segment_bytes=900)
        assert not wal.damage
        assert recovered[B].hard_state == vote(1)
        await wal.close()

    run(main)


@pytest.mark.parametrize("how", ["none", "damaged"])
def test_log_without_extent_record_is_accepted_and_recorded(how):
    """A directory of an older build has none; an unreadable one is ignored."""

    async def main(loop):
        machine = await some_segments(loop, closed=True)
        if how == "none":
            machine.files().remove(NOTE)
        else:
            raw = bytearray(machine.files().read(NOTE))
            raw[14] ^= 4
            machine.put(NOTE, bytes(raw))
        drop(machine, names(machine)[:1])
        wal, recovered = await machine.open(segment_bytes=900)
        assert not wal.damage
        assert A in recovered
        assert extent(machine) == Extent(2, LogPosition(6, 48))
        await wal.close()

    run(main)


def test_crash_during_first_starts_leaves_log_that_opens():
    """Segments in which nothing is are removed by the next start: they are never missed."""

    async def main(loop):
        at, ended = 0, False
        while not ended:
            at += 1
            machine = Machine(loop, at)
            if at % 2:  # begin with a segment that was never written to, and not closed
                await machine.open()
                machine.disk.kill()
            machine.disk.die_after((at + 1) // 2)

            async def restarts(files, tasks):
                for _ in range(3):
                    wal, _ = await open_wal(files, tasks)
                    await wal.close()

            ended = await machine.live(restarts)
            machine.disk.crash()
            wal, _ = await machine.open()
            assert not wal.damage
            await durable(wal, A, entries(1, 2))
            await wal.close()
            wal, recovered = await machine.open()
            assert len(recovered[A].entries) == 2
            await wal.close()

    run(main)


def test_footer_proves_last_record_of_closed_log():
    """It is the last record, and the extent record is lost: without the footer it looked like a torn tail."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        for index in range(1, 4):
            await durable(wal, A, [entry(index)])
        await wal.close()
        whole = content(machine)
        last = scan(whole, FIRST, 1).records[-1]
        for at in (last.offset + 1, last.offset + last.length - 1):
            machine.put(FIRST, flipped(whole, at))
            machine.files().remove(NOTE)
            wal, recovered = await machine.open()
            assert wal.torn is None
            assert isinstance(recovered[A].corrupt, BadChecksum)
            await wal.close()
            machine.files().remove("/d/wal/0000000002.wal")

    run(main)


def test_extent_record_is_updated_on_full_disk_so_that_segments_are_removed():
    """Without space for a new extent record it is removed, rather than kept with collected segments."""

    async def main(loop):
        machine = await some_segments(loop, closed=True)
        files = machine.files()
        note = ExtentFile(files, "/d")
        note.load()

        def full(path, data):
            raise OSError(errno.ENOSPC, "no space", path)

        files.write_atomic = full
        note.advance_first(3)
        assert not files.exists(NOTE)
        note.advance_first(4)
        assert not files.exists(NOTE)

    run(main)


def test_numbers_of_removed_segments_are_not_used_again():
    """The record's end was not brought up to date, by an error of the disk, before they were removed."""

    async def main(loop):
        machine = Machine(loop)
        files = machine.files()
        files.make_dir("/d")
        note = ExtentFile(files, "/d")
        note.save(Extent(1, LogPosition(2, 48)))
        note.advance_first(5)
        assert extent(machine) == Extent(5, LogPosition(5, 0))
        wal, _ = await machine.open()
        assert not wal.damage
        await wal.close()
        assert names(machine) == ["0000000006.wal"]

    run(main)


def test_extent_record_with_any_flipped_bit_is_ignored():
    raw = encode(Extent(3, LogPosition(7, 1234)))
    assert decode(raw) == Extent(3, LogPosition(7, 1234))
    rng = random.Random(1)
    for _ in range(200):
        bit = rng.randrange(8 * len(raw))
        spoilt = bytearray(raw)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(spoilt)) is None
    assert decode(raw[:-1]) is None
    assert decode(b"") is None
