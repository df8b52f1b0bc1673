"""FlightData, batches and schemas: round trips, and errors for malformed bytes."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import InvalidArgument
from nyala.wire import flight
from nyala.wire.flight import FlightData
from nyala.wire.ipc_header import RECORD_BATCH, read_header
from nyala.wire.proto import flight_pb2
from tests.unit.wire.support.wire_helpers import BATCH


def compressed(batch, codec):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as w:
        w.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return bytes(messages[1].metadata), bytes(messages[1].body)


@given(
    st.binary(max_size=200),
    st.none() | st.binary(max_size=300),
    st.binary(max_size=300),
    st.booleans(),
)
def test_flight_data_equals_protobuf_encoding(header, body, metadata, described):
    descriptor = (
        flight_pb2.FlightDescriptor(type=flight_pb2.FlightDescriptor.PATH, path=["a", "b"])
        if described
        else None
    )
    raw = flight.encode(FlightData(header, body, metadata, descriptor))
    parsed = flight_pb2.FlightData.FromString(raw)
    assert parsed.data_header.rstrip(b"\0") == header.rstrip(b"\0")
    assert parsed.app_metadata == metadata
    assert parsed.data_body == (body or b"")
    back = flight.decode(raw)
    assert (back.descriptor, bytes(back.app_metadata)) == (descriptor, metadata)
    assert (back.body is None) == (body is None)
    decoded = flight.decode(parsed.SerializeToString())
    assert bytes(decoded.body or b"") == (body or b"")


def test_unknown_fields_are_skipped_and_known_ones_found():
    future = b"\x78\x05" + b"\x81\x01" + bytes(8) + b"\x8d\x01" + bytes(4) + b"\x9a\x01\x02hi"
    data = flight.decode(future + flight.encode(FlightData(b"head", b"body", b"meta")) + future)
    assert bytes(data.header).rstrip(b"\0") == b"head"
    assert (bytes(data.body or b""), bytes(data.app_metadata)) == (b"body", b"meta")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x12", b"\x12\x05ab", b"\x12\xff\xff\xff\xff\x0f", b"\xff" * 11, b"\x10\x01", b"\x13\x01",
        b"\x02\x00", b"\x7d\x00", b"\x0a\x03\xff\xff\xff", b"\x78\x01" * 65, b"\x79\x00",
    ],
)  # fmt: skip
def test_malformed_flight_data_is_refused(raw):
    with pytest.raises(InvalidArgument):
        flight.decode(raw)


def test_large_body_is_read_without_copy():
    body = pa.allocate_buffer(1 << 20)
    raw = flight.encode(FlightData(b"h", body))
    data = flight.decode(raw)
    start = pa.py_buffer(raw).address
    assert start <= pa.py_buffer(data.body).address < start + len(raw)
    assert (pa.py_buffer(data.body).address - start) % 8 == 0


@pytest.mark.parametrize("metadata", range(9))
def test_batch_round_trips_as_views_of_the_message(metadata):
    raw = flight.encode(flight.batch_data(BATCH, b"m" * metadata))
    data = flight.decode(raw)
    batch = flight.read_batch(BATCH.schema, data.header, data.body)
    assert batch.equals(BATCH)
    start = pa.py_buffer(raw).address
    for column in batch.columns:
        for buffer in filter(None, column.buffers()):
            assert start <= buffer.address < start + len(raw)
            assert buffer.address % 8 == 0


def test_header_and_body_bytes_are_unchanged_with_any_metadata():
    """A retry carries a later clock and another request number; its operation must be the same."""
    arrived = set()
    for length in range(1, 40):
        data = flight.decode(flight.encode(flight.batch_data(BATCH, b"m" * length)))
        assert bytes(data.app_metadata) == b"m" * length
        arrived.add((bytes(data.header), bytes(data.body or b"")))
    assert len(arrived) == 1


def test_unaligned_body_is_moved_to_aligned_address():
    header, body = flight.batch_parts(BATCH)
    shifted = memoryview(b"x" + bytes(body))[1:]
    assert pa.py_buffer(shifted).address % 8 == 1
    batch = flight.read_batch(BATCH.schema, header, shifted)
    assert batch.equals(BATCH)
    assert batch.column(0).buffers()[1].address % 8 == 0


@pytest.mark.parametrize(
    "batch", [BATCH, BATCH.slice(13, 40), BATCH.slice(0, 0), BATCH.select(["name"])]
)
def test_encapsulated_messages_round_trip(batch):
    message = flight.batch_message(batch)
    assert flight.read_message(batch.schema, message).equals(batch)
    assert flight.join_message(*flight.batch_parts(batch)) == message
    facts = read_header(flight.split_message(message)[0])
    assert (facts.kind, facts.rows, facts.compressed) == (RECORD_BATCH, batch.num_rows, False)


def test_slice_is_encoded_without_its_parent():
    assert len(flight.batch_message(BATCH.slice(13, 40))) < len(flight.batch_message(BATCH)) / 10


def test_schemas_round_trip_and_only_schemas_do():
    assert flight.read_schema(flight.schema_data(BATCH.schema).header) == BATCH.schema
    for header in (flight.batch_parts(BATCH)[0], b"", b"\xff" * 40, bytes(64)):
        with pytest.raises(InvalidArgument):
            flight.read_schema(header)


def test_schema_nested_too_deep_is_refused():
    """Abuse case 15: 1,000 lists in each other."""
    kind: pa.DataType = pa.int64()
    for _ in range(1_000):
        kind = pa.list_(kind)
    deep = flight.split_message(pa.schema([("v", kind)]).serialize())[0]
    with pytest.raises(InvalidArgument, match="schema"):
        flight.read_schema(deep)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_bodies_are_refused_before_they_are_expanded(codec):
    bomb = pa.record_batch({"key": pa.array([0] * 1_000_000, pa.int64())})
    header, body = compressed(bomb, codec)
    assert len(body) < bomb.nbytes / 100
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidArgument, match="compressed"):
        flight.read_batch(bomb.schema, header, body)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_dictionaries_are_refused_with_the_column_named():
    coded = pa.record_batch({"kind": pa.array(["a", "b"]).dictionary_encode()})
    for refused in (lambda: flight.batch_parts(coded), lambda: flight.batch_message(coded)):
        with pytest.raises(InvalidArgument, match="'kind' is dictionary-encoded"):
            refused()
    header = flight.split_message(coded.schema.serialize())[0]
    with pytest.raises(InvalidArgument, match="'kind' is dictionary-encoded"):
        flight.read_schema(header)


def test_batch_is_validated_in_full_before_it_is_returned():
    batch = pa.record_batch({"s": ["abc", "de", "fgh"]})
    header, body = flight.batch_parts(batch)
    offsets = batch.column(0).buffers()[1]
    damaged = bytearray(body)
    at = bytes(body).index(bytes(offsets)[:16])
    damaged[at + 4 : at + 8] = (1 << 30).to_bytes(4, "little")  # offset of the second string
    with pytest.raises(InvalidArgument, match="damaged"):
        flight.read_batch(batch.schema, header, bytes(damaged))
    utf8 = bytes(body).replace(b"abc", b"\xff\xfe\xfd")
    with pytest.raises(InvalidArgument, match="damaged"):
        flight.read_batch(batch.schema, header, utf8)


def test_batch_of_other_schema_or_length_is_refused():
    header, body = flight.batch_parts(BATCH)
    for schema, some in [
        (pa.schema([("a", pa.string())] * 6), body),
        (BATCH.schema, body[:-8]),
        (BATCH.schema, None),
        (pa.schema([("a", pa.list_(pa.int64()))]), body),
    ]:
        with pytest.raises(InvalidArgument):
            flight.read_batch(schema, header, some)
    with pytest.raises(InvalidArgument, match="instead of a record batch"):
        flight.read_batch(BATCH.schema, flight.schema_data(BATCH.schema).header, b"")


@pytest.mark.parametrize(
    "message", [b"", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x10\0\0\0abc", bytes(32)]
)
def test_malformed_message_bytes_are_refused(message):
    with pytest.raises(InvalidArgument):
        flight.read_message(BATCH.schema, message)


def test_mutated_batches_are_read_whole_or_refused():
    rng = random.Random(20130101)
    message = flight.batch_message(BATCH.slice(0, 60))
    refused = 0
    for _ in range(4000):
        damaged = bytearray(message)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(8, len(damaged))
            if rng.random() < 0.5:
                damaged[at] ^= 1 << rng.randrange(8)
            else:
                damaged[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 4])
        try:
            flight.read_message(BATCH.schema, bytes(damaged[: len(message)])).to_pylist()
        except InvalidArgument:
            refused += 1
    assert refused > 1000


def test_mutated_flight_data_is_read_or_refused():
    rng = random.Random(1871)
    raw = flight.encode(flight.batch_data(BATCH.slice(0, 5), b"meta"))
    for _ in range(4000):
        damaged = bytearray(raw[: rng.randint(0, len(raw))])
        if damaged and rng.random() < 0.8:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            data = flight.decode(bytes(damaged))
            flight.read_batch(BATCH.schema, data.header, data.body)
        except InvalidArgument:
            continue
