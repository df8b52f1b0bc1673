"""Segments that are blank, missing, truncated, of another server or format; reports of damage."""

import logging

import pytest

from nyala.common.errors import BadVersion, Corrupt, LogGap
from nyala.wal.append.frame import frame
from nyala.wal.segments.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    LogPosition,
    crc32c,
    draft_entry,
    group_bytes,
)
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_crashed import FIRST, SECOND, content, crashed, flipped, replace
from tests.unit.wal.support.wal_harness import A, B, Machine, durable, entries, entry, indices

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.row("S4.22")
@pytest.mark.parametrize("size", [0, 10, SEGMENT_HEADER_BYTES, 5000])
def test_blank_or_headerless_last_segment_is_ignored_and_removed(size):
    async def main(loop):
        machine = await crashed(loop, [(A, entries(1, 3))])
        files = machine.files()
        files.write_atomic(SECOND, bytes(size))
        files.write_atomic("/d/wal/0000000003.wal.new", bytes(size))
        wal, recovered = await machine.open()
        assert indices(recovered, A) == [1, 2, 3]
        assert not wal.damage
        assert wal.torn is None
        assert machine.disk.mount().list("/d/wal") == [p[7:] for p in (FIRST, SECOND)]
        assert content(machine, SECOND)[:8] == b"NYALAWAL"  # the number is used again

    run(main)


def test_missing_middle_segment_is_damage_for_every_group():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=600)
        for i in range(1, 20):
            await durable(wal, A, [entry(i, bytes(90))])
        await wal.close()
        machine.files().remove(SECOND)
        wal, recovered = await machine.open()
        (damage,) = wal.damage
        assert isinstance(damage.error, LogGap)
        assert "segments 2..2 before it are missing" in damage.error.message
        assert isinstance(recovered[A].corrupt, LogGap)
        found = indices(recovered, A)
        assert found == list(range(1, len(found) + 1))
        assert 3 <= len(found) <= 6
        assert wal.stats().pinned_by == (A,)  # and nothing of it is collected
        wal.set_anchor(A, 1000)
        await wal.collect()
        wal, recovered = await machine.open()
        assert recovered[A].corrupt is not None

    run(main)


def test_segment_truncated_before_footer_is_damage_when_followed_by_another():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=600)
        for i in range(1, 20):
            await durable(wal, A, [entry(i, bytes(90))])
        await wal.close()
        whole = content(machine)
        at = SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + 90  # between two records
        for cut in (whole[:at], whole[:at] + bytes(500)):
            replace(machine, cut)
            wal, recovered = await machine.open()
            assert [d.error.details["offset"] for d in wal.damage] == [str(at)]
            assert wal.torn is None
            assert recovered[A].corrupt is not None
            assert indices(recovered, A) == [1]
            await wal.close()

    run(main)


def test_entry_after_gap_makes_its_group_corrupt():
    """For any cause: no replica continues with a gap in its log."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, entries(1, 2))
        await durable(wal, B, [entry(1)])
        machine.disk.kill()
        end = SEGMENT_HEADER_BYTES + wal.stats().bytes_written
        at = LogPosition(1, end)
        (record,), _ = frame([draft_entry(group_bytes(A), entry(7))], at, at)
        whole = content(machine)
        replace(machine, whole[:end] + bytes(record) + whole[end + len(record) :])
        _, recovered = await machine.open()
        assert isinstance(recovered[A].corrupt, LogGap)
        assert indices(recovered, A) == [1, 2]
        assert recovered[B].corrupt is None

    run(main)


def test_log_of_another_server_is_refused_unchanged():
    async def main(loop):
        machine = await crashed(loop, [(A, [entry(1)])])
        before = content(machine)
        with pytest.raises(Corrupt, match=r"was written by server abab.*its own data directory"):
            await machine.open(uuid="cd" * 16)
        assert content(machine) == before
        assert machine.files().list("/d/wal") == [FIRST[7:]]

    run(main)


def test_newer_log_format_is_refused_unchanged():
    async def main(loop):
        machine = await crashed(loop, [(A, [entry(1)])])
        head = bytearray(content(machine)[: SEGMENT_HEADER_BYTES - 4])
        head[8] = 3
        data = bytes(head) + crc32c(bytes(head)).to_bytes(4, "little")
        replace(machine, data + content(machine)[SEGMENT_HEADER_BYTES:])
        before = content(machine)
        with pytest.raises(BadVersion, match=r"has format version 3, .* reads up to version 2"):
            await machine.open()
        assert content(machine) == before

    run(main)


def test_damage_and_torn_tail_are_logged_with_file_and_offset(caplog):
    logging.getLogger("nyala.wal").setLevel(logging.INFO)

    async def main(loop):
        machine = await crashed(loop, [(A, [entry(1, b"old")])], [(B, [entry(1, b"new")])])
        data = content(machine)
        replace(machine, flipped(flipped(data, data.index(b"old")), data.index(b"new")))
        await machine.open()

    run(main)
    levels = {r.levelname: r.getMessage() for r in caplog.records}
    assert f"{FIRST}: a durable record at offset 48 is damaged" in levels["ERROR"]
    assert f"{FIRST}: the log ends at offset 131" in levels["WARNING"]
