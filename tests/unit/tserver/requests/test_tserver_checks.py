"""Refusals of a tablet server: orders of deposed masters, headers and batches that do not fit."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from nyala.admin.fencing import Fence
from nyala.common.errors import CasFailed, InvalidArgument, SchemaMismatch, Unavailable
from nyala.common.partitioning.partition import partitions
from nyala.common.partitioning.partition_spec import Hash, Partition, Range, resolve
from nyala.common.schema import from_arrow
from nyala.tablet.files import replicated_ops
from nyala.tserver.write_path import batch_schema, check_header, decode_and_check
from nyala.wire import flight
from nyala.wire.proto import nyala_pb2 as pb

SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string()), ("x", pa.float64())]), ["k"])
IDS = [c.id for c in SCHEMA.columns]


# ---- the fence --------------------------------------------------------------------------------------


def order(incarnation="cat", term=5):
    return pb.Fence(catalog_incarnation=incarnation, term=term)


MASTERS = ("m1", "m2", "m3")


def learned(incarnation="cat", term=5):
    fence = Fence()
    for master in MASTERS:
        fence.learn(master, MASTERS, incarnation, term)
    return fence


@pytest.mark.row("S0.41", "S0.48")
def test_orders_are_refused_until_majority_of_masters_confirmed_term():
    fence = Fence()
    for master in ("m1", "m1", "stranger"):
        fence.learn(master, MASTERS, "cat", 5)
        with pytest.raises(
            Unavailable, match="not received heartbeat responses from a majority of its masters yet"
        ):
            fence.check(order())
    fence.learn("m2", MASTERS, "cat", 7)
    with pytest.raises(CasFailed, match="led in term 5; the current term is 7"):
        fence.check(order(term=5))
    fence.check(order(term=7))


@pytest.mark.row("S0.41", "S0.48")
def test_removed_master_does_not_change_server_master_list():
    fence = learned("new", 3)
    fence.learn("m3", MASTERS, "old", 99)
    with pytest.raises(CasFailed, match="catalog"):
        fence.check(order("old", 99))
    fence.check(order("new", 3))
    fence.learn("m1", MASTERS, "newest", 1)
    fence.check(order("new", 3))
    fence.learn("m2", MASTERS, "newest", 2)  # rebuilt: a majority reports it now
    fence.check(order("newest", 2))
    with pytest.raises(CasFailed):
        fence.check(order("new", 3))


@pytest.mark.parametrize(
    "wrong", [order(""), order("other"), order("other", 99), order(term=4), pb.Fence()]
)
def test_order_from_non_leader_is_refused(wrong):
    fence = learned()
    with pytest.raises(CasFailed):
        fence.check(wrong)
    fence.check(order())


@pytest.mark.row("S0.41")
def test_order_of_newer_term_supersedes_older_term():
    fence = learned()
    fence.check(order(term=7))
    with pytest.raises(CasFailed, match="led in term 6; the current term is 7"):
        fence.check(order(term=6))
    fence.learn("m1", MASTERS, "cat", 6)  # a late heartbeat response has no effect
    with pytest.raises(CasFailed):
        fence.check(order(term=6))


def test_answer_without_catalog_id_is_ignored():
    fence = learned()
    fence.learn("m1", MASTERS, "", 99)
    fence.check(order())


# ---- the header of a batch --------------------------------------------------------------------------


def header(**wrong):
    values: dict[str, Any] = {
        "tablet_id": "t", "schema_version": SCHEMA.version, "op": pb.UPSERT, "client_id": b"c" * 16,
        "sequence": 2, "first_outstanding": 1, "column_ids": IDS,
    }  # fmt: skip
    return pb.WriteHeader(**(values | wrong))


def test_write_header_gives_op_and_columns():
    op, columns = check_header(header(column_ids=[IDS[2], IDS[0]]), SCHEMA)
    assert (op, columns) == (replicated_ops.RowOp.UPSERT, (IDS[2], IDS[0]))
    assert batch_schema(SCHEMA, op, columns).names == ["x", "k"]
    wide = batch_schema(SCHEMA, replicated_ops.RowOp.MIXED, columns)
    assert (wide.names, wide.types[-1]) == (["x", "k", "_op"], pa.uint8())


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"schema_version": SCHEMA.version + 1}, Unavailable),
        ({"op": pb.WRITE_OP_UNSPECIFIED}, InvalidArgument),
        ({"client_id": b"c" * 15}, InvalidArgument),
        ({"sequence": 0, "first_outstanding": 0}, InvalidArgument),
        ({"first_outstanding": 3}, InvalidArgument),
        ({"column_ids": IDS[1:]}, SchemaMismatch),
        ({"column_ids": [IDS[0], IDS[0]]}, SchemaMismatch),
        ({"column_ids": [*IDS, 77]}, SchemaMismatch),
        ({"column_ids": []}, SchemaMismatch),
    ],
)
def test_mismatched_write_header_is_refused(wrong, error):
    with pytest.raises(error):
        check_header(header(**wrong), SCHEMA)


# ---- the batch itself -------------------------------------------------------------------------------


@dataclass
class Info:
    """The part of a tablet that `decode_and_check` reads."""

    schema: object
    partition_schema: object
    partition: object
    tablet_id: str = "t"


def hosted(spec=None, number=0):
    layout = resolve(spec, SCHEMA)
    return Info(SCHEMA, layout, partitions(SCHEMA, layout)[number])


def checked(batch, op=replicated_ops.RowOp.UPSERT, where=None):
    expected = batch_schema(SCHEMA, op, tuple(IDS))
    return decode_and_check(where or hosted(), op, expected, flight.batch_data(batch))


def batch(keys, codes=None):
    columns = {
        "k": pa.array(keys, pa.int64()),
        "v": pa.array(["v"] * len(keys), pa.string()),
        "x": pa.array([0.0] * len(keys), pa.float64()),
    }
    if codes is not None:
        columns["_op"] = pa.array(codes, pa.uint8())
    return pa.RecordBatch.from_pydict(columns)


def test_rows_of_this_tablet_are_accepted_and_null_keys_left_to_apply():
    assert checked(batch([1, None, 3])).num_rows == 3
    ranged = Partition(range=Range(["k"], [(0, 10), (10, None)]))
    assert checked(batch([10, None]), where=hosted(ranged, 1)).num_rows == 2


@pytest.mark.parametrize(
    "spec",
    [Partition(hash=[Hash(["k"], 3)]), Partition(range=Range(["k"], [(0, 10), (10, 20)]))],
    ids=["hash", "range"],
)
def test_row_of_another_tablet_rejects_batch(spec):
    for number in range(2):
        with pytest.raises(InvalidArgument, match="belong to another tablet than t"):
            checked(batch(list(range(20))), where=hosted(spec, number))


@pytest.mark.parametrize("code", [0, 9, 14, 15, 255, None])
def test_unknown_op_code_rejects_batch(code):
    with pytest.raises(InvalidArgument, match="row 1 has the unknown op code"):
        checked(batch([1, 2], [1, code]), replicated_ops.RowOp.MIXED)


def test_empty_batch_is_valid():
    assert checked(batch([])).num_rows == 0
    assert checked(batch([], []), replicated_ops.RowOp.MIXED).num_rows == 0
