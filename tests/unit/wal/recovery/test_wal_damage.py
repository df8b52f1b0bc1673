"""Torn tail or damage: the `synced_through` rule, the effects of each, no silent truncation."""

import pytest

from nyala.common.errors import BadChecksum
from nyala.common.ids import TabletId
from nyala.wal.segments.format import RECORD_HEADER_BYTES, TRAILER_BYTES, find_footer, to_group
from nyala.wal.segments.scan import scan
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_crashed import FIRST, SECOND, content, crashed, flipped, replace
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    C,
    Machine,
    durable,
    entries,
    entry,
    indices,
    open_wal,
    vote,
)

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.row("S4.21")
def test_last_record_torn_at_any_byte_ends_the_log():
    """Truncated, zeroed or overwritten from there on: only earlier records are kept."""

    async def main(loop):
        machine = await crashed(loop, [(A, entries(1, 3))], [(B, [entry(1, b"the last one")])])
        whole = content(machine)
        length = RECORD_HEADER_BYTES + len(b"the last one")
        start = whole.index(b"the last one") - RECORD_HEADER_BYTES
        for at in range(start, start + length):
            zeros = bytes(len(whole) - at)
            for torn in (whole[:at], whole[:at] + zeros, whole[:at] + b"\xee" * 99 + zeros[99:]):
                replace(machine, torn)
                wal, recovered = await machine.open()
                assert indices(recovered, A) == [1, 2, 3]
                assert B not in recovered
                assert not wal.damage
                if wal.torn is not None:  # at its first byte, zeros are just a clean end
                    assert (wal.torn.path, wal.torn.offset) == (FIRST, start)
                assert (wal.torn is None) == (at == start and b"\xee" not in torn)
                await durable(wal, B, [entry(1, b"again")])
                await wal.close()
                assert machine.disk.mount().list("/d/wal") == [p[7:] for p in (FIRST, SECOND)]
                (
                    wal,
                    recovered,
                ) = await machine.open()  # later writes stand in a segment of their own
                assert indices(recovered, A) == [1, 2, 3]
                assert recovered[B].entries == [entry(1, b"again")]
                assert wal.torn is None
                machine.files().remove(SECOND)
                machine.files().remove("/d/wal/0000000003.wal")
                machine.files().remove("/d/wal.extent")

    run(main)


@pytest.mark.row("S4.21")
def test_any_flipped_byte_of_closed_segment_is_reported_with_file_and_offset():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open()
        await durable(wal, A, entries(1, 2), vote(1))
        await durable(wal, B, [entry(1)])
        await wal.close()
        wal, _ = await machine.open()
        await durable(wal, C, [entry(1)])
        await wal.close()
        whole = content(machine)
        footer = find_footer(whole, len(whole), 1)
        assert footer is not None
        records = scan(whole, FIRST, 1).records
        both_groups = {A, B}
        for at in range(len(whole)):
            replace(machine, flipped(whole, at))
            wal, recovered = await machine.open()
            hit = next((r for r in records if r.offset <= at < r.offset + r.length), None)
            (damage,) = wal.damage
            where = hit.offset if hit else 0 if at < footer else footer
            if at >= len(whole) - TRAILER_BYTES:
                where = len(whole) - TRAILER_BYTES
            assert damage.error.details == {"path": FIRST, "offset": str(where)}
            assert FIRST in damage.error.message
            affected = {to_group(hit.group)} if hit else set() if at >= footer else both_groups
            assert {g for g, r in recovered.items() if r.corrupt is not None} == affected
            assert all(isinstance(recovered[g].corrupt, BadChecksum) for g in affected)
            assert indices(recovered, C) == [1]
            assert content(machine) == flipped(whole, at)  # the file is kept as it is
            machine.files().remove("/d/wal/0000000003.wal")
            machine.files().remove("/d/wal.extent")

    run(main)


@pytest.mark.row("S4.21")
def test_damaged_payload_in_open_segment_corrupts_only_its_group():
    async def main(loop):
        machine = await crashed(
            loop, [(A, [entry(1)])], [(B, [entry(1, b"to be damaged")])], [(B, [entry(2)])],
            [(C, [entry(1)])],
        )  # fmt: skip
        whole = content(machine)
        at = whole.index(b"to be damaged")
        replace(machine, flipped(whole, at + 5))
        for _ in range(3):  # the verdict stays after later segments
            wal, recovered = await machine.open()
            (damage,) = wal.damage
            assert damage.groups == (B,)
            assert damage.certain
            assert damage.error.details["offset"] == str(at - RECORD_HEADER_BYTES)
            assert recovered[A].corrupt is recovered[C].corrupt is None
            assert isinstance(recovered[B].corrupt, BadChecksum)
            assert (indices(recovered, A), indices(recovered, C)) == ([1], [1])
            assert wal.torn is None
            assert flipped(whole, at + 5)[: at + 99] in content(machine)
            await wal.close()

    run(main)


