"""Comparison of two tables, or of a table and Parquet files: which keys differ; and checksums of tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DecimalType, FractionalType, NumericType

from nyala.client.client import connect
from nyala.common.errors import InvalidArgument
from nyala.spark.jobs.input_files import columns_in, list_files
from nyala.spark.jobs.reports import Report
from nyala.spark.options import split
from nyala.spark.session import registered

SHOWN = 20
LEFT, RIGHT, CHANGED = "only_left", "only_right", "changed"


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcome of a comparison.

    Attributes:
        equal: both have the same rows.
        rows: number of keys of both together.
        only_left: number of keys of the first that the second lacks.
        only_right: number of keys of the second that the first lacks.
        changed: number of keys whose rows differ.
        examples: some of these: the key, and what differs.
    """

    equal: bool
    rows: int
    only_left: int
    only_right: int
    changed: int
    examples: list[dict[str, str]]


def read_table(spark: SparkSession, table: str, masters: str, at: int = 0) -> DataFrame:
    """Return the rows of a table as of one moment.

    Args:
        spark: session.
        table: name of the table.
        masters: of its cluster.
        at: hybrid time; 0: now.
    """
    options = {"table": table, "masters": masters, **({"at": str(at)} if at else {})}
    return registered(spark).read.format("nyala").options(**options).load()


def compare(
    spark: SparkSession,
    left: str,
    right: str,
    *,
    masters: str,
    other_masters: str = "",
    at: int = 0,
    other_at: int = 0,
    columns: str = "",
    report: Report = str,
) -> Compared:
    """Compare a table with another table, or with Parquet files, row by row.

    NaN is equal to NaN, 0.0 to -0.0, and null to null. A key of which files have several rows is one that
    differs.

    Args:
        spark: session.
        left: name of a table, whose primary key identifies rows.
        right: name of a table, or the path of Parquet files, which contains a "/".
        masters: of the cluster of the first, and of the second if `other_masters` is empty.
        other_masters: of the cluster of the second.
        at: hybrid time of the first; 0: now.
        other_at: hybrid time of the second; 0: now.
        columns: names beside the key, separated by commas; empty: all.
        report: called with lines about the progress.

    Raises:
        InvalidArgument: the columns of both differ, or their types, or the files do not exist, or are not
            Parquet.
        NotFound: no such table.
    """
    with connect(masters) as client:
        key = client.table(left).primary_key
    one = read_table(spark, left, masters, at)
    if "/" in right:
        if not Path(right).exists():
            raise InvalidArgument(
                f"{right}: there are no such files; name a table, or an existing path"
            )
        for file in list_files(right, "parquet"):
            columns_in(file, ())  # refuses files of another format
        two = spark.read.parquet(right)
    else:
        two = read_table(spark, right, other_masters or masters, other_at)
    names = _names(one, two, key, columns)
    report(f"compares {len(names)} columns by the key {', '.join(key)}")
    found = _joined(one, two, key, names, unique="/" not in right).cache()
    try:
        counts = {row["what"]: row["count"] for row in found.groupBy("what").count().collect()}
        keys = [f"k{i}" for i in range(len(key))]
        wrong = found.where(f.col("what").isNotNull()).orderBy(*keys).limit(SHOWN).collect()
    finally:
        found.unpersist()
    examples = [
        dict(zip(key, map(str, row[: len(key)]), strict=True))
        | {"what": row["what"], "columns": row["columns"]}
        for row in wrong
    ]
    differing = {what: counts.get(what, 0) for what in (LEFT, RIGHT, CHANGED)}
    return Compared(
        not any(differing.values()), sum(counts.values()), differing[LEFT], differing[RIGHT],
        differing[CHANGED], examples,
    )  # fmt: skip


