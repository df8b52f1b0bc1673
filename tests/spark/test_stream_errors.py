"""Streams that cannot continue, holds of their history, and failures of servers: the reader alone."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import nyala
from nyala.common.errors import (
    HistoryGone,
    InvalidArgument,
    NyalaError,
    SchemaMismatch,
    Unavailable,
)
from nyala.spark.source import NyalaSource
from nyala.testing.layout import free_ports
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.direct import Direct
from tests.spark.stream_runs import Checkpoint, StreamRun, apply, open_reader
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module", autouse=True)
def expiring(cluster, client):
    """A stream whose history is removed while the other tests run: its table, and its checkpoint."""
    ranges = nyala.Partition(range=nyala.Range(["k"], [(0, 5), (5, 9)]))
    table = client.create_table(
        "expiring", SCHEMA, ["k"], ranges, replicas=1, options={"history_max_age_s": 1}
    )
    checkpoint = Checkpoint()
    with StreamRun(open_reader(cluster.masters, table.name, hold_s="1"), checkpoint) as run:
        run.next()
    table.alter().drop_range(0, 5).commit()
    return table, checkpoint


@pytest.fixture
def table(client, request):
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    made = client.create_table(request.node.name, SCHEMA, ["k"], parts, replicas=1)
    made.insert([{"k": k, "v": 0} for k in range(10)]).raise_for_errors()
    return made


@pytest.fixture
def start(cluster, table):
    def run(checkpoint=None, **options):
        return StreamRun(open_reader(cluster.masters, table.name, **options), checkpoint)

    return run


@pytest.fixture
def held(cluster, table):
    """Return the holds of the table: name and time, by tablet."""

    def holds():
        request = pb.ListTabletsRequest(tablet_ids=[t.id for t in table.tablets()])
        with Direct(cluster.masters) as direct:
            answer = direct.ask(cluster.address("tserver-0"), methods.LIST_TABLETS, request)
        return [[(h.name, h.at, h.left_ms) for h in t.holds] for t in answer.tablets]

    return holds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_row_per_trigger": "1"},
            "'max_row_per_trigger' .did you mean 'max_rows_per_trigger'",
        ),
        (
            {"at": "5"},
            "option 'at' has no meaning for a stream; its options are: ca, cert, columns, ",
        ),
        ({"schema_evolution": "add"}, "schema_evolution is not offered.*start the query again"),
        ({"max_rows_per_trigger": "0"}, "max_rows_per_trigger='0': a number of rows, from 1"),
        ({"net": "yes"}, "net='yes': write true or false"),
        ({"starting": ""}, 'needs option "starting"'),
        ({"starting": "yesterday"}, "starting='yesterday': snapshot, now, a hybrid time"),
        ({"starting": "2026-01-31T12:00:00"}, "has no time zone"),
        ({"hold_s": "1d"}, "hold_s='1d'"),
        ({"split_bytes": "0"}, "split_bytes='0'"),
        ({"columns": "k, w"}, "'w'"),
        ({"where": "k ="}, "character"),
        ({"table": "nowhere"}, "nowhere"),
    ],
)
def test_wrong_option_is_refused_before_any_task(start, table, cluster, options, message):
    with pytest.raises(NyalaError, match=message):
        open_reader(cluster.masters, **({"table": table.name} | options))


def test_stream_options_are_refused_by_batch_reads(cluster, table):
    source = NyalaSource({"table": table.name, "masters": cluster.masters, "starting": "now"})
    with pytest.raises(InvalidArgument, match=r"is of streams: use spark.readStream"):
        source.reader(source.schema())


@pytest.mark.parametrize(
    ("name", "near"), [("wehre", "where"), ("At_", "at"), ("colums", "columns")]
)
def test_misspelt_option_of_a_batch_read_is_refused(name, near):
    source = NyalaSource({"table": "t", "masters": "127.0.0.1:1", name: "1"})
    with pytest.raises(InvalidArgument, match=f"option '{name}' .did you mean '{near}'?"):
        source.reader(StructType())


def test_start_in_the_future_is_refused(start):
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    with start(starting=later) as run, pytest.raises(InvalidArgument, match="after the present"):
        run.plan()


def test_masters_out_of_reach_are_named():
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(Unavailable, match=f"no nyala master answers .{address}: "):
        open_reader(address, "any")


def test_checkpoint_of_another_table_or_cluster_is_refused(client, start, table):
    with start() as run:
        run.next()
        [planned] = run.checkpoint.planned

    def message(planned):
        with start(Checkpoint([planned], 1)) as run, pytest.raises(InvalidArgument) as refused:
            run.plan()
        with start(Checkpoint([planned], 0)) as run, pytest.raises(InvalidArgument) as again:
            run.rows(0)
        assert str(again.value) == str(refused.value)
        return str(refused.value)

    offset = json.loads(planned)
    other = message(json.dumps(offset | {"table": "f" * 32}))
    assert "the checkpoint is of the table with id " + "f" * 32 in other
    assert "give the query another checkpointLocation" in other
    assert "the checkpoint is of cluster abc" in message(json.dumps(offset | {"cluster": "abc"}))
    assert "offsets of format 2" in message(json.dumps(offset | {"version": 2}))
    assert "none of a nyala stream" in message(json.dumps({"logOffset": 3}))


def test_alteration_of_its_columns_ends_a_stream_that_continues_after_a_new_load(start, table):
    checkpoint = Checkpoint()
    with start(checkpoint) as run, start(columns="v") as narrow:
        copy: dict[Any, Any] = {}
        apply(copy, run.next())
        narrow.next()
        table.alter().add_column("w", pa.int64(), default=7).commit()
        table.upsert([{"k": 1, "v": 1, "w": 1}])
        with pytest.raises(
            SchemaMismatch, match=r"was altered: columns new: w.*same checkpoint"
        ) as err:
            run.next()
        assert "load() included" in str(err.value)
        assert [r["v"] for r in narrow.next()] == [1]
    with start(checkpoint) as run:
        rows = run.next()
        assert [(r["_op"], r["k"], r["w"]) for r in rows] == [("update", 1, 1)]
        table.alter().rename_column("v", "u").commit()
        table.upsert([{"k": 1, "u": 2}])
        with pytest.raises(SchemaMismatch, match="columns new: u; gone: v"):
            run.next()


def test_alteration_between_load_and_start_is_refused(cluster, table):
    reader = open_reader(cluster.masters, table.name)
    table.alter().add_column("w", pa.int64()).commit()
    with pytest.raises(SchemaMismatch, match="columns new: w"):
        reader.initialOffset()


@pytest.mark.full
def test_history_is_held_at_the_committed_offset_and_after_the_end(start, table, held):
    checkpoint = Checkpoint()
    with start(checkpoint, hold_s="700") as run:
        assert run.plan()
        begin = run.through()
        [[one], [other]] = held()
        assert (
            one[:2] == other[:2] == (f"spark-{json.loads(checkpoint.planned[0])['stream']}", begin)
        )
        assert 600_000 < one[2] <= 700_000
        run.next()
        table.upsert([{"k": 1, "v": 1}])
        run.next()
        moved = run.through()
        assert moved > begin
        wait_until(lambda: {h[1] for t in held() for h in t} == {moved}, "the hold moves")
    assert [[h[:2] for h in t] for t in held()] == [[(one[0], moved)]] * 2
    with start(checkpoint, hold_s="800") as run:
        table.upsert([{"k": 1, "v": 2}])
        run.next()
        [[again], _] = held()
        assert again[:2] == (one[0], moved)
        assert again[2] > 700_000
    with start(hold_s="0") as run:
        run.next()
        assert len(held()[0]) == 1


def test_tablet_server_is_killed_during_the_stream(cluster, start, table):
    checkpoint = Checkpoint()
    copy: dict[Any, Any] = {}
    with start(checkpoint, max_rows_per_trigger="4") as run:
        for turn in range(3):
            assert run.plan()
            cluster.kill("tserver-0")
            cluster.start("tserver-0")
            apply(copy, run.next())
            table.upsert([{"k": k, "v": turn} for k in range(turn, 12)])
        while (rows := run.next()) is not None:
            apply(copy, rows)
        rows = table.scan(at=run.through()).to_arrow().to_pylist()
    assert copy == {r["k"]: r for r in rows}


@pytest.mark.row("W7")
def test_stream_below_the_horizon_ends_with_history_gone(cluster, expiring):
    table, checkpoint = expiring

    def gone():
        with StreamRun(open_reader(cluster.masters, table.name, hold_s="1"), checkpoint) as again:
            try:
                again.plan()
            except HistoryGone as err:
                return str(err)
        del checkpoint.planned[1:]
        return None

    message = wait_until(gone, "the history is removed", poll_s=1)
    assert "cannot be read any more" in message
    assert "another checkpointLocation, and starting=snapshot" in message
