"""Limits of writes, messages, frames and the log are consistent: an accepted write reaches every replica."""

from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.common.ids import OpId
from nyala.common.options import ENTRY_MAX_BYTES, ENTRY_SLACK_BYTES, KIB, MIB, Options
from nyala.raft.messages import AppendEntries, Entry, EntryKind, PeerBatch
from nyala.replica.member import session_header
from nyala.wal.segments.format import MAX_PAYLOAD_BYTES, RECORD_HEADER_BYTES
from nyala.wire import peers
from nyala.wire.frames import HEADER, decode_frame, encode_frame
from nyala.wire.limits import MESSAGE_BYTES, PeerLimits
from tests.unit.replica.support.replica_support import CLIENT, GROUP, scenario, uuid_of

FRAME_BYTES = PeerLimits().frame_bytes


def through_frames(fleet) -> None:
    """Let all that servers send each other pass through real frames, as the peer port cuts them."""
    for process in fleet.processes:
        transport = process.server.transport
        send = transport.send

        def framed(address: str, batch: PeerBatch, send=send) -> None:
            for _, part in peers.split_batch(batch, PeerLimits().batch_bytes):
                raw = encode_frame(part, "c" * 32)
                if len(raw) - HEADER.size <= FRAME_BYTES:  # else the receiver drops the connection
                    send(address, decode_frame(raw).batch)

        transport.send = framed


def options(**given: Any) -> Options | None:
    """Return the options, or None where they are refused with their names and a remedy."""
    try:
        return Options(wal_segment_mb=1, compute_threads=1, **given)
    except InvalidArgument as err:
        refusal = err.message
    assert sum(name in refusal for name in given) >= 2, refusal
    assert "or lower" in refusal
    return None


def payload(size: int) -> bytes:
    return b"k 1" + b" " * (size - 3)


def written_or_refused(chosen: Options, sizes: list[int]) -> None:
    @scenario(options=chosen)
    async def steps(fleet):
        through_frames(fleet)
        limit = max(chosen.write_max_bytes, chosen.catalog_batch_bytes) + ENTRY_SLACK_BYTES
        taken = 0
        for sequence, size in enumerate(sizes, 1):
            leader = await fleet.leader()
            before = fleet.replica(leader).status().last
            if size > limit:
                with pytest.raises(TooLarge, match="write_max_bytes"):
                    await fleet.as_(leader, fleet.call(leader, payload(size), sequence=sequence))
                assert fleet.replica(leader).status().last == before
                continue
            await fleet.write(payload(size), sequence=sequence, timeout_ms=60_000)
            taken += 1
            await fleet.settled()
        assert [fleet.machine(n).sums for n in range(3)] == [{"k": taken} if taken else {}] * 3
        assert all(fleet.replica(n).error is None for n in range(3))

    steps()


EDGES = st.sampled_from((-1, 0, 1, 100, -1000))
SIZES = st.sampled_from((KIB, 64 * KIB, 256 * KIB, MIB))


@settings(max_examples=25, deadline=None)
@given(
    write_max=SIZES,
    catalog=SIZES,
    append=st.sampled_from((1, KIB, MIB)),
    inflight=st.sampled_from((1, KIB, 8 * MIB)),
    queue=st.sampled_from((KIB, MIB, 4 * MIB)),
    wal_queue=st.sampled_from((64 * KIB, 512 * KIB, 2 * MIB)),
    edges=st.lists(EDGES, min_size=1, max_size=4),
)
@example(MIB, KIB, 1, 1, MIB, 2 * MIB, [0, 1, -1, 100])
def test_write_at_each_size_is_replicated_or_refused_unchanged(
    write_max, catalog, append, inflight, queue, wal_queue, edges
):
    chosen = options(
        write_max_bytes=write_max,
        catalog_batch_bytes=catalog,
        raft_append_bytes=append,
        raft_inflight_bytes=inflight,
        write_queue_bytes=queue,
        wal_queue_bytes=wal_queue,
    )
    event("taken" if chosen is not None else "refused")
    if chosen is not None:
        limit = max(write_max, catalog) + ENTRY_SLACK_BYTES
        sizes = [3, *(limit + edge for edge in edges), write_max, 4]
        written_or_refused(chosen, sizes)


@pytest.mark.full
def test_largest_write_of_any_options_is_replicated():
    chosen = options(write_max_bytes=ENTRY_MAX_BYTES)
    assert chosen is not None
    limit = ENTRY_MAX_BYTES + ENTRY_SLACK_BYTES
    written_or_refused(chosen, [3, limit, limit + 1, 4])


def test_largest_entry_fits_into_frame_record_and_message():
    with pytest.raises(InvalidArgument, match="write_max_bytes"):
        Options.load(flags={"write_max_bytes": ENTRY_MAX_BYTES + 1})
    with pytest.raises(InvalidArgument, match="raft_append_bytes"):
        Options.load(flags={"raft_append_bytes": 16 * MIB + 1})
    largest = ENTRY_MAX_BYTES + ENTRY_SLACK_BYTES + MIB
    assert largest < FRAME_BYTES
    assert largest + RECORD_HEADER_BYTES < MAX_PAYLOAD_BYTES
    assert largest < MESSAGE_BYTES


def test_message_of_many_small_entries_fits_into_frame():
    """The header of each entry takes bytes too, and raft_append_bytes does not count it."""
    smallest = session_header.wrap(b"", CLIENT, 1, 1, 600)
    entries = tuple(Entry(OpId(1, n), n, EntryKind.OPERATION, smallest) for n in range(1, 1001))
    message = AppendEntries(sender=uuid_of(0), to=uuid_of(1), term=1, entries=entries)
    raw = encode_frame(PeerBatch(uuid_of(0), uuid_of(1), 0, ((GROUP, message),)), "c" * 32)
    most = 16 * MIB // len(smallest) * len(raw) // len(entries)
    assert most < FRAME_BYTES


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"write_queue_bytes": 8 * MIB}, ("write_queue_bytes", "write_max_bytes")),
        ({"write_queue_total_bytes": MIB}, ("write_queue_total_bytes", "write_max_bytes")),
        ({"wal_queue_bytes": 16 * MIB}, ("wal_queue_bytes", "write_max_bytes")),
        (
            {
                "wal_queue_bytes": 2 * MIB,
                "raft_append_bytes": 8 * MIB,
                "write_max_bytes": MIB,
                "catalog_batch_bytes": MIB,
            },
            ("wal_queue_bytes", "raft_append_bytes"),
        ),
        (
            {"wal_queue_bytes": 32 * MIB, "catalog_batch_bytes": 40 * MIB},
            ("wal_queue_bytes", "catalog_batch_bytes"),
        ),
    ],
)
def test_incompatible_options_are_refused_with_both_names(given, names):
    with pytest.raises(InvalidArgument, match="or lower") as caught:
        Options.load(flags=given)
    assert all(name in caught.value.message for name in names)
