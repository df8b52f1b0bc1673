"""The sink of streams: batches that are repeated, restarted, of another query, or of a new checkpoint."""

import pyarrow as pa
import pytest

from nyala.client.transactions.keys import CommittedKey
from nyala.common.errors import InvalidArgument
from nyala.spark.clients import PlannedTable
from nyala.spark.writes.atomic import AtomicWriter
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.staging import TaskStaged
from nyala.spark.writes.stream import StreamTableWriter, stream_name
from tests.spark.stream_runs import SLOW_WORKER, TRIES

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
PLAIN = WriteOptions(
    "t", "127.0.0.1:1", "upsert", "", "", {}, "0" * 32, 0, planned=PlannedTable("A", 0, 0)
)


@pytest.fixture
def table(client, request):
    name = f"s_{request.node.name}"[:60]
    yield client.create_table(name, SCHEMA, ["k"], replicas=1)
    client.drop_table(name)


class Query:
    """The calls of Spark for one query, without Spark: tasks stage, a new writer commits.

    Args:
        cluster: that is written.
        client: of it.
        table: written to.
        name: of the stream.
        query: id of the query.
        **more: options.
    """

    def __init__(self, cluster, client, table, name, query, **more):
        self.given = {"table": table.name, "masters": cluster.masters, "query_name": name} | more
        self.client, self.table, self.query, self.tries = client, table, query, 0

    def writer(self):
        options = WriteOptions.of(self.table.name, self.given["masters"], self.given, SCHEMA)
        return StreamTableWriter.of(options, self.given)

    def batch(self, number, **values):
        """Stage and commit a batch of one row."""
        self.tries += 1
        transaction = self.client.transaction()
        token = transaction.token(self.table)
        part = transaction.part("0")
        self.table.upsert([{"k": number, "v": values["v"]}], txn=part)
        done = TaskStaged(0, token.id, part.staged(), self.query)
        self.writer().commit([done], number)


def rows(table):
    return {r["k"]: r["v"] for r in table.scan().to_arrow().to_pylist()}


def test_batch_that_is_repeated_has_no_further_effect(cluster, client, table):
    query = Query(cluster, client, table, table.name, "q1")
    query.batch(0, v="a")
    query.batch(1, v="b")
    query.batch(1, v="again")
    query.batch(0, v="again")
    query.batch(2, v="c")
    assert rows(table) == {0: "a", 1: "b", 2: "c"}
    found = client.find_key(table.name)
    assert (found.query, found.epoch) == ("q1", 2)


def test_new_checkpoint_is_refused_until_it_takes_the_stream_over(cluster, client, table):
    Query(cluster, client, table, table.name, "old").batch(0, v="a")
    with pytest.raises(
        InvalidArgument,
        match=r"query old, up to batch 0, .* new_checkpoint=restart",
    ):
        Query(cluster, client, table, table.name, "new").batch(0, v="lost")
    assert rows(table) == {0: "a"}
    taker = Query(cluster, client, table, table.name, "new", new_checkpoint="restart")
    taker.batch(0, v="taken over")
    taker.batch(1, v="b")
    with pytest.raises(InvalidArgument, match="is written by the query new"):
        Query(cluster, client, table, table.name, "old").batch(1, v="late")
    assert rows(table) == {0: "taken over", 1: "b"}


def test_stream_ends_when_its_table_was_dropped_and_created_again(cluster, client, table):
    query = Query(cluster, client, table, table.name, "q1")
    query.batch(0, v="a")
    client.drop_table(table.name)
    query.table = client.create_table(table.name, SCHEMA, ["k"], replicas=1)
    for number in (0, 1):
        with pytest.raises(InvalidArgument, match="dropped and created again"):
            query.batch(number, v="b")
    assert rows(query.table) == {}
    taker = Query(cluster, client, query.table, table.name, "q2", new_checkpoint="restart")
    taker.batch(0, v="a")
    taker.batch(1, v="b")
    assert rows(query.table) == {0: "a", 1: "b"}


def test_job_cannot_have_the_name_of_a_stream(cluster, client, table):
    Query(cluster, client, table, table.name, "q1").batch(0, v="a")
    given = {"table": table.name, "masters": cluster.masters, "job_id": table.name}
    options = WriteOptions.of(table.name, cluster.masters, given, SCHEMA)
    with pytest.raises(InvalidArgument, match="is the name of a stream"):
        AtomicWriter(options)


