"""The appender: order of reservation, one write and one sync a round, back pressure, errors, the end."""

import asyncio
import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from nyala.common.errors import InvalidArgument, Throttled, Unavailable
from nyala.env.files import SystemFiles
from nyala.env.tasks import Lane
from nyala.wal.append.slots import SlotState
from nyala.wal.log_state import LogState
from nyala.wal.segments.format import RECORD_HEADER_BYTES
from nyala.wal.segments.scan import scan
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_harness import (
    UUID,
    A,
    B,
    C,
    Machine,
    SpyFiles,
    append,
    durable,
    entries,
    entry,
    hand_in,
    indices,
    noted,
    open_wal,
    vote,
)

FIRST = "0000000001.wal"


def on_disk(machine, name=FIRST):
    """(group, index) of the records in a segment, in their order on disk."""
    found = scan(machine.files().read(f"/d/wal/{name}"), name, int(name[:10]))
    return [(r.group.hex(), r.index) for r in found.records if r.index]


@pytest.mark.row("S4.1", "S4.6", "S4.7")
def test_reserved_slots_are_written_in_reservation_order():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        order: list[object] = []
        slots = [wal.reserve(g, [entry(i)], None) for i in (1, 2) for g in (A, B, C)]
        assert {s.state for s in slots} == {SlotState.RESERVED}
        for number in (4, 2, 5, 1, 3):  # all but the head
            wal.append_async(slots[number], noted(order, number))
        await loop.delay(50_000)
        assert slots[1].state is SlotState.READY
        assert order == []
        assert wal.stats().rounds == 0  # the appender waits for the reserved head
        wal.append_async(slots[0], noted(order, 0))
        await loop.delay(50_000)
        assert order == [(n, None) for n in range(6)]
        assert {s.state for s in slots} == {SlotState.DONE}
        await wal.close()
        assert on_disk(machine) == [(g, i) for i in (1, 2) for g in (A, B, C)]

    run(main)


