"""Copy of a table within a cluster or to another one; a copy that follows its source stays current."""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from nyala.backup.definition import table_spec
from nyala.backup.describe import definition_of
from nyala.backup.restore import create
from nyala.client.client import Client
from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound, SchemaMismatch
from nyala.spark.clients import check_same
from nyala.spark.jobs.comparison import read_table
from nyala.spark.jobs.reports import Report
from nyala.spark.session import registered
from nyala.spark.writes.stream import RESTART

ROWS_AT_A_TIME = 500_000
"""Rows of a batch of a copy that follows: each is staged, and becomes visible as a whole."""
HOLD_S = 86_400


@dataclass(frozen=True, slots=True)
class Copied:
    """The outcome of a copy.

    Attributes:
        target: name of the new table.
        created: the target is new.
        at: hybrid time as of which it was copied; 0: of a copy that follows.
    """

    target: str
    created: bool
    at: int


def copy(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    masters: str,
    to_masters: str = "",
    existing: bool = False,
    replicas: int = 0,
    follow: bool = False,
    once: bool = False,
    checkpoint: str = "",
    rows_at_a_time: int = ROWS_AT_A_TIME,
    dry_run: bool = False,
    report: Report = str,
) -> Copied:
    """Copy a table; the new one has its columns, partitions and options.

    Args:
        spark: session.
        source: name of the table.
        target: name of the copy.
        masters: of the cluster of the source.
        to_masters: of the cluster of the target; empty: the same.
        existing: the target exists, for instance from a copy that ended early: its rows are overwritten,
            other rows stay.
        replicas: of each tablet of the target; 0: as the source.
        follow: apply the changes of the source, until the job is interrupted; it continues from its
            checkpoint.
        once: with `follow`, end when all changes so far are applied.
        checkpoint: with `follow`, folder of the stream's state, on storage that all nodes have.
        rows_at_a_time: with `follow`, most rows of one step.
        dry_run: check only.
        report: called with lines about the progress.

    Raises:
        AlreadyPresent: the target exists.
        InvalidArgument: `follow` without a checkpoint, or source and target are one table.
        SchemaMismatch: an existing target has other columns.
        NotFound: no such table, or it was dropped meanwhile; or the target of a checkpoint was dropped.
        KeyboardInterrupt: interrupted, also with `follow`: its last step took effect as a whole, or not.
    """
    if (source, to_masters or masters) == (target, masters):
        raise InvalidArgument(f"table {source!r} cannot be copied to itself; name another target")
    if follow != bool(checkpoint):
        raise InvalidArgument("--follow needs --checkpoint FOLDER, which only such a copy has")
    continued = follow and Path(checkpoint).is_dir() and any(Path(checkpoint).iterdir())
    one = Connection(masters, ClientOptions())
    two = Connection(to_masters or masters, ClientOptions())
    try:
        if continued and target not in Client(two).tables():
            raise NotFound(
                f"there is no table {target!r}, and the checkpoint {checkpoint} continues after the rows "
                "that it had: copy anew, with another checkpoint"
            )
        new = _prepare(one, two, source, target, replicas, existing or continued, dry_run)
        if dry_run:
            return Copied(target, new, 0)
        report(f"{target}: {'created' if new else 'exists'}")
        if follow:
            where = {"table": target, "masters": to_masters or masters}
            changes = _changes(spark, source, masters, rows_at_a_time)
            _follow(changes, where, checkpoint, once)
            return Copied(target, new, 0)
        table = Client(one).table(source)
        with table.hold(None, HOLD_S) as hold:
            rows = read_table(spark, source, masters, hold.at)
            check_same(Client(one).table(source), table.id)
            options = {"table": target, "masters": to_masters or masters, "atomic": "false"}
            rows.write.format("nyala").options(**options).mode("append").save()
            return Copied(target, new, hold.at)
    finally:
        one.close()
        two.close()


def _prepare(
    one: Connection, two: Connection, source: str, target: str, replicas: int, existing: bool, dry_run: bool
) -> bool:  # fmt: skip
    """Create the target, or check that it fits; return whether it is new."""
    opened = one.run(one.core.open_table(source))
    client = Client(two)
    if target in client.tables():
        if not existing:
            raise AlreadyPresent(
                f"table {target!r} exists; add --existing to overwrite its rows, or name another target"
            )
        there = client.table(target)
        if there.schema != opened.schema.arrow:
            raise SchemaMismatch(
                f"table {target!r} has other columns than {source!r}: {', '.join(there.schema.names)[:500]}; "
                "alter it, or name another target"
            )
        return False
    if dry_run:
        return True
    spec = table_spec(target, opened.schema, definition_of(one, opened), one.run(one.core.now()))
    if replicas:
        spec.replicas = replicas
    create(two, spec)
    return True


def _changes(spark: SparkSession, source: str, masters: str, rows: int) -> DataFrame:
    """Return the rows and changes of a table as a stream, with the operation of each in `_op`."""
    options = {"table": source, "masters": masters, "starting": "snapshot"}
    stream = registered(spark).readStream.format("nyala").options(**options)
    frame = stream.option("max_rows_per_trigger", str(rows)).load()
    operation = f.when(f.col("_op") == "delete", "delete").otherwise("upsert")
    return frame.drop("_timestamp").withColumn("_op", operation)


def _follow(changes: DataFrame, where: dict[str, str], checkpoint: str, once: bool) -> None:
    """Write the changes to the target, until an interrupt or, with `once`, up to the present.

    A copy with a new checkpoint is one of all rows; it ends an earlier copy to this target.
    """
    name = f"copy to {where['table']}"
    options = {**where, "op_column": "_op", "query_name": name, "checkpointLocation": checkpoint}
    options["new_checkpoint"] = RESTART
    writer = changes.writeStream.format("nyala").options(**options).outputMode("append")
    query = (writer.trigger(availableNow=True) if once else writer).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
