"""Invalid batches: refused as a whole before any row is read; limits of keys and cells."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.ids import TableId, TabletId
from nyala.common.schema import from_arrow
from nyala.common.types import MAX_CELL_BYTES
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.write.row_checks import MAX_KEY_BYTES
from nyala.tserver.write_path import batch_schema, check_header, check_types, decode_and_check
from nyala.wire import flight
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run

SCHEMA = from_arrow(
    pa.schema(
        [("k", pa.string()), ("d", pa.decimal128(6, 2)), ("x", pa.binary()), ("b", pa.bool_())]
    ),
    ["k"],
)
IDS = tuple(c.id for c in SCHEMA.columns)


INFO = TabletInfo(TabletId("t"), TableId("t"), "t", SCHEMA)


def sent(**columns) -> flight.FlightData:
    """Return an encoded batch with any content in one column; the other columns are valid."""
    count = len(next(iter(columns.values()))) if columns else 1
    sound = {
        "k": pa.array([f"k{i}" for i in range(count)]),
        "d": pa.nulls(count, pa.decimal128(6, 2)),
        "x": pa.nulls(count, pa.binary()),
        "b": pa.array([True] * count),
    }
    return flight.batch_data(pa.RecordBatch.from_pydict({**sound, **columns}))


def checked(data: flight.FlightData) -> pa.RecordBatch:
    return decode_and_check(
        INFO,
        replicated_ops.RowOp.UPSERT,
        batch_schema(SCHEMA, replicated_ops.RowOp.UPSERT, IDS),
        data,
    )


def varying(kind, data: bytes, *offsets: int) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def patched(data: flight.FlightData, old: bytes, new: bytes) -> flight.FlightData:
    body = bytes(memoryview(data.body or b""))
    assert body.count(old) == 1
    return flight.FlightData(data.header, body.replace(old, new), data.app_metadata)


def cut(data: flight.FlightData) -> flight.FlightData:
    return flight.FlightData(
        data.header, bytes(memoryview(data.body or b""))[:-64], data.app_metadata
    )


def decimals(value: int) -> pa.Array:
    raw = pa.py_buffer(value.to_bytes(16, "little", signed=True))
    return pa.Array.from_buffers(pa.decimal128(6, 2), 1, [None, raw])


BAD = {
    "offsets beyond the buffer": lambda: sent(x=varying(pa.binary(), b"abc", 0, 5000, 3)),
    "offsets that go back": lambda: sent(k=varying(pa.string(), b"abc", 0, 3, 1)),
    "negative offset": lambda: patched(
        sent(x=varying(pa.binary(), b"abcdef", 0, 4, 6)),
        np.array([0, 4, 6], np.int32).tobytes(),
        np.array([0, -4, 6], np.int32).tobytes(),
    ),
    "last offset beyond the buffer": lambda: patched(
        sent(x=varying(pa.binary(), b"abcdef", 0, 4, 6)),
        np.array([0, 4, 6], np.int32).tobytes(),
        np.array([0, 4, 1 << 30], np.int32).tobytes(),
    ),
    "key without UTF-8": lambda: sent(k=varying(pa.string(), b"a\xff", 0, 1, 2)),
    "decimal beyond its precision": lambda: sent(d=decimals(10**6)),
    "decimal far below its precision": lambda: sent(d=decimals(-(10**37))),
    "cut short": lambda: cut(sent(k=pa.array(["x" * 100]))),
}


@pytest.mark.parametrize("what", BAD)
def test_malformed_batch_is_refused_as_a_whole(what):
    assert checked(sent(d=decimals(10**6 - 1))).num_rows == 1
    with pytest.raises(InvalidArgument):
        checked(BAD[what]())


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("k", pa.large_string()),
        ("k", pa.int64()),
        ("d", pa.decimal128(7, 2)),
        ("d", pa.decimal128(6, 3)),
        ("x", pa.list_(pa.uint8())),
        ("x", pa.uuid()),
        ("b", pa.uint8()),
    ],
    ids=str,
)
def test_stream_with_other_column_types_is_refused_by_name(column, kind):
    given = pa.schema([f.with_type(kind) if f.name == column else f for f in SCHEMA.arrow])
    with pytest.raises(SchemaMismatch) as caught:
        check_types(given, batch_schema(SCHEMA, replicated_ops.RowOp.UPSERT, IDS))
    assert str(kind) in caught.value.message
    check_types(SCHEMA.arrow, batch_schema(SCHEMA, replicated_ops.RowOp.UPSERT, IDS))


def test_no_rows_and_no_columns():
    assert checked(sent(k=pa.array([], pa.string()))).num_rows == 0
    header = pb.WriteHeader(
        tablet_id="t", op=pb.UPSERT, client_id=b"c" * 16, sequence=1, column_ids=[]
    )
    with pytest.raises(SchemaMismatch, match=r"missing: \['k'\]"):
        check_header(header, SCHEMA)


@pytest.mark.row("A2")
def test_oversized_keys_and_cells_are_row_errors():
    async def main(loop):
        cluster = SimCluster(loop, 3, masters=1)
        core = await cluster.start()
        client = cluster.clients[-1]
        schema = from_arrow(pa.schema([("k", pa.string()), ("v", pa.binary())]), ["k"])
        table: Any = await cluster.run(client, core.ddl.create_table, "t", schema, None, 3, {})
        sizes = [(1, MAX_CELL_BYTES + 1), (MAX_KEY_BYTES + 1, 0), (MAX_KEY_BYTES, MAX_CELL_BYTES)]
        batch = pa.RecordBatch.from_pydict(
            {
                "k": pa.array(["k" * n for n, _ in sizes]),
                "v": pa.array([bytes(n) for _, n in sizes], pa.binary()),
            }
        )

        async def write():
            return await core.session.write(
                table, pb.UPSERT, batch, all_or_nothing=False, timeout_ms=10_000
            )

        written: Any = await cluster.run(client, write)
        assert [e[:2] for e in written.errors] == [(0, "too_large"), (1, "too_large")]
        assert written.rows == 1

    run(main, max_time_s=100)
