"""Jobs, streams and clients that run while the certificate authority is replaced, and the old one retired."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.testing import MiniCluster
from tests.cluster.support.commands import run
from tests.cluster.support.rotating import done, trusted
from tests.waiting import wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS = 1_000
"""Rows of a batch of the job."""
PHASES = ("before", "rotated", "retired", "restarted")


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(1, 1, secure=True) as made:
        yield made


def batches_in_phases(folder, seconds):
    """Return the work of one task: a batch of rows in each phase, when it is reached."""

    def work(given):
        for _ in given:
            pass
        for number, phase in enumerate(PHASES):
            Path(folder, f"waits {phase}").touch()
            waited = 0.0
            while not Path(folder, phase).exists():
                assert waited < seconds, phase
                threading.Event().wait(0.1)
                waited += 0.1
            keys = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
            yield pa.record_batch([keys, pa.array([number] * ROWS, pa.int64())], names=["k", "v"])

    return work


class Job:
    """A job of one task, which the main thread runs; another one lets it write the batch of each phase.

    Args:
        spark: session.
        folder: in which its task sees the phases.
        options: of the write.
    """

    def __init__(self, spark, folder, options):
        self._folder, self._ended = folder, threading.Event()
        work = batches_in_phases(str(folder), within(300))
        frame = spark.range(1).repartition(1).mapInArrow(work, "k bigint, v bigint")
        self._writer = frame.write.format("nyala").options(**options).mode("append")

    def run(self):
        try:
            self._writer.save()
        finally:
            self._ended.set()

    def reach(self, phase):
        """Wait until the task has written what comes before a phase, and let it write that of the phase."""
        wait_until(
            lambda: self._ended.is_set() or Path(self._folder, f"waits {phase}").exists(),
            "the job reaches its next batch",
        )
        assert not self._ended.is_set(), "the job ended early"
        Path(self._folder, phase).touch()

    def give_up(self):
        for phase in PHASES:
            Path(self._folder, phase).touch()


class Seen:
    """A stream of the changes of a table, and the keys that it has delivered."""

    def __init__(self, spark, folder, options):
        self.keys: set[int] = set()
        frame = spark.readStream.format("nyala").options(starting="snapshot", **options).load()
        writer = frame.writeStream.option("checkpointLocation", str(folder))
        self.query = writer.foreachBatch(self._take).start()

    def _take(self, frame, _):
        self.keys.update(r["k"] for r in frame.toArrow().to_pylist())

    def wait_for(self, key):
        wait_until(
            lambda: self.query.exception() or key in self.keys, f"the stream delivers row {key}"
        )
        assert self.query.exception() is None, self.query.exception()


def test_job_stream_and_client_go_on_while_the_authority_is_replaced_and_retired(
    cluster, spark, tmp_path
):
    (old,) = trusted(cluster, "master-0")
    with cluster.connect() as client:
        for name in ("written", "changed"):
            client.create_table(name, SCHEMA, ["k"], replicas=1)
        changed = client.table("changed")
        options = {"masters": cluster.masters}
        job = Job(spark, tmp_path, {**options, "table": "written"})
        stream = Seen(spark, tmp_path / "checkpoint", {**options, "table": "changed"})

        def go_on(phase):
            number = PHASES.index(phase)
            job.reach(phase)
            changed.upsert([{"k": number, "v": number}]).raise_for_errors()
            stream.wait_for(number)
            with cluster.connect() as fresh:
                assert fresh.table("changed").count() == number + 1

        def phases():
            try:
                go_on("before")
                done(cluster, "ca", "rotate", before="being replaced already")
                wait_until(
                    lambda: "no server is behind; next:" in run(cluster, "ca", "show").stderr,
                    "every server has a certificate of the new authority",
                )
                go_on("rotated")
                done(cluster, "ca", "retire", before="no replacement is under way")
                wait_until(
                    lambda: all(old not in trusted(cluster, n) for n in cluster.names),
                    "no server trusts the old one",
                )
                go_on("retired")
                cluster.stop("tserver-0")
                cluster.start("tserver-0")
                go_on("restarted")
            finally:
                job.give_up()

        with ThreadPoolExecutor(1) as beside:
            following = beside.submit(phases)
            try:
                job.run()
            finally:
                following.result(within(300))
                stream.query.stop()
        assert client.table("written").count() == len(PHASES) * ROWS
        read = spark.read.format("nyala").options(table="written", **options).load()
        assert read.filter("v = 3").count() == ROWS
