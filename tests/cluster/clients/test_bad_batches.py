"""Invalid batches, sent without the client, are refused; they change nothing, and no server ends."""

import uuid

import pyarrow as pa
import pytest

from nyala.common.errors import (
    InvalidArgument,
    SessionExpired,
)
from nyala.wire import flight, methods
from nyala.wire.flight import FlightData
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import bad_input
from tests.cluster.support.bad_input import Batches, put
from tests.cluster.support.direct import mutations, raw_call

client, table, direct = bad_input.client, bad_input.table, bad_input.direct
nothing_changed = bad_input.nothing_changed
batches = bad_input.batches

FULLWIDTH = {ord(c): ord(c) - ord("0") + 0xFF10 for c in "0123456789"} | {ord("a"): 0x430}
"""Characters that look like those of an id."""


def test_invalid_headers_are_refused(direct, batches):
    existing = batches.mine
    ids = [c.id for c in batches.definition.columns]
    for wrong, expected in (
        ({"client_id": b"short"}, "INVALID_ARGUMENT"),
        ({"client_id": b""}, "INVALID_ARGUMENT"),
        ({"sequence": 0, "first_outstanding": 0}, "INVALID_ARGUMENT"),
        ({"sequence": 3, "first_outstanding": 4}, "INVALID_ARGUMENT"),
        ({"sequence": (1 << 64) - 1}, "INVALID_ARGUMENT"),
        ({"schema_version": 99}, "UNAVAILABLE"),  # this replica may not have the alteration yet
        ({"column_ids": ids[:2]}, "SCHEMA_MISMATCH"),
        ({"column_ids": [ids[0], ids[0], ids[1]]}, "SCHEMA_MISMATCH"),
        ({"column_ids": [*ids[:2], 4_000_000]}, "SCHEMA_MISMATCH"),
        ({"column_ids": ids[1:]}, "SCHEMA_MISMATCH"),
        ({"op": pb.WRITE_OP_UNSPECIFIED}, "INVALID_ARGUMENT"),
        ({"op": pb.MIXED}, "SCHEMA_MISMATCH"),
        ({"tablet_id": "0" * 32}, "UNAVAILABLE"),
        ({"tablet_id": "../../etc"}, "UNAVAILABLE"),  # abuse case 16, as those that follow
        ({"tablet_id": batches.place.id + "\0"}, "UNAVAILABLE"),
        ({"tablet_id": batches.place.id.translate(FULLWIDTH)}, "UNAVAILABLE"),
        ({"tablet_id": "x" * 10_000}, "UNAVAILABLE"),
        ({"tablet_id": ""}, "INVALID_ARGUMENT"),
        ({"tablet_id": "sys-catalog"}, "UNAVAILABLE"),
        ({"propagated_time": (1 << 64) - 1}, f"took 0 rows, {existing.num_rows} errors"),
    ):
        assert put(direct, batches, batches.message(existing, **wrong)) == expected, wrong


def test_rows_of_another_tablet_are_refused(direct, batches):
    assert put(direct, batches, batches.message(batches.foreign)) == "INVALID_ARGUMENT"
    both = pa.concat_batches([batches.mine, batches.foreign])
    assert put(direct, batches, batches.message(both)) == "INVALID_ARGUMENT"
    uncovered = pa.record_batch([[-5], ["w"], [0.0]], schema=batches.schema)
    assert put(direct, batches, batches.message(uncovered)) == "INVALID_ARGUMENT"


def test_unknown_op_codes_in_a_mixed_batch_are_refused(direct, batches):
    existing = batches.mine
    for codes in ([0], [9], [15], [255], [None]):
        wide = existing.append_column("_op", pa.array(codes * existing.num_rows, pa.uint8()))
        code = put(direct, batches, batches.message(wide, op=pb.MIXED), wide.schema)
        assert code == "INVALID_ARGUMENT", codes


