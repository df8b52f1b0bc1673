"""Every stored value is the same for Spark as in a Parquet file, and the same again when Spark writes it."""

import random
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nyala
import nyala.spark

pytestmark = pytest.mark.full
NAN, INF = float("nan"), float("inf")
TYPES = {
    "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(),
    "f64": pa.float64(), "s": pa.string(), "b": pa.binary(), "yes": pa.bool_(), "day": pa.date32(),
    "naive": pa.timestamp("us"), "utc": pa.timestamp("us", "UTC"), "d9": pa.decimal128(9, 2),
    "d18": pa.decimal128(18, 18), "d38": pa.decimal128(38, 10), "nothing": pa.string(),
    "no_number": pa.float64(),
}  # fmt: skip
SCHEMA = pa.schema([("k", pa.int64()), *TYPES.items()])
DAY_US = 86_400_000_000
EDGES: dict[str, list[Any]] = {
    "i8": [-128, 127, 0], "i16": [-(2**15), 2**15 - 1], "i32": [-(2**31), 2**31 - 1],
    "i64": [-(2**63), 2**63 - 1], "f32": [NAN, INF, -INF, -0.0, 0.0, 2.0**-149, 3.4028234663852886e38],
    "f64": [NAN, INF, -INF, -0.0, 5e-324, 1.7976931348623157e308, 0.1],
    "s": ["", "é", "e\u0301", "\U0001f600", "\x00a\x00", "\ud7ff\ue000", " x ", "null", "\uffff\u202e"],
    "b": [b"", b"\x00\xff", b"\xc3\x28"], "yes": [True, False],
    "day": [date(1, 1, 1), date(1582, 10, 4), date(1582, 10, 15), date(1969, 12, 31), date(9999, 12, 31)],
    "naive": [datetime(1, 1, 1), datetime(1582, 10, 10), datetime(2013, 3, 10, 2, 30), datetime.max],
    "utc": [-62_135_596_800_000_000, -1, 0, 1_362_882_600_000_001, 253_402_300_799_999_999],
    "d9": [Decimal("-9999999.99"), Decimal("0.01")], "d18": [Decimal("0." + "9" * 18), Decimal("-1e-18")],
    "d38": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001"), Decimal(0)],
}  # fmt: skip


def rows(seed: int, count: int = 120) -> pa.Table:
    """Return rows with edge values, random ones and nulls."""
    chance = random.Random(seed)
    random_values: dict[str, Any] = {
        "i8": lambda: chance.randrange(-128, 128), "i64": lambda: chance.randrange(-(2**63), 2**63),
        "f64": lambda: chance.uniform(-1e9, 1e9), "b": lambda: chance.randbytes(chance.randrange(9)),
        "s": lambda: "".join(chr(chance.randrange(32, 0xD800)) for _ in range(chance.randrange(9))),
        "utc": lambda: chance.randrange(-20_000 * DAY_US, 20_000 * DAY_US),
        "d38": lambda: Decimal(chance.randrange(-(10**37), 10**37)).scaleb(-10),
    }  # fmt: skip

    def value(name: str, row: int) -> Any:
        edges = EDGES.get(name, [])
        if row < len(edges):
            return edges[row]
        if not edges or chance.random() < 0.2:
            return None
        make = random_values.get(name)
        return make() if make and chance.random() < 0.7 else chance.choice(edges)

    columns = [pa.array([value(n, row) for row in range(count)], t) for n, t in TYPES.items()]
    return pa.table([pa.array(range(count), pa.int64()), *columns], schema=SCHEMA)


def exact(table: pa.Table) -> list[str]:
    """Return the rows in order of their keys, as text that distinguishes all values."""
    whole = table.sort_by("k")
    columns = {}
    for name in whole.column_names:
        column = whole[name]
        if pa.types.is_temporal(column.type):
            width = pa.int32() if pa.types.is_date(column.type) else pa.int64()
            column = column.cast(width)
        columns[name] = column
    return [repr(r) for r in pa.table(columns).to_pylist()]


ZONES = {"UTC": "utc", "America/New_York": "new_york"}


@pytest.mark.parametrize("zone", ZONES)
def test_values_are_those_of_parquet_and_survive_a_write(spark, cluster, client, tmp_path, zone):
    stored = rows(20 if zone == "UTC" else 21)
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 3)])
    read, back = f"types_read_{ZONES[zone]}", f"types_back_{ZONES[zone]}"
    first = client.create_table(read, SCHEMA, ["k"], parts, replicas=1)
    second = client.create_table(back, SCHEMA, ["k"], parts, replicas=1)
    first.upsert(stored).raise_for_errors()
    pq.write_table(stored, tmp_path / "rows.parquet")
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "CORRECTED")
    try:
        theirs = spark.read.parquet(str(tmp_path / "rows.parquet"))
        ours = nyala.spark.read(spark, read, masters=cluster.masters)
        assert ours.dtypes == theirs.dtypes
        assert ours.toArrow().schema.types == theirs.toArrow().schema.types
        assert exact(ours.toArrow()) == exact(theirs.toArrow())
        hours = (
            "select k, hour(utc) a, hour(naive) b, unix_micros(date_trunc('day', utc)) c, f64 = f64 d "
            "from {f}"  # as a number: Python has no datetime of the first day in other zones
        )
        told = [sorted(map(repr, spark.sql(hours, f=one).collect())) for one in (ours, theirs)]
        assert told[0] == told[1]
        target = ours.write.format("nyala").options(table=back, masters=cluster.masters)
        target.mode("append").save()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert exact(second.scan().to_arrow()) == exact(stored) == exact(first.scan().to_arrow())
    client.drop_table(read)
    client.drop_table(back)
