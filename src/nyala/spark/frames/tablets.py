"""Distribution of the rows of a frame by the tablets of a table."""

from collections.abc import Callable
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import IntegerType

from nyala.client.checks import check_text
from nyala.common.errors import SchemaMismatch
from nyala.common.partitioning.partition import PartitionSchema, locate
from nyala.common.schema import Schema
from nyala.spark.clients import process_client
from nyala.spark.frames.read import quoted
from nyala.spark.options import masters_of

TABLET_COLUMN = "_tablet"


def partition_by_tablet(frame: DataFrame, table: str, *, masters: str | None = None) -> DataFrame:
    """Return a frame with one partition per tablet of a table, so that each task writes to one tablet.

    The rows are distributed by the partitioning that the table has now. Rows whose key is null, or in no
    range of the table, are in the first partition; a write refuses them.

    Args:
        frame: has the key columns of the table.
        table: name of the table.
        masters: addresses of the masters; None: NYALA_MASTERS of the driver.

    Raises:
        SchemaMismatch: the frame lacks a key column, or has a column `_tablet`.
        NotFound: no such table.
        InvalidArgument: no masters.
    """
    check_text("table", table)
    client = process_client(masters_of(masters))
    definition, partition = client.table(table).definition, client.describe(table).partition
    missing = [c.name for c in definition.key_columns if c.name not in frame.columns]
    if missing:
        raise SchemaMismatch(
            f"the frame lacks the key column {missing[0]!r} of table {table!r}; it has: "
            f"{', '.join(frame.columns)}"
        )
    if TABLET_COLUMN in frame.columns:
        raise SchemaMismatch(
            f"the frame has a column {TABLET_COLUMN!r}, which is the name of the number of the tablet while "
            "the rows are distributed; rename it"
        )
    if partition.count == 1:
        return frame.coalesce(1)
    keys = []
    for column in definition.key_columns:
        wanted = from_arrow_type(column.type, prefer_timestamp_ntz=True)
        keys.append(f.col(quoted(column.name)).cast(wanted).alias(column.name))
    number = f.arrow_udf(_numbers(definition, partition), IntegerType())
    numbered = frame.withColumn(TABLET_COLUMN, number(*keys))
    return numbered.repartitionById(partition.count, TABLET_COLUMN).drop(TABLET_COLUMN)


def _numbers(schema: Schema, partition: PartitionSchema) -> Callable[..., pa.Array]:
    """Return a function of the key columns that gives the number of each row's tablet."""
    fields = [(c.name, c.type) for c in schema.key_columns]

    def number(*columns: pa.Array) -> pa.Array:
        return tablet_numbers(schema, partition, fields, columns)

    return number


def tablet_numbers(
    schema: Schema,
    partition: PartitionSchema,
    fields: list[tuple[str, pa.DataType]],
    columns: tuple[pa.Array, ...],
) -> pa.Array:
    """Return the number of the tablet of each row; 0 if there is none.

    Args:
        schema: schema of the table.
        partition: partitioning of the table.
        fields: names and types of the key columns.
        columns: their values.
    """
    arrays = [c.cast(t) for c, (_, t) in zip(columns, fields, strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, names=[n for n, _ in fields])
    known = reduce(pc.and_, [a.is_valid() for a in arrays])
    numbers = np.zeros(rows.num_rows, np.int32)
    chosen = known.to_numpy(zero_copy_only=False)
    numbers[chosen] = np.maximum(locate(schema, partition, rows.filter(known)), 0)
    return pa.array(numbers)