def _names(one: DataFrame, two: DataFrame, key: Sequence[str], columns: str) -> list[str]:
    """Return the columns to compare, beside the key; refuse two sides with different columns."""
    asked = split(columns)
    names = asked or [n for n in one.columns if n not in key]
    sides = [("the first", one), ("the second", two)]
    for side, frame in sides:
        lacking = [n for n in (*key, *names) if n not in frame.columns]
        if lacking:
            raise InvalidArgument(
                f"{side} lacks the columns {', '.join(lacking)}; it has {', '.join(frame.columns)[:500]}. "
                "Name the columns to compare with --columns"
            )
    extra = [] if asked else [n for n in two.columns if n not in (*key, *names)]
    if extra:
        raise InvalidArgument(
            f"the first lacks the columns {', '.join(extra)}; name the columns to compare with --columns"
        )
    for name in (*key, *names):
        left, right = (next(t for t in s.schema if t.name == name).dataType for s in (one, two))
        if _kind(left) != _kind(right):
            raise InvalidArgument(
                f"column {name!r} has the type {left.simpleString()} in the first and "
                f"{right.simpleString()} in the second, whose values are not comparable exactly; write it "
                "with one type, or leave it out with --columns"
            )
    return names


def _kind(kind: DataType) -> str:
    """Return the same text for types whose values can be compared without a loss."""
    if isinstance(kind, FractionalType) and not isinstance(kind, DecimalType):
        return "floating point"
    return "exact number" if isinstance(kind, NumericType) else kind.simpleString()


def _joined(
    one: DataFrame, two: DataFrame, key: Sequence[str], names: Sequence[str], *, unique: bool
) -> DataFrame:
    """Return each key with `what` differs, null for nothing, and the names of the `columns` that do.

    Columns are renamed by their position: Spark takes dots in names for fields, and ignores their case.

    Args:
        one: first side.
        two: second side.
        key: names of the key columns, which are k0, k1 and so on in the result.
        names: of the other columns.
        unique: the second has a key once.
    """
    keys = [f"k{i}" for i in range(len(key))]
    left, right = (
        frame.toDF(*(f"c{n}" for n in range(len(frame.columns)))).select(
            *(f.col(f"c{frame.columns.index(n)}").alias(k) for k, n in zip(keys, key, strict=True)),
            *(f.col(f"c{frame.columns.index(n)}").alias(f"{side}{i}") for i, n in enumerate(names)),
            f.lit(1).alias(f"in_{side}"),
        )
        for side, frame in (("x", one), ("y", two))
    )
    if not unique:
        rows = Window.partitionBy(*keys).orderBy(*keys)
        right = right.withColumn("in_y", f.count(f.lit(1)).over(Window.partitionBy(*keys)))
        right = right.withColumn("row", f.row_number().over(rows)).where("row = 1").drop("row")
    both = left.join(right, keys, "full")
    differs: list[Column] = [
        f.when(~f.col(f"x{i}").eqNullSafe(f.col(f"y{i}")), f.lit(name))
        for i, name in enumerate(names)
    ]
    changed = f.concat_ws(",", *differs) if differs else f.lit("")
    what = (
        f.when(f.col("in_y").isNull(), LEFT)
        .when(f.col("in_x").isNull(), RIGHT)
        .when((changed != "") | (f.col("in_y") > 1), CHANGED)
    )
    return both.select(*keys, what.alias("what"), changed.alias("columns"))


@dataclass(frozen=True, slots=True)
class Checksum:
    """The checksum of a table; equal rows give equal checksums, whatever the tablets and the order.

    Attributes:
        rows: number of rows.
        checksum: sum of the hashes of all rows, hexadecimal.
        at: hybrid time of the snapshot.
    """

    rows: int
    checksum: str
    at: int


def checksum(
    spark: SparkSession, table: str, *, masters: str, at: int = 0, report: Report = str
) -> Checksum:
    """Return number and checksum of the rows of a table, with their column names.

    Args:
        spark: session.
        table: name of the table.
        masters: of the cluster.
        at: hybrid time; 0: now.
        report: called with lines about the progress.

    Raises:
        NotFound: no such table.
    """
    if not at:
        with connect(masters) as client:
            client.table(table)
            at = client.now()
    report(f"{table}: as of {at}")
    frame = read_table(spark, table, masters, at)
    parts: list[Column] = []
    for name, place in sorted((name, place) for place, name in enumerate(frame.columns)):
        value = f.col(f"c{place}")
        parts += [f.lit(name), value.isNull(), value]
    renamed = frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))
    hashed = renamed.select(f.xxhash64(*parts).cast("decimal(38,0)").alias("h"))
    [row] = hashed.agg(f.count("*").alias("n"), f.sum("h").alias("s")).collect()
    return Checksum(row["n"], f"{int(row['s'] or 0) & 0xFFFF_FFFF_FFFF_FFFF:016x}", at)