@pytest.mark.row("W2")
def test_batches_are_never_skipped(cluster, client, table):
    query = Query(cluster, client, table, table.name, "q1")
    with pytest.raises(InvalidArgument, match=r"batch 3 of stream .* knows no batch of it"):
        query.batch(3, v="x")
    query.batch(0, v="a")
    with pytest.raises(InvalidArgument, match="batches between are missing"):
        query.batch(2, v="x")
    assert rows(table) == {0: "a"}


@pytest.mark.parametrize(
    ("known", "query", "epoch", "restart", "replaces"),
    [
        (None, "q", 0, False, ""),
        (CommittedKey("n", 5, "", "q", 3), "q", 4, False, ""),
        (CommittedKey("n", 5, "", "p", 3), "q", 0, True, "p"),
        (CommittedKey("n", 5, "", "q", 0), "q", 1, True, ""),
        (CommittedKey("n", 5, "", "q", 0, "A"), "q", 1, False, ""),
        (CommittedKey("n", 5, "", "p", 3, "B"), "q", 0, True, "p"),
    ],
    ids=str,
)
def test_key_of_a_batch(known, query, epoch, restart, replaces):
    key = StreamTableWriter(PLAIN, "n", restart).key_of(known, query, epoch)
    assert (key.query, key.epoch, key.replaces, key.table) == (query, epoch, replaces, "A")


def test_batch_after_a_rebuild_of_the_catalog_is_refused_with_its_remedy():
    made = StreamTableWriter(PLAIN, "n", False)
    with pytest.raises(InvalidArgument, match=r"catalog was rebuilt .* new checkpointLocation"):
        made.key_of(None, "q", 7)
    assert made.key_of(None, "new", 0).replaces == ""


@pytest.mark.parametrize("epoch", [3, 4])
def test_batch_of_a_stream_that_has_written_another_table_is_refused(epoch):
    known = CommittedKey("n", 5, "", "q", 3, "B")
    with pytest.raises(
        InvalidArgument, match="new checkpointLocation and option new_checkpoint=restart"
    ):
        StreamTableWriter(PLAIN, "n", True).key_of(known, "q", epoch)


def test_query_that_lost_its_stream_cannot_take_it_back_in_the_middle():
    with pytest.raises(InvalidArgument, match="Stop one of the two"):
        StreamTableWriter(PLAIN, "n", True).key_of(CommittedKey("n", 5, "", "p", 3), "q", 7)


def test_stream_needs_a_name_and_no_options_of_batch_jobs(cluster, table):
    assert stream_name({"queryName": "orders"}) == "orders"
    with pytest.raises(InvalidArgument, match="a stream needs a name"):
        stream_name({})
    for more in ({"atomic": "false"}, {"job_id": "x"}, {"new_checkpoint": "yes"}):
        with pytest.raises(InvalidArgument):
            Query(cluster, None, table, "n", "q", **more).writer()


@pytest.mark.full
@pytest.mark.row("A11")
def test_stream_between_tables_is_exact_across_restarts(spark, cluster, client, tmp_path):
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
    source = client.create_table("flow", schema, ["k"], replicas=1)
    target = client.create_table("flown", schema, ["k"], replicas=1)
    where = {"masters": cluster.masters}

    def run(checkpoint="one", **more):
        for tries in range(1, TRIES + 1):
            frame = (
                spark.readStream.format("nyala")
                .options(table="flow", starting="snapshot", **where)
                .load()
            )
            writer = frame.drop("_op", "_timestamp").writeStream.format("nyala")
            writer = writer.options(table="flown", **where, **more).queryName("flow to flown")
            writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
            try:
                writer.trigger(availableNow=True).start().awaitTermination()
                return ""
            except Exception as err:
                if SLOW_WORKER not in str(err) or tries == TRIES:
                    return str(err)
        raise AssertionError

    before = client.now()
    for number in range(4):
        source.upsert([{"k": k, "v": number} for k in range(number, 500 + number)])
        assert run() == ""
        assert rows(target) == rows(source)
    versions = target.changes(before, net=False).to_arrow()
    assert len(set(versions["_timestamp"].to_pylist())) == 4, "a batch has several commit times"
    assert "new_checkpoint=restart" in run("two")
    assert run("two", new_checkpoint="restart") == ""
    assert rows(target) == rows(source)
    client.drop_table("flow")
    client.drop_table("flown")
