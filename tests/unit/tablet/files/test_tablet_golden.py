"""Golden files: files of earlier builds are readable, and deterministic formats have the same bytes."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.common.errors import Corrupt
from nyala.common.ids import CommittedOperation, OpId
from nyala.env.files import SystemFiles
from nyala.tablet.files import replicated_ops, transaction_ops
from nyala.tablet.files.manifest import UNKNOWN
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet
from tests.golden.tablet.make_tablet_golden import (
    ALTERED,
    RESULT,
    ROWS,
    SCHEMA,
    STAGED_DELETE,
    TRANSACTION_OPS,
    TRANSACTION_RESULT,
    make,
    write_payload,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "tablet"


@pytest.fixture
def made(tmp_path):
    make(tmp_path)
    return tmp_path


def test_golden_tablet_reads_the_same(tmp_path):
    directory = tmp_path / "tablet"
    shutil.copytree(GOLDEN / "tablet-v1", directory)
    tablet = Tablet.open(SystemFiles(), str(directory))
    assert tablet.info.schema == SCHEMA
    assert tablet.info.options == {"compression": "lz4", "comment": "golden"}
    assert (tablet.flush_point.op.index, tablet.flush_point.stamp, tablet.flush_point.extra) == (
        3,
        30,
        b"sessions@1.3",
    )
    view = tablet.view()

    def rows(at):
        return [r for b in view.scan(at, ordered=True) for r in b.to_pylist()]

    first, updated = [ROWS[1], ROWS[0], ROWS[2]], {**ROWS[0], "value": 9.0}
    assert rows(10) == first
    assert rows(20) == [ROWS[1], updated, ROWS[2]]
    assert rows(30) == [ROWS[1], updated]


def test_golden_operation_and_result_decode_the_same():
    data = (GOLDEN / "write-v1.bin").read_bytes()
    write = replicated_ops.decode(data)
    assert (write.op, write.all_or_nothing, write.column_ids) == (
        RowOp.MIXED,
        True,
        (0, 1, 2, 3, 4),
    )
    assert replicated_ops.encode(write) == data
    batch = replicated_ops.read_batch(write.ipc, replicated_ops.fields_of(write, SCHEMA, {}))
    columns = dict(zip(write.column_ids, batch.columns, strict=False))
    codes = replicated_ops.op_codes(write, batch)
    assert list(columns) == [c.id for c in SCHEMA.columns]
    batch = pa.RecordBatch.from_arrays(list(columns.values()), SCHEMA.arrow.names)
    assert batch.to_pylist() == ROWS
    assert codes.tolist() == [3, 3, 3]
    assert replicated_ops.decode_schema((GOLDEN / "schema-v1.bin").read_bytes()) == ALTERED
    assert replicated_ops.decode_result((GOLDEN / "result-v1.bin").read_bytes()) == RESULT


def test_golden_operations_of_transactions_decode_the_same():
    data, found = (GOLDEN / "transactions-v2.bin").read_bytes(), []
    while data:
        end = 4 + int.from_bytes(data[:4], "little")
        found.append(transaction_ops.decode(data[4:end]))
        data = data[end:]
    assert found == TRANSACTION_OPS
    staged = (GOLDEN / "staged-delete-v2.bin").read_bytes()
    assert transaction_ops.decode(staged) == STAGED_DELETE
    result = (GOLDEN / "transaction-result-v2.bin").read_bytes()
    assert transaction_ops.decode_result(result) == TRANSACTION_RESULT


def test_golden_stages_read_the_same(tmp_path):
    directory = tmp_path / "tablet"
    shutil.copytree(GOLDEN / "stages-v1", directory)
    tablet = Tablet.open(SystemFiles(), str(directory))
    known, start = tablet.store.stages, 1 << 40
    ids = [bytes([number]) * 16 for number in range(4)]
    assert list(known.stages) == [ids[1], ids[2]]
    assert known.earliest == start + 70
    assert known.ended == {ids[0]: start + 51}
    assert known.dropped == {ids[3]: start + 80 + (60_000_000 << 12)}
    at = start + 75
    batch = transaction_ops.ResolveOp(ids[1], at)
    operation = CommittedOperation(OpId(1, 9), start + 90, transaction_ops.encode(batch))
    assert transaction_ops.decode_result(tablet.apply([operation])[0]).time == at
    rows = [r for b in tablet.view().scan(at, ordered=True) for r in b.to_pylist()]
    assert rows == [{"k": 0, "a": 10, "s": "t"}, {"k": 1, "a": 10, "s": "t"}]


@pytest.mark.parametrize(("golden", "columns_from"), [("dropped-v1", UNKNOWN), ("dropped-v2", 40)])
def test_golden_dropped_columns_read_the_same(tmp_path, golden, columns_from):
    directory = tmp_path / "tablet"
    shutil.copytree(GOLDEN / golden, directory)
    tablet = Tablet.open(SystemFiles(), str(directory))
    assert tablet.info.columns_from == columns_from
    assert [(d.column.name, d.stamp) for d in tablet.info.dropped] == [("s", 40), ("n", 40)]
    ids = [d.column.id for d in tablet.info.dropped]
    found = tablet.view().at_time(39).scan(39, ids, ordered=True)
    values = [tuple(row.values()) for b in found for row in b.to_pylist()]
    assert values == [("one", 5), ("new", 5)]
    rows = [r for b in tablet.view().scan(50, ordered=True) for r in b.to_pylist()]
    assert [(r["k"], r["a"], r["s"]) for r in rows] == [(1, 1, None), (2, 2, None), (3, None, 3)]


@pytest.mark.parametrize("position", range(0, 56, 3))
def test_damaged_operation_of_a_transaction_does_not_decode(position):
    data = bytearray(transaction_ops.encode(TRANSACTION_OPS[4]))
    data[position] ^= 4
    with pytest.raises(Corrupt):
        transaction_ops.decode(bytes(data))


def test_written_bytes_equal_golden_files(made):
    """Arrow's messages (in `.dat`, in operations and stages) may change with its release; nothing else."""
    for path in sorted(p for p in GOLDEN.rglob("*") if p.is_file() and p.suffix != ".py"):
        if path.suffix in (".pyc", ".dat", ".stg") or path.parent.name in (
            "stages-v1",
            "dropped-v1",
        ):
            continue
        now = made / path.relative_to(GOLDEN)
        head = 12 + 4 * len(SCHEMA.columns) if path.name == "write-v1.bin" else None
        assert now.read_bytes()[:head] == path.read_bytes()[:head], path.name
    assert (made / "write-v1.bin").read_bytes() == write_payload()
