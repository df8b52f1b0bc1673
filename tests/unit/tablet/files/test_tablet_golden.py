"""Golden files: files of earlier builds are readable, and deterministic formats have the same bytes."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.env.files import SystemFiles
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet
from tests.golden.tablet.make_tablet_golden import (
    ALTERED,
    RESULT,
    ROWS,
    SCHEMA,
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


def test_written_bytes_equal_golden_files(made):
    """Arrow's messages (in `.dat`, and in operations) may change with its release; nothing else may."""
    for path in sorted(p for p in GOLDEN.rglob("*") if p.is_file() and p.suffix != ".py"):
        if path.suffix == ".pyc" or path.suffix == ".dat":
            continue
        now = made / path.relative_to(GOLDEN)
        head = 12 + 4 * len(SCHEMA.columns) if path.name == "write-v1.bin" else None
        assert now.read_bytes()[:head] == path.read_bytes()[:head], path.name
    assert (made / "write-v1.bin").read_bytes() == write_payload()
