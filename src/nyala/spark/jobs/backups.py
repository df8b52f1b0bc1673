"""Backups and restores whose files Spark's tasks write and read; the format is that of `nyala backup`."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from nyala.backup.load import FileLoad, load_file
from nyala.backup.manifest import BackupFile, Element
from nyala.backup.parts import BackupPart, write_own_part
from nyala.backup.restore import Restored, RestoreOptions, Restoring
from nyala.backup.take import Report, TakeOptions, Taking
from nyala.client.client import connect
from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.client.table import Table
from nyala.spark.clients import check_same
from nyala.spark.jobs.tasks import run_in_tasks


def backup(
    spark: SparkSession,
    tables: Sequence[str],
    folder: str,
    *,
    masters: str,
    full: bool = False,
    keep_history_s: int = 0,
    dry_run: bool = False,
    report: Report = str,
) -> list[Element]:
    """Back up tables as of one moment; each file is written by a task.

    Args:
        spark: session.
        tables: names.
        folder: of the backups, under the same path on all nodes, for instance NFS.
        masters: of the cluster.
        full: begin a new chain.
        keep_history_s: seconds for which the history after this backup is held.
        dry_run: plan only.
        report: called with lines about the progress.

    Returns:
        The new elements.

    Raises:
        HistoryGone: the changes since the last backup are gone: a full one is needed.
        NotFound, InvalidArgument, Unavailable: as for `nyala backup`.
    """
    options = TakeOptions(full=full, keep_history_s=keep_history_s, dry_run=dry_run)

    def run(parts: list[BackupPart]) -> list[BackupFile | None]:
        return run_in_tasks(spark, parts, write_own_part)

    connection = Connection(masters, ClientOptions())
    try:
        return Taking(connection, Path(folder).absolute(), run, report).take(tables, options)
    finally:
        connection.close()


def restore(
    spark: SparkSession,
    table: str,
    folder: str,
    *,
    masters: str,
    name: str = "",
    at: int | None = None,
    replicas: int = 0,
    verify: bool = True,
    dry_run: bool = False,
    report: Report = str,
) -> Restored:
    """Restore a table as of a moment; each file is loaded by a task.

    Args:
        spark: session.
        table: its name in the backup.
        folder: of the backups, under the same path on all nodes.
        masters: of the cluster.
        name: of the new table; empty: as in the backup.
        at: hybrid time; None: the latest moment.
        replicas: of each tablet; 0: as in the backup.
        verify: compare the checksums of all files before anything is written.
        dry_run: check only.
        report: called with lines about the progress.

    Raises:
        Corrupt: files are missing or were altered; nothing was written.
        InvalidArgument, AlreadyPresent: as for `nyala restore`.
    """
    options = RestoreOptions(name=name, at=at, replicas=replicas, verify=verify, dry_run=dry_run)

    def run(made: Table, loads: list[FileLoad]) -> int:
        work = partial(load_in_task, masters=masters, table=made.name, table_id=made.id)
        return sum(run_in_tasks(spark, loads, work))

    connection = Connection(masters, ClientOptions())
    try:
        return Restoring(connection, Path(folder).absolute(), run, report).restore(table, options)
    finally:
        connection.close()


def load_in_task(load: FileLoad, masters: str, table: str, table_id: str) -> int:
    """Load one file in a task; a later attempt continues the numbering of writes of the first one.

    Args:
        load: the file.
        masters: of the cluster.
        table: that is restored.
        table_id: its id.

    Raises:
        NotFound: another restore to this name has dropped the table.
    """
    client_id = hashlib.sha256(f"{table_id} {load.path}".encode()).digest()[:16]
    with connect(masters, client_id=client_id) as client:
        made = client.table(table)
        check_same(made, table_id)
        return load_file(load, made)
