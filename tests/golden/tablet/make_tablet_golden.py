"""Writes the golden files of the tablet's formats, into the directory named by its argument.

Those of a release are never written again; a new format version gets new files beside them.
"""

import datetime
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from nyala.common.alteration import AddColumn, DropColumn, SetComment, SetDefault, alter
from nyala.common.partitioning.partition import (
    HashLevel,
    KeyRange,
    PartitionSchema,
    TabletPartition,
)
from nyala.common.schema import from_arrow
from nyala.env.files import SystemFiles
from nyala.tablet.files import replicated_ops, transaction_ops
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import RowError, RowOp, SchemaOp
from nyala.tablet.files.transaction_ops import (
    DropOp,
    KeepOp,
    PartCount,
    PrepareOp,
    ResolveOp,
    StageDeleteOp,
    StageOp,
    TransactionOp,
    TransactionOutcome,
    TransactionResult,
    UnprepareOp,
)
from nyala.tablet.tablet import Tablet
from tests.unit.tablet.support.tablet_support import Driver, info, payload
from tests.unit.tablet.support.transaction_support import Transactions

SCHEMA = from_arrow(
    pa.schema([
        pa.field("host", pa.string()), pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("value", pa.float64(), nullable=False), pa.field("note", pa.string()),
        pa.field("seen", pa.date32()),
    ]),
    ["host", "ts"],
    defaults={"note": "none"},
    immutable=["seen"],
)  # fmt: skip
MOMENT = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
ROWS = [
    {"host": h, "ts": MOMENT, "value": v, "note": n, "seen": None}
    for h, v, n in [("b", 2.5, "two"), ("a", 1.5, None), ("c\0d", float("inf"), "")]
]
RESULT = (
    2,
    [RowError(1, "not_found", "there is no row with this key"), RowError(4, "too_large", "é")],
)


ALTERED = SchemaOp(
    alter(
        SCHEMA,
        [
            DropColumn("note"),
            AddColumn("price", pa.decimal128(9, 2), nullable=False, default=Decimal("1.50")),
            AddColumn("note", pa.string()),
            SetDefault("price", Decimal("2.00")),
            SetComment("price", "in €"),
        ],
    ),
    "golden é",
    {"compression": "zstd"},
)


_TXN = bytes(range(16))
TRANSACTION_OPS: list[TransactionOp] = [
    StageOp(_TXN, "part é", 3, b"a batch"),
    KeepOp(_TXN),
    DropOp(_TXN, None, 600),
    DropOp(_TXN, 1 << 62, 600),
    PrepareOp(_TXN, (1, 2, 3), (PartCount("part é", 4, 0xFFFFFFFF), PartCount("b", 0, 0)), 5, 600),
    UnprepareOp(_TXN, (1, 2, (1 << 63) - 1)),
    ResolveOp(_TXN, 1 << 62),
]
STAGED_DELETE = StageDeleteOp(_TXN, "part é", 7, 3, "host = 'é' and value > 1")
TRANSACTION_RESULT = TransactionResult(TransactionOutcome.REFUSED, 1 << 62, tuple(RESULT[1]))


def transaction_payloads() -> bytes:
    """Operations of transactions, each after its length."""
    payloads = [transaction_ops.encode(op) for op in TRANSACTION_OPS]
    return b"".join(len(p).to_bytes(4, "little") + p for p in payloads)


def stages_tablet(place: str) -> Driver:
    """A tablet with a prepared, a staged, an applied and a dropped transaction."""
    driver = Driver(place, start=1 << 40)
    txns = Transactions(driver)
    driver.write(RowOp.INSERT, [{"k": 1, "a": 1, "s": "one"}])
    for number in range(3):
        txns.upsert(bytes([number]) * 16, number, a=10)
    txns.commit(bytes([0]) * 16)
    txns.prepare(bytes([1]) * 16)
    txns.drop(bytes([3]) * 16)
    driver.flush()
    return driver


def dropped_tablet(place: str) -> Driver:
    """A tablet with rows of a column that was dropped, and of one that was added under its name."""
    driver = Driver(place)
    driver.write(RowOp.INSERT, [{"k": 1, "a": 1, "s": "one"}, {"k": 2, "a": 2, "s": "two"}])
    driver.flush()
    driver.write(RowOp.UPSERT, [{"k": 2, "s": "new"}], ["k", "s"])
    driver.alter(AddColumn("n", pa.int8(), default=5))
    driver.alter(DropColumn("s"), DropColumn("n"), AddColumn("s", pa.int16()))
    driver.write(RowOp.UPSERT, [{"k": 3, "s": 3}], ["k", "s"])
    driver.flush()
    return driver


def write_payload() -> bytes:
    """An operation as it is replicated."""
    return payload(
        SCHEMA, RowOp.MIXED, [{**r, "_op": RowOp.UPSERT} for r in ROWS], all_or_nothing=True
    )


def make(directory: Path) -> None:
    """Write all golden files."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "write-v1.bin").write_bytes(write_payload())
    (directory / "schema-v1.bin").write_bytes(replicated_ops.encode_schema(ALTERED))
    (directory / "result-v1.bin").write_bytes(replicated_ops.encode_result(*RESULT))
    (directory / "transactions-v2.bin").write_bytes(transaction_payloads())
    (directory / "staged-delete-v2.bin").write_bytes(transaction_ops.encode(STAGED_DELETE))
    result = transaction_ops.encode_result(TRANSACTION_RESULT)
    (directory / "transaction-result-v2.bin").write_bytes(result)
    stages_tablet(str(directory / "stages-v1"))
    dropped_tablet(str(directory / "dropped-v2"))
    host, ts = (SCHEMA.column(n).id for n in ("host", "ts"))
    parts = PartitionSchema((HashLevel((host,), 4, 77),), (ts,), (KeyRange(None, b"\x80"),))
    base = info(SCHEMA, compression="lz4", comment="golden")
    part = TabletPartition((2,), KeyRange(b"\x01", None))
    whole = TabletInfo(base.tablet_id, base.table_id, "golden", SCHEMA, parts, part, base.options)
    files, place = SystemFiles(), str(directory / "tablet-v1")
    driver = Driver(place, SCHEMA, files=files, tablet=Tablet.create(files, place, whole))
    driver.write(RowOp.INSERT, ROWS)
    driver.write(RowOp.UPDATE, [{**ROWS[0], "value": 9.0}], ["host", "ts", "value"])
    driver.flush()
    driver.write(RowOp.DELETE, [ROWS[2]], ["host", "ts"])
    driver.flush()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
