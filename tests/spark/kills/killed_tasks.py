"""Jobs with executors that are killed at the steps of a task, in one session. A program of the tests.

Prints a line of JSON: for each job and step, whether the executor was killed, and whether the rows are right.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import nyala
from nyala.client.client import Client
from nyala.client.table import Table
from nyala.spark.jobs import backup, copy, export_files, import_files, restore
from tests.spark.kills.killing_daemon import FOLDER, STEPS
from tests.spark.modes.exercise import SETTINGS

MASTER = "local-cluster[2,1,1024]"
TABLE = "from_rows"


def rows(table: Table) -> pa.Table:
    """Return all rows of a table, in the order of the key."""
    return table.scan(order=True).to_arrow()


class Jobs:
    """The jobs, each of which returns the rows that it has made.

    Args:
        spark: session.
        client: of the cluster.
        folder: for files.
    """

    def __init__(self, spark: SparkSession, client: Client, folder: Path) -> None:
        self._spark = spark
        self._client = client
        self._folder = folder
        self._masters: dict[str, Any] = {"masters": client.masters}
        export_files(spark, TABLE, str(folder / "whole"), **self._masters)
        backup(spark, [TABLE], str(folder / "whole backup"), **self._masters)

    def import_(self, name: str) -> pa.Table:
        """Import files that were exported before."""
        new: dict[str, Any] = {"create": True, "key": ["k"], "replicas": 1}
        import_files(self._spark, str(self._folder / "whole"), name, **self._masters, **new)
        return rows(self._client.table(name))

    def export(self, name: str) -> pa.Table:
        """Export the table."""
        folder = self._folder / name
        export_files(self._spark, TABLE, str(folder), **self._masters)
        assert all(p.name.startswith("part-") for p in folder.iterdir())
        return pq.read_table(folder).sort_by("k")

    def copy(self, name: str) -> pa.Table:
        """Copy the table."""
        copy(self._spark, TABLE, name, **self._masters)
        return rows(self._client.table(name))

    def backup(self, name: str) -> pa.Table:
        """Back up the table, and restore it from the backup."""
        backup(self._spark, [TABLE], str(self._folder / name), **self._masters)
        restore(self._spark, TABLE, str(self._folder / name), **self._masters, name=name)
        return rows(self._client.table(name))

    def restore(self, name: str) -> pa.Table:
        """Restore the table from a backup that was made before."""
        restore(self._spark, TABLE, str(self._folder / "whole backup"), **self._masters, name=name)
        return rows(self._client.table(name))


def main() -> None:
    """Run every job once for each step."""
    folder = Path(os.environ[FOLDER])
    (folder / "at").write_text("")
    settings = SETTINGS | {
        "spark.python.daemon.module": "tests.spark.kills.killing_daemon",
        "spark.deploy.maxExecutorRetries": "-1", "spark.sql.session.timeZone": "UTC",
    }  # fmt: skip
    spark = SparkSession.builder.config(map=settings).master(MASTER).getOrCreate()
    found: dict[str, list[bool]] = {}
    try:
        with nyala.connect(os.environ["NYALA_MASTERS"]) as client:
            jobs = Jobs(nyala.spark.registered(spark), client, folder)
            wanted = rows(client.table(TABLE))
            kinds: dict[str, Callable[[str], pa.Table]] = {
                "import": jobs.import_, "export": jobs.export, "copy": jobs.copy, "backup": jobs.backup,
                "restore": jobs.restore,
            }  # fmt: skip
            for kind, job in kinds.items():
                for step in STEPS:
                    at = f"{kind}, {step}"
                    (folder / "at").write_text(at)
                    same = job(f"{kind} {STEPS.index(step)}").cast(wanted.schema).equals(wanted)
                    found[at] = [(folder / f"killed {at}").exists(), same]
                    print(at, found[at], flush=True)
    finally:
        spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
