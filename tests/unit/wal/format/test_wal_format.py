"""The bytes of a segment: round trips, detection of damage in any byte, golden files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import BadChecksum, BadVersion, InvalidArgument, TooLarge
from nyala.common.ids import OpId
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.wal.append.frame import JOIN_BYTES, frame
from nyala.wal.segments.format import (
    BEGINS,
    MAX_PAYLOAD_BYTES,
    NO_GROUP,
    RECORD_HEADER_BYTES,
    ROW_BYTES,
    SEGMENT_HEADER_BYTES,
    TAIL,
    IndexRow,
    LogPosition,
    RecordDraft,
    RecordKind,
    check_entry,
    crc32c,
    draft,
    draft_entry,
    draft_hard_state,
    draft_moved,
    find_footer,
    group_bytes,
    pack_footer,
    pack_row,
    pack_segment_header,
    to_entry,
    to_group,
    to_hard_state,
    unpack_footer,
    unpack_record,
    unpack_segment_header,
)
from nyala.wal.segments.scan import scan
from nyala.wal.segments.segment import sequence_of
from tests.unit.wal.support.wal_harness import UUID, A, B, entry

GOLDEN = Path(__file__).parents[3] / "golden" / "wal"
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
some_entries = st.builds(
    Entry,
    st.builds(OpId, u64, st.integers(1, 2**64 - 1)),
    u64,
    st.sampled_from(EntryKind),
    st.binary(max_size=200),
)


def segment(drafts: list[RecordDraft], sequence: int = 7, close_time_us: int | None = 5) -> bytes:
    """A whole segment, sealed unless `close_time_us` is None."""
    start = LogPosition(sequence, SEGMENT_HEADER_BYTES)
    buffers, end = frame(drafts, start, start)
    data = pack_segment_header(UUID, sequence) + b"".join(bytes(b) for b in buffers)
    if close_time_us is None:
        return data
    rows, offset = b"", SEGMENT_HEADER_BYTES
    for one in drafts:
        length = RECORD_HEADER_BYTES + len(one.payload)
        if one.kind is not RecordKind.MARKER:
            rows += pack_row(IndexRow(one.group, one.term, one.index, offset, length))
        offset += length
    at = LogPosition(sequence, end)
    return data + b"".join(pack_footer(rows, close_time_us, at, at))


@given(some_entries, u32, u32, u32)
def test_entry_round_trips(one, sequence, before, synced):
    at = LogPosition(sequence, before % 100)
    header = pack_record_header_of(one, at, LogPosition(synced, synced))
    record = unpack_record(bytes(at.offset) + header + one.payload, at.offset, sequence)
    assert record is not None
    assert to_entry(record) == one
    assert to_group(record.group) == A
    assert record.synced == (synced, synced)
    assert record.length == RECORD_HEADER_BYTES + len(one.payload)


def pack_record_header_of(one: Entry, at: LogPosition, synced: LogPosition) -> bytes:
    buffers, _ = frame([draft_entry(group_bytes(A), one)], at, synced)
    return b"".join(bytes(b) for b in buffers)[:RECORD_HEADER_BYTES]


@given(u64, st.one_of(st.none(), st.just(UUID), st.text(min_size=1, max_size=20)))
def test_hard_state_round_trips(term, uuid):
    state = HardState(term, uuid)
    found = scan(segment([draft_hard_state(group_bytes(B), state)]), "p", 7)
    assert [to_hard_state(r) for r in found.records] == [state]
    assert [to_group(r.group) for r in found.records] == [B]


@given(st.lists(some_entries, max_size=20))
def test_segment_round_trips_record_by_record(many):
    drafts = [draft_entry(group_bytes(A), e) for e in many]
    found = scan(segment(drafts), "p", 7)
    assert [to_entry(r) for r in found.records] == many
    assert not found.gaps
    assert found.rows is not None
    assert [(r.term, r.index, r.offset, r.length) for r in found.rows] == [
        (r.term, r.index, r.offset, r.length) for r in found.records
    ]


def test_large_payloads_have_separate_buffers_and_small_ones_are_joined():
    big = bytes(JOIN_BYTES)
    one = [
        draft_entry(group_bytes(A), entry(i, p)) for i, p in enumerate((b"a", b"b", big, b"c"), 1)
    ]
    buffers, end = frame(one, LogPosition(1, 100), LogPosition(1, 100))
    assert len(buffers) == 3
    assert buffers[1] is big
    assert end == 100 + sum(len(b) for b in buffers)


@pytest.mark.row("S4.20")
def test_header_and_footer_hold_owner_content_and_close_time():
    entries = [entry(3), entry(4), entry(3, term=2)]  # the lowest index is neither first nor last
    data = segment([draft_entry(group_bytes(A), e) for e in entries], 9, close_time_us=1234)
    assert unpack_segment_header(data, "p") == (UUID, 9)
    offset = find_footer(data, len(data), 9)
    assert offset is not None
    footer = unpack_record(data, offset, 9)
    assert footer is not None
    assert footer.kind is RecordKind.FOOTER
    close_time_us, rows = unpack_footer(footer)
    assert close_time_us == 1234
    assert [(to_group(r.group), r.term, r.index) for r in rows] == [(A, 1, 3), (A, 1, 4), (A, 2, 3)]
    for row, one in zip(rows, entries, strict=True):
        record = unpack_record(data, row.offset, 9)
        assert record is not None
        assert to_entry(record) == one
        assert row.length == record.length


def test_flipped_bit_in_any_byte_of_record_is_detected():
    whole = segment([draft_entry(group_bytes(A), entry(1, b"payload"))], close_time_us=None)
    for at in range(SEGMENT_HEADER_BYTES, len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            found = scan(bytes(data), "p", 7)
            assert not found.records
            assert [g.start for g in found.gaps] == [SEGMENT_HEADER_BYTES]


def test_damaged_segment_header_is_refused():
    data = pack_segment_header(UUID, 3)
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(BadChecksum) as caught:
            unpack_segment_header(damaged, "some/path")
        assert caught.value.details == {"path": "some/path", "offset": "0"}
        with pytest.raises(BadChecksum):
            unpack_segment_header(data[:at], "p")


def test_newer_segment_format_is_refused_by_name():
    head = bytearray(pack_segment_header(UUID, 3)[:-4])
    head[8] = 3
    with pytest.raises(
        BadVersion, match=r"some/path has format version 3, .* reads up to version 2"
    ):
        unpack_segment_header(bytes(head) + crc32c(bytes(head)).to_bytes(4, "little"), "some/path")


def test_segment_bytes_inside_payload_are_not_parsed_as_records():
    """Payloads may contain log records: in a torn record they stay payload."""
    inner = segment([draft_entry(group_bytes(B), entry(1))], sequence=3)
    whole = segment([draft_entry(group_bytes(A), entry(1, inner))], close_time_us=None)
    data = bytearray(whole)
    data[SEGMENT_HEADER_BYTES + 8] ^= 1  # its own header is no longer valid
    found = scan(bytes(data), "p", 7)
    assert not found.records
    assert [(g.start, g.end, g.footer) for g in found.gaps] == [
        (SEGMENT_HEADER_BYTES, len(data), False)
    ]


def test_bytes_after_footer_are_ignored():
    """A crash may undo the cut of a torn tail, but not the footer that was written over it."""
    data = segment([draft_entry(group_bytes(A), entry(1))])
    rest = segment([draft_entry(group_bytes(A), entry(i)) for i in range(1, 9)], close_time_us=None)
    found = scan(data + rest[len(data) :], "p", 7)
    assert [r.index for r in found.records] == [1]
    assert not found.gaps


@pytest.mark.parametrize(
    "bad",
    [
        draft_entry(group_bytes(A), entry(1))._replace(entry_kind=9),
        draft_entry(group_bytes(A), entry(1))._replace(index=0),
        draft(RecordKind.HARD_STATE, group_bytes(A), b"\xff\xfe", term=1),
        draft(RecordKind.FOOTER, NO_GROUP, b"short"),
        draft(RecordKind.FOOTER, NO_GROUP, bytes(8) + b"\x02" + bytes(7 + ROW_BYTES)),
    ],
)
def test_invalid_record_with_valid_checksum_is_damage(bad):
    found = scan(segment([bad], close_time_us=None), "p", 7)
    assert not found.records
    assert found.rows is None
    assert [g.start for g in found.gaps] == [SEGMENT_HEADER_BYTES]


@pytest.mark.parametrize("bad", ["", "1", "zz" * 16, "AB" * 16, "ab" * 15, "ab cd" * 8, "ab" * 17])
def test_invalid_id_is_refused(bad):
    with pytest.raises(InvalidArgument, match="32 lower-case hex digits"):
        group_bytes(bad)


def test_file_with_invalid_segment_name_is_ignored():
    assert sequence_of("0000000007.wal") == 7
    for name in ("7.wal", "0000000000.wal", "9999999999.wal", "000000000\N{SUPERSCRIPT TWO}.wal",
                 "0000000007.wal.new", "0000000007.wal\n", "notes.txt"):  # fmt: skip
        assert sequence_of(name) is None


def test_oversized_entry_is_refused():
    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_PAYLOAD_BYTES + 1

    with pytest.raises(TooLarge) as caught:
        check_entry(entry(1, Huge()))
    assert caught.value.details["limit"] == str(MAX_PAYLOAD_BYTES)
    with pytest.raises(AssertionError):
        check_entry(entry(0))


def golden_drafts() -> list[RecordDraft]:
    a, b = group_bytes(A), group_bytes(B)
    return [
        draft_hard_state(a, HardState(3, UUID)),
        draft_entry(a, Entry(OpId(3, 1), 10, EntryKind.NOOP)),
        draft_entry(b, Entry(OpId(1, 5), 11, EntryKind.CONFIG, b"[]")),
        draft_entry(a, Entry(OpId(3, 2), 2**63 - 1, EntryKind.OPERATION, b"\x00\xffpayload")),
        draft(RecordKind.MARKER, NO_GROUP),
        draft_hard_state(b, HardState(2, None)),
        draft(RecordKind.FORGET, b),
    ]


def golden_moved() -> list[RecordDraft]:
    a, entry = group_bytes(A), Entry(OpId(3, 2), 2**63 - 1, EntryKind.OPERATION, b"\x00\xffpayload")
    first = draft_moved(a, Entry(OpId(3, 1), 10, EntryKind.NOOP), 1, BEGINS | TAIL)
    return [first, draft_moved(a, entry, 0, 0)]


@pytest.mark.parametrize("name", ["v1-sealed", "v1-open", "v2-sealed"])
def test_golden_segments_are_read_and_written_identically(name):
    """Written by the first build of each format; never regenerated: a new one gets files of its own."""
    data = (GOLDEN / f"{name}.wal").read_bytes()
    drafts = [*golden_drafts(), *(golden_moved() if "v2" in name else [])]
    written = segment(drafts, 7, 1_767_225_600_000_000 if "sealed" in name else None)
    if "v2" in name:
        assert data == written
    else:  # its header has another version
        assert data[SEGMENT_HEADER_BYTES:] == written[SEGMENT_HEADER_BYTES:]
    found = scan(data, name, 7)
    assert [(r.rest, r.begins, r.tail) for r in found.records[len(golden_drafts()) :]] == [
        (1, True, True),
        (0, False, False),
    ][: 2 * ("v2" in name)]
    assert found.server_uuid == UUID
    assert not found.gaps
    assert [r.kind for r in found.records] == [d.kind for d in drafts]
    assert to_hard_state(found.records[0]) == HardState(3, UUID)
    assert to_entry(found.records[3]).payload == b"\x00\xffpayload"
    assert (found.rows is not None) == ("sealed" in name)
