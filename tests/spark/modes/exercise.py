"""Uses of nyala by a session of Spark, in every mode: reads, writes, a stream, jobs, a pipeline.

A program of the tests: its arguments are the master of Spark (`-`: that of `spark-submit`) and a folder. It
prints its findings as one line of JSON.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import nyala
import nyala.spark
from nyala.spark.jobs import (
    backup,
    checksum,
    compare,
    copy,
    export_files,
    generate,
    import_files,
    restore,
    verify,
)
from nyala.spark.options import masters_of
from nyala.spark.pipelines import Pipeline, StepRun

ROWS = 2_000
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "1g",
    "spark.python.daemon.module": "nyala.spark.daemon",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(master: str) -> SparkSession:
    """Return a session.

    Args:
        master: `sc://host:port` is a server of Spark Connect, `-` what `spark-submit` has chosen.
    """
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    builder = SparkSession.builder.config(map=SETTINGS)
    return (builder if master == "-" else builder.master(master)).getOrCreate()


def reads(spark: SparkSession, _: str) -> dict[str, Any]:
    """Read by format, with pruned columns, without columns, from a view, and by `sql` where there is one."""
    whole = spark.read.format("nyala").option("table", "from_rows").load()
    some = nyala.spark.read(spark, "from_rows", columns=["k", "v"], where="k < 100")
    nyala.spark.register_views(spark, ["from_rows"])
    try:
        query = nyala.spark.sql(spark, "select sum(v) x from from_rows where k < 100")
        by_sql = str(query.first()["x"])
    except nyala.errors.InvalidArgument as err:
        by_sql = err.message
    return {
        "rows": whole.count(),
        "counted": nyala.spark.read(spark, "from_rows", columns=[]).count(),
        "some": some.agg(f.sum("v")).first()[0],
        "view": spark.sql("select max(s) from from_rows where k < 10").first()[0],
        "sql": by_sql,
    }


def writes(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Write atomically, twice with one id, once with a task that fails; merge; one by one; replace."""
    frame = nyala.spark.read(spark, "from_rows")
    parted = nyala.spark.partition_by_tablet(frame.where("k < 1000"), "to_rows")
    found: dict[str, Any] = {}
    for _ in range(2):
        _save(parted, job_id=f"once for {folder}")
        found["once"] = _count(spark)
    broken = frame.withColumn("v", f.when(f.col("k") == 1500, f.raise_error(f.lit("planted"))))
    try:
        _save(broken)
    except Exception as err:
        found["failed"] = "planted" in str(err)
    found["after failure"] = _count(spark)
    done = nyala.spark.merge(
        frame.where("k >= 900 and k < 1100"),
        "to_rows",
        when_matched={"v": "source.v + 1"},
        when_not_matched_by_source="delete",
    )
    found["merged"] = [done.updated, done.inserted, done.deleted]
    _save(frame, atomic="false")
    found["one by one"] = _count(spark)
    writer = frame.where("k < 10").write.format("nyala").option("table", "to_rows")
    writer.mode("overwrite").save()
    return {**found, "replaced": _count(spark)}


def streams(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Copy a table by a stream, then a change of it by the same query."""
    with nyala.connect(masters_of(None)) as client:
        source, target = client.table("from_rows"), client.table("streamed")
        counts: list[int] = []
        for change in ([], [{"k": 0, "v": -1, "s": "changed"}, {"k": ROWS, "v": 0, "s": "new"}]):
            if change:
                source.upsert(change).raise_for_errors()
            changes = spark.readStream.format("nyala").option("table", "from_rows")
            rows = changes.option("starting", "snapshot").load().drop("_op", "_timestamp")
            writer = rows.writeStream.format("nyala").option("table", "streamed")
            writer = writer.option("checkpointLocation", f"{folder}/point").queryName(
                f"modes of {folder}"
            )
            writer.trigger(availableNow=True).start().awaitTermination()
            counts.append(target.count())
        changed = target.get({"k": 0})
        return {"streamed": counts, "changed": changed and changed["v"]}


def jobs(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Copy, export, import, compare."""
    masters, out = masters_of(None), str(Path(folder) / "out")
    copied = copy(spark, "from_rows", "copied", masters=masters)
    exported = export_files(spark, "from_rows", out, masters=masters, format="json")
    imported = import_files(
        spark, out, "imported", masters=masters, create=True, key=["k"], replicas=1
    )
    names = ("copied", "imported")
    same = [compare(spark, "from_rows", name, masters=masters).equal for name in names]
    sums = {checksum(spark, n, masters=masters).checksum for n in ("from_rows", "copied")}
    return {
        "copied": copied.created, "exported": exported.rows, "files": imported.files > 0,
        "same": same, "checksums": len(sums),
    }  # fmt: skip


def more_jobs(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Generate rows, write linked lists, back up before and after a change, restore; leave a bad line out."""
    where: dict[str, Any] = {"masters": masters_of(None)}
    own = Path(folder)
    copy(spark, "from_rows", "generated", **where)
    made = generate(spark, "generated", 500, first=10_000, **where)
    linked = verify(spark, "lists", load=200, lists=2, replicas=1, **where)
    backups = str(own / "backups")
    kinds = [backup(spark, ["generated", "lists"], backups, **where)[0].kind]
    with nyala.connect(masters_of(None)) as client:
        client.table("generated").delete([{"k": k} for k in range(100)]).raise_for_errors()
    kinds.append(backup(spark, ["generated"], backups, **where)[0].kind)
    again = restore(spark, "generated", backups, name="restored", **where)
    restore(spark, "lists", backups, name="lists again", **where)
    (own / "rows.csv").write_text("k,v,s\n1,1,a\nx,2,b\n3,3,c\n")
    done = import_files(spark, str(own / "rows.csv"), "to_rows", bad=str(own / "bad"), **where)
    return {
        "generated": made.rows, "linked": linked.correct, "backups": kinds, "restored": again.rows,
        "equal": compare(spark, "generated", "restored", **where).equal,
        "lists": verify(spark, "lists again", expect=400, **where).correct, "bad": done.bad_lines,
    }  # fmt: skip


def pipelines(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Run a pipeline of two steps with a ledger, then once more under the same id."""
    pipeline = Pipeline(f"modes-{hashlib.sha256(folder.encode()).hexdigest()[:8]}")

    @pipeline.step
    def load(step: StepRun) -> int:
        rows = nyala.spark.read(step.spark, "from_rows", where="k < 50", masters=step.masters)
        step.write(rows, "to_rows", mode="overwrite")
        return _count(step.spark)

    @pipeline.step
    def twice(step: StepRun) -> int:
        return int(step.results["load"]) * 2

    own = [pipeline.run(spark, run="one", standby=True).own_steps for _ in range(2)]
    return {"own": own, "twice": pipeline.run(spark, run="one").results["twice"]}


def _save(frame: DataFrame, **options: str) -> None:
    frame.write.format("nyala").options(table="to_rows", **options).mode("append").save()


def _count(spark: SparkSession) -> int:
    return int(nyala.spark.read(spark, "to_rows", columns=[]).count())


PARTS: tuple[Callable[[SparkSession, str], dict[str, Any]], ...] = (
    reads, writes, streams, jobs, more_jobs, pipelines,
)  # fmt: skip


def main(master: str, folder: str) -> None:
    """Do everything, and print what was found.

    Args:
        master: see `session`.
        folder: for files and a checkpoint.
    """
    spark = session(master)
    found: dict[str, Any] = {"session": type(spark).__module__}
    try:
        for part in PARTS:
            found |= part(spark, folder)
            print(part.__name__, file=sys.stderr, flush=True)
    finally:
        spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
