"""Generated rows: each is determined by a seed and its number, whatever tasks generate it."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from nyala.client.client import connect
from nyala.common.errors import InvalidArgument
from nyala.spark.jobs.reports import Report
from nyala.spark.jobs.tasks import numbers

U64 = npt.NDArray[np.uint64]
BATCH_ROWS = 20_000
TASK_ROWS = 200_000
NULLS = 16
"""One value of a nullable column in so many is null."""
_YEAR_2020_S = 1_577_836_800
_TEN_YEARS_S = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Generated:
    """The outcome of a generation.

    Attributes:
        table: name of the table.
        rows: number of rows.
        seed: that determines them.
    """

    table: str
    rows: int
    seed: int


def generate(
    spark: SparkSession,
    table: str,
    rows: int,
    *,
    masters: str,
    seed: int = 1,
    first: int = 0,
    atomic: bool = False,
    dry_run: bool = False,
    report: Report = str,
) -> Generated:
    """Write generated rows to a table. Integer keys are the numbers of the rows, other keys contain them.

    Args:
        spark: session.
        table: name of the table, with an integer, text, binary or time column in its key.
        rows: how many.
        masters: of the cluster.
        seed: the same seed gives the same rows.
        first: number of the first row.
        atomic: all rows become visible at once.
        dry_run: check only.
        report: called with lines about the progress.

    Raises:
        InvalidArgument: the table's key cannot have so many values.
        NotFound: no such table.
    """
    if rows < 1 or first < 0:
        raise InvalidArgument(f"rows={rows}, first={first}: at least one row, from number 0 on")
    with connect(masters) as client:
        opened = client.table(table)
        schema, key = opened.schema, list(opened.primary_key)
    _check_key(schema, key, first + rows)
    if dry_run:
        return Generated(table, rows, seed)
    tasks = -(-rows // TASK_ROWS)
    report(f"{table}: {rows:,} rows in {tasks} tasks")

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                end = min(rows, (task + 1) * TASK_ROWS)
                for begin in range(task * TASK_ROWS, end, BATCH_ROWS):
                    count = min(BATCH_ROWS, end - begin)
                    yield rows_of(schema, key, seed, first + begin, count)

    columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    frame = numbers(spark, tasks).mapInArrow(made, columns)
    options = {"table": table, "masters": masters, "atomic": str(atomic).lower()}
    frame.write.format("nyala").options(**options).mode("append").save()
    return Generated(table, rows, seed)


def _check_key(schema: pa.Schema, key: list[str], end: int) -> None:
    """Refuse a key in which so many row numbers would not be distinct."""
    for name in key:
        kind = schema.field(name).type
        if pa.types.is_integer(kind) and end <= 1 << (kind.bit_width - 1):
            return
        if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_timestamp(kind):
            return
    raise InvalidArgument(
        f"the key ({', '.join(key)}) has no column that can hold {end} different row numbers; use a table "
        "with an int64, string, binary or timestamp column in its key, or fewer rows"
    )


def mixed(values: U64) -> U64:
    """Return well distributed bits for each number (splitmix64); different numbers give different bits."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def rows_of(schema: pa.Schema, key: list[str], seed: int, first: int, count: int) -> pa.RecordBatch:
    """Return generated rows.

    Args:
        schema: of the table.
        key: names of its key columns.
        seed: that determines the values.
        first: number of the first row.
        count: how many.
    """
    row = np.arange(first, first + count, dtype=np.uint64)
    arrays = []
    for place, field in enumerate(schema):
        if field.name in key:
            arrays.append(_key_values(row, field.type))
            continue
        start = mixed(np.array([(seed << 16) + place], np.uint64))[0]
        bits = mixed(row ^ start)
        values = _values(bits, field.type)
        if field.nullable:
            null = pa.array(mixed(bits) % np.uint64(NULLS) == 0)
            values = pc.if_else(null, pa.scalar(None, field.type), values)
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _key_values(row: U64, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([f"{n:012d}" for n in row.tolist()]).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(row.astype(np.int64) + _YEAR_2020_S * 10**6).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array((row % np.uint64(3650)).astype(np.int32)).cast(kind)
    if pa.types.is_decimal(kind):
        whole = 10 ** min(18, kind.precision - kind.scale)
        return pa.array([Decimal(n) for n in (row % np.uint64(max(1, whole))).tolist()], kind)
    return pa.array((row % np.uint64(1 << (kind.bit_width - 1))).astype(np.int64)).cast(kind)


def _values(bits: U64, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(bits % np.uint64(2) == 0)
    if pa.types.is_floating(kind):
        return pa.array((bits >> np.uint64(40)).astype(np.float64) / 256.0).cast(kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([f"{n:016x}" for n in bits.tolist()]).cast(kind)
    if pa.types.is_timestamp(kind):
        micros = bits % np.uint64(_TEN_YEARS_S * 10**6)
        return pa.array(micros.astype(np.int64) + _YEAR_2020_S * 10**6).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array((bits % np.uint64(30_000)).astype(np.int32)).cast(kind)
    return _key_values(bits >> np.uint64(1), kind)