def test_streams_of_another_schema_are_refused(direct, batches):
    names = batches.mine.schema.names
    wide = pa.record_batch([[1], ["w"], [1]], names=names)
    assert put(direct, batches, batches.message(wide), wide.schema) == "SCHEMA_MISMATCH"
    narrow = batches.mine.select(["k"])
    assert put(direct, batches, batches.message(narrow), narrow.schema) == "SCHEMA_MISMATCH"
    # A batch that does not match its stream's schema: the buffers are validated.
    for false in ([[1], [7], [1.0]], [[1], ["w"], ["x"]], [[1], ["w"], [True]]):
        assert (
            put(direct, batches, batches.message(pa.record_batch(false, names=names))) != "INTERNAL"
        )
    dictionary = pa.record_batch([[1], pa.array(["w"]).dictionary_encode(), [1.0]], names=names)
    with pytest.raises(InvalidArgument, match="dictionary"):
        flight.batch_data(dictionary)
    assert put(direct, batches, FlightData(b"", None, b"")) == "INVALID_ARGUMENT"


def test_message_over_limit_is_refused_without_reading(direct, batches):
    big = pa.record_batch([[1], ["x" * (17 << 20)], [0.0]], schema=batches.schema)
    assert put(direct, batches, batches.message(big)) == "TOO_LARGE"
    near = pa.record_batch([[1], ["x" * (16 << 20)], [0.0]], schema=batches.schema)
    assert put(direct, batches, batches.message(near)) == "TOO_LARGE"


@pytest.mark.parametrize("seed", range(6))
def test_damaged_arrow_bytes_are_refused(direct, batches, seed):
    """A hundred damaged batches a seed, in one stream each: refused, or read as rows that exist."""
    header, body = (bytes(p) for p in flight.batch_parts(batches.mine))
    whole = len(header)
    for damaged in mutations(header + body, seed, 100):
        cut = min(whole, len(damaged))
        message = FlightData(
            damaged[:cut], damaged[cut:], batches.header(op=pb.UPDATE_IGNORE).SerializeToString()
        )
        code = put(direct, batches, no_effect(message, batches))
        assert code in ("INVALID_ARGUMENT", "SCHEMA_MISMATCH", "TOO_LARGE") or "took" in code, code


def no_effect(message: FlightData, batches: Batches) -> FlightData:
    """Return the message as an insert of keys that may exist or not, voided as a whole by one that does.

    A flipped bit in a value is still a batch; with all_or_nothing and existing keys it has no effect.
    """
    header = batches.header(op=pb.INSERT, all_or_nothing=True)
    return FlightData(message.header, message.body, header.SerializeToString())


@pytest.mark.parametrize("seed", range(2))
def test_damaged_raw_frames_are_refused(batches, seed):
    """Damaged FlightData messages: field numbers, lengths, metadata and bodies."""
    path = "/" + methods.DO_PUT.path
    schema = flight.encode(flight.schema_data(batches.schema))
    whole = flight.encode(batches.message(batches.mine, all_or_nothing=True))
    for damaged in mutations(whole, seed, 60):
        assert raw_call(batches.address, path, [schema, damaged], streams=True)
    for damaged in mutations(schema, seed, 40):
        raw_call(batches.address, path, [damaged, whole], streams=True)


def test_used_sequence_with_other_operation_is_refused(direct, batches):
    """Same client and sequence with other bytes; and a sequence below the first outstanding one."""
    who = uuid.uuid4().bytes
    first = batches.message(batches.mine, client_id=who, sequence=5, first_outstanding=5)
    assert put(direct, batches, first) == f"took 0 rows, {batches.mine.num_rows} errors"
    other = batches.mine.slice(0, 1)
    again = batches.message(other, client_id=who, sequence=5, first_outstanding=5)
    assert put(direct, batches, again) == "INVALID_ARGUMENT"
    late = batches.message(other, client_id=who, sequence=4, first_outstanding=1)
    assert put(direct, batches, late) == SessionExpired.code