@pytest.mark.row("S4.13")
@pytest.mark.parametrize("most", [1 << 30, 1000], ids=["whole", "short"])
def test_round_is_written_with_one_vectored_write(tmp_path, monkeypatch, most):
    """Buffers are not joined; the rest of a short write goes with the next."""
    written = []

    def pwritev(fd, buffers, offset):
        written.append(len(buffers))
        return os.pwrite(fd, b"".join(buffers)[:most], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    path = str(tmp_path / "log")
    buffers = [bytes([n]) * (31 * n) for n in range(1, 40)]
    file = SystemFiles().open_append(path)
    assert file.append(buffers) == sum(map(len, buffers))
    file.close()
    assert Path(path).read_bytes() == b"".join(buffers)
    assert written[0] == len(buffers)
    assert len(written) == (1 if most > 1000 else 25)


@pytest.mark.row("S4.9")
def test_round_writes_and_syncs_whole_queue_once_then_calls_back_in_order():
    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        wal, _ = await open_wal(spy, machine.tasks(), segment_bytes=1 << 20)
        order: list[object] = []
        for i in range(1, 101):
            slot = wal.reserve(A, [entry(i)], vote(i))
            wal.append_async(slot, noted(order, i))
        spy.calls.clear()
        assert order == []  # never from inside append_async
        await durable(wal, B, [entry(1)])
        assert order == [(i, None) for i in range(1, 101)]
        assert [c[0] for c in spy.calls] == ["append", "sync"]

    run(main)


@pytest.mark.row("S4.5")
def test_many_writers_share_syncs():
    async def syncs(loop, writers):
        machine = Machine(loop)
        wal, _ = await machine.open()

        async def write(group):
            for i in range(1, 21):
                await durable(wal, group, [entry(i)])

        await asyncio.gather(*(write(f"{n:032x}") for n in range(writers)))
        assert wal.stats().slots == 20 * writers
        return wal.stats().syncs

    async def main(loop):
        alone, together = await syncs(loop, 1), await syncs(loop, 64)
        assert alone == 20
        assert together <= 2 * alone  # 64 times the appends

    run(main)


def test_single_append_is_written_without_delay():
    async def main(loop):
        wal, _ = await Machine(loop).open()
        await durable(wal, A, [entry(1)])
        assert wal.stats().rounds == 1
        assert loop.now_us() < 10_000

    run(main)


@pytest.mark.row("S4.8")
def test_entry_payload_is_written_without_copy():
    async def main(loop):
        machine, seen = Machine(loop), list[object]()
        files = machine.files()
        open_append = files.open_append

        def opened(*args, **more):
            file = open_append(*args, **more)
            write = file.append

            def append_seen(buffers):
                seen.extend(buffers)
                return write(buffers)

            file.append = append_seen
            return file

        files.open_append = opened
        wal, _ = await open_wal(files, machine.tasks())
        payloads = [bytes([n]) * 100_000 for n in range(3)]
        await asyncio.gather(
            *(append(wal, g, [entry(1, p)]) for g, p in zip((A, B, C), payloads, strict=True))
        )
        assert [p for p in payloads if any(s is p for s in seen)] == payloads

    run(main)


@pytest.mark.row("S4.11")
def test_full_queue_refuses_appends_until_drained():
    async def main(loop):
        wal, _ = await Machine(loop).open(queue_bytes=3000)
        first = append(wal, A, [entry(1, bytes(2000))])
        with pytest.raises(Throttled, match="are waiting to be written to the log") as caught:
            wal.reserve(B, [entry(1, bytes(2000))], None)
        assert caught.value.details["retry_after_ms"] == "20"
        assert wal.stats().pending_bytes == 2000 + 2 * RECORD_HEADER_BYTES
        assert await first is None
        await durable(wal, B, [entry(1, bytes(2000))])  # the refusal reserved nothing
        await durable(
            wal, A, [entry(2, bytes(9000))]
        )  # one slot is admitted regardless of its size
        assert wal.stats().pending_bytes == 0

    run(main)


@pytest.mark.row("S4.10")
def test_close_flushes_pending_appends_and_refuses_later_ones():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        late = wal.reserve(C, [entry(1)], None)
        slots = [wal.reserve(A, [entry(i)], None) for i in (1, 2)]
        hand_in(wal, late)
        done = [hand_in(wal, s) for s in slots]
        stuck = wal.reserve(B, [entry(1)], None)
        behind = append(wal, B, [entry(2)])
        await wal.close()
        await wal.close()
        assert [f.result() for f in done] == [None, None]
        assert getattr(behind.result(), "errno", None) == errno.ECANCELED
        with pytest.raises(Unavailable, match="closed"):
            wal.reserve(A, [entry(3)], None)
        with pytest.raises(Unavailable):
            wal.forget(A)
        assert getattr(await hand_in(wal, stuck), "errno", None) == errno.ECANCELED
        _, recovered = await machine.open()
        assert (indices(recovered, A), indices(recovered, B)) == ([1, 2], [])
        assert indices(recovered, C) == [1]

    run(main)


def test_idle_appender_schedules_no_events():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, [entry(1)])
        await loop.delay(10_000_000)
        before = loop.events
        await loop.delay(60_000_000)
        assert loop.events - before < 5
        assert wal.stats().rounds == 2  # the entry's, and one marker

    run(main)


@pytest.mark.row("S4.14")
@pytest.mark.parametrize("call", ["append", "sync"])
def test_io_error_fails_round_and_all_later_appends(call):
    async def main(loop):
        machine = Machine(loop)
        spy = SpyFiles(machine.files())
        wal, _ = await open_wal(spy, machine.tasks())
        await durable(wal, A, [entry(1)])
        bad = OSError(errno.EIO, "bad sector")
        spy.fail = lambda made, path: bad if made == call else None
        order: list[object] = []
        slots = [wal.reserve(g, [entry(2)], None) for g in (A, B, C)]
        for n, slot in enumerate(slots[:2]):
            wal.append_async(slot, noted(order, n))
        await loop.delay(50_000)
        assert order == [(0, bad), (1, bad)]
        assert wal.failed is bad
        spy.fail = lambda made, path: None  # the disk works again; its content is still unknown
        calls = len(spy.calls)
        assert await hand_in(wal, slots[2]) is bad
        assert await append(wal, A, [entry(3)]) is bad
        assert wal.stats().pending_bytes == 0
        await wal.close()
        assert len(spy.calls) == calls

    run(main)


