"""Frames of the peer port: every message round trips, and every damaged frame is refused."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import BadChecksum, BadVersion, Corrupt
from nyala.common.hybrid_time import MAX_HYBRID_TIME
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.raft.messages import (
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    FetchSuffix,
    PeerBatch,
    RequestVote,
    Suffix,
    TimeoutNow,
    VoteReply,
)
from nyala.wire.frames import HEADER, FrameKind, decode_frame, encode_frame, payload_bytes

A, B, GROUP = ServerUuid("a" * 32), ServerUuid("b" * 32), TabletId("7" * 32)

big = st.integers(0, 2**62)
stamp = st.integers(0, MAX_HYBRID_TIME)
op = st.builds(OpId, big, big)
entry = st.builds(Entry, op, stamp, st.sampled_from(EntryKind), st.binary(max_size=40))
ends = {"sender": st.just(A), "to": st.just(B), "term": big, "hlc": stamp}
message = st.one_of(
    st.builds(
        AppendEntries, **ends, previous=op, entries=st.lists(entry, max_size=3).map(tuple),
        commit=big, round=big, closed=stamp, retain_index=big, quiesce=st.booleans(),
    ),
    st.builds(
        AppendReply, **ends, success=st.booleans(), match=big, hint=op, round=big, quiesce=st.booleans(),
        promise_ms=big,
    ),
    st.builds(RequestVote, **ends, last=op, pre=st.booleans(), override=st.booleans()),
    st.builds(
        VoteReply, **ends, granted=st.booleans(), pre=st.booleans(), last=op, offers_suffix=st.booleans()
    ),
    st.builds(TimeoutNow, **ends),
    st.builds(FetchSuffix, **ends, last=op),
    st.builds(
        Suffix, **ends, previous=op, entries=st.lists(entry, max_size=3).map(tuple), last=op
    ),
)  # fmt: skip
groups = st.text("0123456789abcdef", min_size=32, max_size=32).map(TabletId)
batches = st.builds(
    PeerBatch,
    st.just(A),
    st.just(B),
    stamp,
    st.lists(st.tuples(groups, message), max_size=4).map(tuple),
    big,
    big,
    big,
    st.lists(groups, max_size=2).map(tuple),
    st.integers(0, 2**16 - 1),
    st.sampled_from(["", "host:9050"]),
)


@given(batches, st.sampled_from(["", "c" * 32]), st.sampled_from(FrameKind))
def test_every_message_round_trips(batch, cluster_id, kind):
    frame = decode_frame(encode_frame(batch, cluster_id, kind))
    assert (frame.kind, frame.cluster_id, frame.batch) == (kind, cluster_id, batch)


def sample():
    entries = (Entry(OpId(3, 9), 77, EntryKind.OPERATION, b"payload"),)
    append = AppendEntries(
        sender=A, to=B, term=3, hlc=5, previous=OpId(2, 8), entries=entries, commit=8
    )
    return encode_frame(PeerBatch(A, B, 99, ((GROUP, append),), address="h:90"), "c" * 32)


def test_every_single_bit_flip_is_detected():
    raw = sample()
    for at in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                decode_frame(bytes(damaged))


def test_every_truncation_and_trailing_byte_is_detected():
    raw = sample()
    for cut in range(len(raw)):
        with pytest.raises(Corrupt):
            decode_frame(raw[:cut])
    with pytest.raises(Corrupt):
        decode_frame(raw + b"\0")


def test_frame_error_names_the_problem():
    raw = sample()
    with pytest.raises(Corrupt, match="no frame"):
        decode_frame(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(BadVersion, match="version 9"):
        decode_frame(raw[:4] + b"\x09" + raw[5:])
    with pytest.raises(BadChecksum):
        decode_frame(raw[:-1] + b"\xff")
    with pytest.raises(Corrupt, match="the limit is 1000"):
        payload_bytes(HEADER.pack(b"NYPF", 3, 2, 0, 0xFFFF_FFFF, 0), 1000)


def packed(kind=1, flags=0, name=b"7" * 32, entries=(), numbers=(0,) * 8, count=None):
    """Draw a message with any content."""
    head = struct.pack(
        "<BBBxI8Q", kind, flags, len(name), len(entries) if count is None else count, *numbers
    )
    return b"".join((head, name, *entries))


def payload(*messages, hlc=0, count=None, sizes=(32, 32, 0, 0), left=0):
    head = struct.pack(
        "<4Q5BI", hlc, 0, 0, 0, *sizes, left, len(messages) if count is None else count
    )
    return b"".join((head, A.encode(), B.encode(), *messages))


def an_entry(kind=2, stamp=5, size=0, term=1, index=1):
    return struct.pack("<3QIB", term, index, stamp, size, kind)


CLOSED = (0, 0, 0, 0, 0, 0, 2**63, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        payload(packed(kind=0)),
        payload(packed(kind=8)),
        payload(packed(kind=99)),
        payload(packed(flags=32)),
        payload(packed(name=b"\xff" * 32)),
        payload(packed(numbers=CLOSED)),
        payload(packed(entries=[an_entry(kind=8)])),
        payload(packed(entries=[an_entry(stamp=2**64 - 1)])),
        payload(packed(kind=7, entries=[an_entry(kind=8)])),
        payload(packed(kind=7, entries=[an_entry(stamp=2**64 - 1)])),
        payload(packed(kind=2, entries=[an_entry()])),
        payload(packed(entries=[an_entry(size=1)])),
        payload(packed(entries=[an_entry(size=2**32 - 1)])),
        payload(packed(count=2**32 - 1)),
        payload(count=2**32 - 1),
        payload(left=255),
        payload(left=1),
        payload(sizes=(255, 255, 255, 255)),
        payload() + b"\0",
        payload()[:-1],
        b"",
    ],
)
def test_invalid_frame_with_valid_checksum_is_refused(wrong):
    decode_frame(framed(payload(packed(), packed(entries=[an_entry()]))))
    with pytest.raises(Corrupt, match="malformed"):
        decode_frame(framed(wrong))


def test_excessive_hybrid_time_is_passed_to_receiver_clock_with_sender():
    late = payload(packed(numbers=(0, 2**64 - 1, 0, 0, 0, 0, 0, 0)), hlc=2**64 - 1)
    batch = decode_frame(framed(late)).batch
    assert batch.hlc == batch.messages[0][1].hlc == 2**64 - 1


def framed(payload, kind=2):
    import google_crc32c

    header = HEADER.pack(b"NYPF", 3, kind, 0, len(payload), 0)[:12]
    crc = google_crc32c.extend(google_crc32c.value(header), payload)
    return header + crc.to_bytes(4, "little") + payload


def test_random_payloads_under_a_good_checksum_end_in_an_error_or_a_frame():
    rng = random.Random(5)
    good = sample()[HEADER.size :]
    for _ in range(3000):
        damaged = bytearray(good[: rng.randint(0, len(good))] or b"\0")
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            decode_frame(framed(bytes(damaged), rng.choice([1, 2, 3])))
        except Corrupt:
            continue


def test_frame_bytes_equal_documentation():
    found = sample()[HEADER.size :]
    head = struct.pack("<4Q5BI", 99, 0, 0, 0, 32, 32, 32, 4, 0, 1)
    message = struct.pack("<BBBxI8Q", 1, 0, 32, 1, 3, 5, 2, 8, 8, 0, 0, 0)
    entry = struct.pack("<3QIB", 3, 9, 77, 7, 2) + b"payload"
    assert found == head + b"a" * 32 + b"b" * 32 + b"c" * 32 + b"h:90" + message + b"7" * 32 + entry
