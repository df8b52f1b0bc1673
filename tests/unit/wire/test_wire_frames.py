"""Frames of the peer port: every message round trips, and no damaged frame is ever taken for a good one."""

import random

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
from nyala.wire.proto.nyala_pb2 import PeerFrame, RaftEntry, RaftMessage

A, B, GROUP = ServerUuid("a" * 32), ServerUuid("b" * 32), TabletId("7" * 32)

big = st.integers(0, 2**62)
stamp = st.integers(0, MAX_HYBRID_TIME)
op = st.builds(OpId, big, big)
entry = st.builds(Entry, op, stamp, st.sampled_from(EntryKind), st.binary(max_size=40))
ends = {"sender": st.just(A), "to": st.just(B), "term": big, "hlc": stamp}
message = st.one_of(
    st.builds(
        AppendEntries, **ends, previous=op, entries=st.lists(entry, max_size=3).map(tuple),
        commit=big, round=big, closed=stamp, needed=big, quiesce=st.booleans(),
    ),
    st.builds(
        AppendReply, **ends, success=st.booleans(), match=big, hint=op, round=big, quiesce=st.booleans()
    ),
    st.builds(RequestVote, **ends, last=op, pre=st.booleans(), override=st.booleans()),
    st.builds(
        VoteReply, **ends, granted=st.booleans(), pre=st.booleans(), last=op, lends=st.booleans()
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
    return encode_frame(PeerBatch(A, B, 99, ((GROUP, append),)), "c" * 32)


def test_every_single_bit_flip_is_found():
    raw = sample()
    for at in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                decode_frame(bytes(damaged))


def test_every_cut_and_every_tail_is_found():
    raw = sample()
    for cut in range(len(raw)):
        with pytest.raises(Corrupt):
            decode_frame(raw[:cut])
    with pytest.raises(Corrupt):
        decode_frame(raw + b"\0")


def test_what_is_wrong_is_named():
    raw = sample()
    with pytest.raises(Corrupt, match="no frame"):
        decode_frame(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(BadVersion, match="version 9"):
        decode_frame(raw[:4] + b"\x09" + raw[5:])
    with pytest.raises(BadChecksum):
        decode_frame(raw[:-1] + b"\xff")
    with pytest.raises(Corrupt, match="the limit is 1000"):
        payload_bytes(HEADER.pack(b"NYPF", 1, 2, 0, 0xFFFF_FFFF, 0), 1000)


@pytest.mark.parametrize(
    "payload",
    [
        PeerFrame(messages=[RaftMessage(kind=0)]),
        PeerFrame(messages=[RaftMessage(kind=99)]),
        PeerFrame(hlc=2**63),
        PeerFrame(messages=[RaftMessage(kind=1, closed=2**63)]),
        PeerFrame(messages=[RaftMessage(kind=1, entries=[RaftEntry(kind=8)])]),
        PeerFrame(messages=[RaftMessage(kind=1, entries=[RaftEntry(stamp=2**64 - 1)])]),
        PeerFrame(messages=[RaftMessage(kind=7, entries=[RaftEntry(kind=8)])]),
        PeerFrame(messages=[RaftMessage(kind=7, entries=[RaftEntry(stamp=2**64 - 1)])]),
        PeerFrame(messages=[RaftMessage(kind=8)]),
    ],
)
def test_well_summed_nonsense_is_refused(payload):
    with pytest.raises(Corrupt, match="malformed"):
        decode_frame(framed(payload.SerializeToString()))


def framed(payload, kind=2):
    import google_crc32c

    header = HEADER.pack(b"NYPF", 1, kind, 0, len(payload), 0)[:12]
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


def test_fields_of_the_future_are_ignored():
    payload = sample()[HEADER.size :] + b"\xfa\x3e\x03new"
    assert decode_frame(framed(payload)).batch == decode_frame(sample()).batch