def test_damaged_header_in_open_segment_may_belong_to_any_group():
    """Without an index array the group of the record is unknown; the verdict is kept."""

    async def main(loop):
        machine = await crashed(loop, [(A, [entry(1)])], [(B, [entry(1)])], [(C, [entry(1)])])
        whole = content(machine)
        at = whole.index(b"1/1", whole.index(b"1/1") + 1) - RECORD_HEADER_BYTES
        replace(machine, flipped(whole, at + 40))
        wal, recovered = await machine.open()
        assert [d.certain for d in wal.damage] == [False]
        assert {g: r.corrupt is None for g, r in recovered.items()} == {A: False, C: False}
        new = TabletId("f" * 32)  # a replica created later is not affected
        await durable(wal, new, [entry(1)])
        await wal.close()
        wal, recovered = await machine.open()
        assert {g for g, r in recovered.items() if r.corrupt is not None} == {A, C}
        assert indices(recovered, new) == [1]
        for group in (A, C):
            wal.forget(group)
        await wal.close()
        wal, recovered = await machine.open()  # replaced replicas start again
        assert list(recovered) == [new]
        assert recovered[new].corrupt is None

    run(main)


def test_damage_is_recognised_once_later_record_or_marker_proves_it():
    async def main(loop):
        for marker in (False, True):
            machine = await crashed(loop, [(A, [entry(1)])], [(B, [entry(1)])], marker=marker)
            whole = content(machine)
            replace(machine, flipped(whole, whole.rindex(b"1/1")))
            wal, recovered = await machine.open()
            assert (wal.torn is None) == marker
            assert [d.groups for d in wal.damage] == ([(B,)] if marker else [])
            assert (B in recovered) == marker
            assert recovered[A].corrupt is None

    run(main)


def test_first_damage_and_torn_tail_are_distinguished():
    async def main(loop):
        machine = await crashed(
            loop, [(A, [entry(1, b"old")])], [(B, [entry(1)])], [(C, [entry(1, b"torn")])]
        )
        data = content(machine)
        data = flipped(flipped(data, data.index(b"old")), data.index(b"torn"))
        replace(machine, data)
        for torn in (True, False):
            wal, recovered = await machine.open()
            assert [d.groups for d in wal.damage] == [(A,)]
            assert (wal.torn is not None) == torn
            assert isinstance(recovered[A].corrupt, BadChecksum)
            assert indices(recovered, B) == [1]
            assert C not in recovered
            await wal.close()

    run(main)


def test_valid_records_after_torn_record_are_ignored():
    """A power failure may keep the end of an unsynced round and lose its middle."""

    async def main(loop):
        machine = await crashed(
            loop, [(A, [entry(1)])], [(A, [entry(2)]), (B, [entry(1, b"gone")]), (A, [entry(3)])]
        )
        data = content(machine)
        at = data.index(b"gone") - RECORD_HEADER_BYTES
        replace(machine, data[:at] + bytes(RECORD_HEADER_BYTES + 4) + data[at + 84 :])
        wal, recovered = await machine.open()
        assert indices(recovered, A) == [1, 2]
        assert wal.torn is not None
        assert wal.torn.offset == at
        assert not wal.damage
        await durable(wal, A, [entry(3, b"other", term=2)])
        await wal.close()
        _, recovered = await machine.open()
        assert [e.payload for e in recovered[A].entries] == [b"1/1", b"1/2", b"other"]

    run(main)


@pytest.mark.parametrize("at", [20, 300])
def test_read_error_changes_neither_tail_nor_verdict(at):
    async def main(loop):
        machine = await crashed(loop, [(A, entries(1, 3))])
        files = machine.files()
        real, reads, bad = files.read, [], 2

        def read(path, offset=0, length=None):
            data = real(path, offset, length)
            if not path.endswith(".wal"):
                return data
            reads.append(path)
            return flipped(data, at + len(reads)) if len(reads) <= bad else data

        files.read = read
        bad = 99
        with pytest.raises(OSError, match="returned different bytes; check the disk"):
            await open_wal(files, machine.tasks())
        reads.clear()
        bad = 2
        wal, recovered = await open_wal(files, machine.tasks())
        assert indices(recovered, A) == [1, 2, 3]
        assert wal.torn is None
        assert not wal.damage
        assert len(reads) == 6  # two bad ones, two that agree, one to seal, one of the entries

    run(main)