def test_appender_failure_reaches_every_waiter():
    async def main(loop):
        wal, _ = await Machine(loop).open()
        with mock.patch.object(LogState, "record_durable", None):
            err = await append(wal, A, [entry(1)])
        assert err is not None
        assert "appender stopped" in str(err)
        assert wal.failed is err
        await loop.delay(1000)
        assert isinstance(loop.failures.pop(), TypeError)

    run(main)


def test_failing_callback_does_not_affect_others():
    async def main(loop):
        wal, _ = await Machine(loop).open()

        def broken(err):
            raise ZeroDivisionError

        wal.append_async(wal.reserve(A, [entry(1)], None), broken)
        await durable(wal, A, [entry(2)])
        await durable(wal, A, [entry(3)])
        assert isinstance(loop.failures.pop(), ZeroDivisionError)

    run(main)


def test_reserve_accepts_replaced_tail_and_refuses_gap():
    async def main(loop):
        wal, _ = await Machine(loop).open()
        await durable(wal, A, entries(5, 9))  # a log may begin anywhere
        for bad in ([entry(11)], [entry(10), entry(12)], [entry(10), entry(9)], [entry(0)]):
            with pytest.raises(AssertionError):
                wal.reserve(A, bad, None)
        assert wal.stats().pending_bytes == 0
        await durable(wal, A, [entry(7, term=2), entry(8, term=2)])
        await durable(wal, A, [entry(9, term=2)])

    run(main)


@pytest.mark.parametrize("at_once", [True, False], ids=["reserved", "durable"])
def test_forgotten_group_continues_at_any_index(at_once):
    """A replica is deleted, and replaced by a copy of another one that is far ahead."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, entries(1, 3))
        removed = loop.create_future()
        wal.forget(A, removed.set_result)
        if not at_once:
            assert await removed is None
        await durable(wal, A, entries(50, 52))
        assert [e.id.index for e in await wal.read(A, 50, 1 << 20)] == [50, 51, 52]
        machine.disk.crash()
        _, recovered = await machine.open()
        assert indices(recovered, A) == [50, 51, 52]

    run(main)


def test_slot_is_submitted_once():
    async def main(loop):
        wal, _ = await Machine(loop).open()
        slot = wal.reserve(A, [entry(1)], None)
        await hand_in(wal, slot)
        with pytest.raises(AssertionError, match="twice"):
            wal.append_async(slot, print)

    run(main)


@pytest.mark.parametrize(
    "bad",
    [{"segment_bytes": 48}, {"segment_bytes": 2**31}, {"queue_bytes": 0}, {"uuid": "server-1"}],
)
def test_bad_options_are_refused_before_anything_is_touched(bad):
    async def main(loop):
        machine = Machine(loop)
        with pytest.raises(InvalidArgument):
            await machine.open(**bad)
        assert machine.disk.operations == 0
        wal, _ = await machine.open(uuid=UUID)
        with pytest.raises(InvalidArgument):
            wal.reserve("tablet", [entry(1)], None)  # type: ignore[arg-type]

    run(main)


def test_reads_and_preallocation_do_not_use_the_disk_lane():
    async def main(loop):
        machine = Machine(loop)
        tasks, lanes = machine.tasks(), []
        real = tasks.run

        async def note(lane, fn, *args, **kwargs):
            lanes.append((lane, fn.__name__))
            return await real(lane, fn, *args, **kwargs)

        tasks.run = note  # type: ignore[method-assign]
        wal, _ = await open_wal(machine.files(), tasks, segment_bytes=1000)
        await durable(wal, A, entries(1, 9))
        await wal.read(A, 1, 10)
        await wal.close()
        assert (Lane.COMPUTE, "read_entries") in lanes
        assert (Lane.COMPUTE, "create") in lanes
        assert [f for lane, f in lanes if lane is Lane.DISK][:2] == ["_begin", "write"]

    run(main)
