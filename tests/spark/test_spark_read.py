"""Batch reads through Spark: partitions, columns, types, filters, snapshots."""

import functools
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    In,
    IsNotNull,
    LessThan,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

import nyala
from nyala.spark.reader import PushingReader, ReadOptions
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.direct import Direct

NAN, INF = float("nan"), float("inf")
SCHEMA = pa.schema([
    ("k", pa.int64()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("f", pa.float32()),
    ("d", pa.float64()), ("s", pa.string()), ("b", pa.binary()), ("yes", pa.bool_()), ("day", pa.date32()),
    ("naive", pa.timestamp("us")), ("at", pa.timestamp("us", "UTC")), ("dec", pa.decimal128(20, 3)),
])  # fmt: skip
FLOATS = [NAN, 1.5, -0.0, None, -INF, INF, -2.0]
TEXTS = ["a'b", "a%c", "a_d", None, 'x"y', "a\\b", "", "axd", "é"]
TABLETS = 4


def row(k: int) -> dict[str, Any]:
    return {
        "k": k, "i8": k, "i16": -k, "i32": k * 70_000, "f": FLOATS[k % 7], "d": FLOATS[(k + 3) % 7],
        "s": TEXTS[k % 9], "b": [b"\x00\x01", None, b""][k % 3], "yes": [True, False, None][k % 3],
        "day": date(1969, 12, 25) + timedelta(k % 12), "naive": datetime(2013, 11, 3, k % 24, 30, 0, k),
        "at": datetime(2013, 11, 3, k % 24, 30, 0, k, UTC), "dec": Decimal(k - 30) / 8,
    }  # fmt: skip


ROWS = [row(k) for k in range(63)]
PUSHED = [  # filters that the servers evaluate whole
    "d < 1", "d <= 1.5", "d = 0.0D", "s = \"a'b\"", "s like 'a%'", "startswith(s, 'a%')",
    "startswith(s, 'a_')", "startswith(s, 'a\\\\')", "s in ('a_d', 'x\"y', 'é')", "s is null", "s = ''",
    "not (s = 'axd')", "yes", "not yes", "b = x'0001'", "day = date'1969-12-25'", "day < date'1970-01-01'",
    "naive < timestamp_ntz'2013-11-03 05:30:00.000005'", "at >= timestamp'2013-11-03 05:30:00.000005Z'",
    "s like '%b'", "contains(s, '_')", "contains(s, 'x')",
    "dec > 1.25", "i8 > 3 and i32 <= 490000", "d is null", "k between 5 and 7",
]  # fmt: skip
KEPT = [  # filters that Spark evaluates itself, since they have another meaning there or cannot be expressed
    "d > 1", "d >= 1.5", "not (d < 1)", "d = double('NaN')", "f <=> float('NaN')", "not (d = 1.5D)",
    "d in (1.5, double('NaN'))", "s like 'a_d'", "k in (1, 2, 3) or d > 3", "isnan(f)",
]  # fmt: skip


@pytest.fixture(scope="module")
def table(client):
    parts = nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
    made = client.create_table("everything", SCHEMA, ["k"], parts, replicas=1)
    made.insert(ROWS).raise_for_errors()
    return made


@pytest.fixture
def load(spark, cluster, table):
    def frame(**options):
        where = {"table": table.name, "masters": cluster.masters}
        return spark.read.format("nyala").options(**where, **options).load()

    return frame


def keys(frame) -> list[int]:
    return sorted(r.k for r in frame.select("k").collect())


def test_one_partition_per_tablet_with_stored_types_and_requested_columns(load, table):
    frame = load()
    assert frame.rdd.getNumPartitions() == TABLETS
    types = "bigint tinyint smallint int float double string binary boolean date timestamp_ntz timestamp"
    assert [t for _, t in frame.dtypes] == [*types.split(), "decimal(20,3)"]
    got = frame.toArrow().sort_by("k").cast(table.schema).to_pylist()
    assert [repr(r) for r in got] == [
        repr(r) for r in table.scan(order=True).to_arrow().to_pylist()
    ]
    some = load(columns="s, k", where="k < 3 or s = 'a''b'")
    assert some.columns == ["s", "k"]
    assert sorted((r.k, r.s) for r in some.collect()) == [
        (r["k"], r["s"]) for r in ROWS if r["k"] < 3 or r["s"] == "a'b"
    ]


@pytest.mark.full
def test_tablet_is_split_into_partitions_by_bytes(load):
    frame = load(split_bytes="60", columns="k, i32", where="k < 60")
    assert frame.rdd.getNumPartitions() > 2 * TABLETS
    assert keys(frame) == list(range(60))
    sizes = [len(part) for part in frame.rdd.glom().collect()]
    assert max(sizes) < len(ROWS) / TABLETS
    for wrong in ("0", "-1", "64M"):
        with pytest.raises(Exception, match=r"split_bytes=.*a positive number of bytes"):
            load(split_bytes=wrong).count()


@pytest.mark.full
def test_filters_are_equivalent_with_and_without_pushdown(spark, load):
    texts = [*PUSHED, *KEPT]
    own = spark.createDataFrame(pa.Table.from_pylist(ROWS, SCHEMA))
    truths = own.select("k", *(f.expr(t).alias(str(i)) for i, t in enumerate(texts))).toArrow()
    frames = [load(pushdown="true").where(t) for t in texts]
    tagged = [frame.select("k", f.lit(i).alias("i")) for i, frame in enumerate(frames)]
    found = functools.reduce(DataFrame.unionAll, tagged).toArrow()
    for i, text in enumerate(texts):
        seen = found.filter(pc.equal(found["i"], i))["k"].to_pylist()
        assert sorted(seen) == truths.filter(truths[str(i)])["k"].to_pylist(), text
        assert 0 < len(seen) < len(ROWS), text
        plan = frames[i]._jdf.queryExecution().executedPlan().toString()
        assert (") Filter " in plan) is (text in KEPT), (text, plan)


def test_filter_is_pushed_exactly_or_returned_to_spark():
    def pushed_filters(*filters):
        reader = PushingReader(ReadOptions("t", "m", ("k",), "k > 0", 0, pa.schema([]), ("d",)))
        return list(reader.pushFilters(list(filters))), reader.where

    pushed = [EqualTo(("s",), "a'b"), StringStartsWith(("s",), "%_\\"), Not(In(("k",), (1, 2)))]
    text = r"""(k > 0) and ("s" = 'a''b') and ("s" like '\%\_\\%') and (not ("k" in (1, 2)))"""
    assert pushed_filters(*pushed) == ([], text)
    pushed = [
        StringContains(("s",), "a_"), StringEndsWith(("s",), "'"), EqualNullSafe(("k",), 1),
        In(("k",), (1, None)),
    ]  # fmt: skip
    text = r"""(k > 0) and ("s" like '%a\_%') and ("s" like '%''') and """
    text += """("k" is not null and "k" = 1) and ("k" in (1, null))"""
    assert pushed_filters(*pushed) == ([], text)
    kept = [
        GreaterThan(("d",), 1.0), Not(LessThan(("d",), 1.0)), LessThan(("d",), NAN), In(("d",), (1.0,)),
        EqualTo(("d",), INF), EqualTo(("a", "b"), 1), StringContains(("s",), "x" * 999), In(("k",), ()),
        EqualNullSafe(("d",), 1.0), EqualNullSafe(("k",), None), In(("k",), range(100_001)),
    ]  # fmt: skip
    assert pushed_filters(*kept) == (kept, "(k > 0)")
    assert (
        pushed_filters(IsNotNull(("d",)), LessThan(('"d',), 1))[1]
        == '(k > 0) and ("d" is not null) and ("""d" < 1)'
    )


@pytest.mark.full
def test_without_pushdown_one_frame_serves_any_number_of_queries(load):
    frame = load()
    assert keys(frame.where("d > 3")) == keys(load(pushdown="true").where("d > 3"))
    assert frame.count() == len(ROWS)
    low, high = frame.where("k < 5"), frame.where("k >= 60")
    assert keys(low.union(high)) == [*range(5), 60, 61, 62]


@pytest.mark.full
def test_snapshot_time_is_fixed_when_frame_is_loaded(spark, cluster, client):
    parts = nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
    moving = client.create_table("moving", pa.schema([("k", pa.int64())]), ["k"], parts, replicas=1)
    moving.insert([{"k": k} for k in range(400)]).raise_for_errors()
    before, masters = client.now(), cluster.masters

    def delete_all_then_pass_on(batches):
        with nyala.connect(masters) as inside:
            inside.table("moving").delete_ignore([{"k": k} for k in range(400)]).raise_for_errors()
        yield from batches

    options = {"table": "moving", "masters": masters}
    frame = spark.read.format("nyala").options(**options).load()
    # One task reads the four tablets one after the other; the rows are deleted before the first read.
    assert frame.coalesce(1).mapInArrow(delete_all_then_pass_on, "k bigint").count() == 400
    assert moving.count() == 0
    assert spark.read.format("nyala").options(**options).load().count() == 0
    assert spark.read.format("nyala").options(**options, at=str(before)).load().count() == 400


@pytest.mark.full
def test_all_queries_over_a_frame_read_at_the_time_of_its_load(spark, cluster, client):
    """With filters, which Spark plans again, and without, in one query and in several."""
    table = client.create_table("grows", pa.schema([("k", pa.int64())]), ["k"], replicas=1)
    options = {"table": "grows", "masters": cluster.masters}
    table.insert([{"k": 0}]).raise_for_errors()
    frame = spark.read.format("nyala").options(**options).load()
    view = (
        "create or replace temporary view grown using nyala options (table 'grows', masters '{}')"
    )
    spark.sql(view.format(cluster.masters)).collect()
    frame.createOrReplaceTempView("view_of_frame")
    some = frame.where("k >= 0")
    queries = [
        frame.count, some.count, frame.where("k < 100").count, frame.count,
        lambda: frame.join(some, "k").count(),
        lambda: spark.table("view_of_frame").where("k > -1").count(),
        lambda: spark.sql("select * from grown").count(),
        lambda: spark.sql("select * from grown where k >= 0").count(),
    ]  # fmt: skip
    for number, query in enumerate(queries, 1):
        table.insert([{"k": number}]).raise_for_errors()
        assert query() == 1, f"query {number}"
    spark.sql(view.format(cluster.masters)).collect()
    assert spark.table("grown").count() == 1 + len(queries)


@pytest.mark.full
@pytest.mark.row("A16")
def test_job_holds_its_snapshot_for_configured_time(spark, cluster, client):
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    table = client.create_table("long", pa.schema([("k", pa.int64())]), ["k"], parts, replicas=1)
    table.insert([{"k": k} for k in range(10)]).raise_for_errors()
    tablets = [t.id for t in table.tablets()]

    def held():
        request = pb.ListTabletsRequest(tablet_ids=tablets)
        with Direct(cluster.masters) as direct:
            answer = direct.ask(cluster.address("tserver-0"), methods.LIST_TABLETS, request)
        return [[(h.name, h.at, h.left_ms) for h in t.holds] for t in answer.tablets]

    def read(**options):
        where = {"table": "long", "masters": cluster.masters}
        return spark.read.format("nyala").options(**where, **options).load().count()

    assert read(hold_s="0") == 10
    assert held() == [[], []]
    before = client.now()
    assert read(hold_s="700") == 10
    [[one, again], [other, _]] = held()  # since the load, and since the job was planned
    assert one[1] == again[1] == other[1]
    assert before < one[1] < client.now()
    assert 600_000 < one[2] <= 700_000
    assert read(at=str(before)) == 10
    assert {at for _, at, _ in held()[0]} == {before, one[1]}


@pytest.mark.full
def test_unreadable_input_gives_clear_error(spark, cluster, load):
    def message(**options):
        with pytest.raises(Exception) as raised:
            spark.read.format("nyala").options(**options).load().count()
        return str(raised.value)

    masters = cluster.masters
    assert 'name the table: .option("table"' in message(masters=masters)
    assert "name the masters" in message(table="everything")
    assert "no table 'nowhere'" in message(table="nowhere", masters=masters)
    assert "nothing" in message(table="everything", masters=masters, columns="k,nothing")
    assert "hold_s='a day'" in message(table="everything", masters=masters, hold_s="a day")
    assert "hybrid time" in message(table="everything", masters=masters, at="yesterday")
    assert "at character" in message(table="everything", masters=masters, where="k = 1) or (k = 2")
    where = {"table": "everything", "masters": masters}
    other = spark.read.format("nyala").schema("k int").options(**where).load()
    with pytest.raises(
        Exception, match=r"column 'k' of table 'everything' has type int64, but .schema"
    ):
        other.count()
    assert load().count() == len(ROWS)


@pytest.mark.full
def test_frame_of_a_time_has_the_columns_of_then(spark, cluster, client):
    fields = pa.schema([("k", pa.int64()), ("price", pa.int64()), ("note", pa.string())])
    table = client.create_table("altered_since", fields, ["k"], replicas=1)
    table.insert([{"k": 1, "price": 42, "note": "a"}, {"k": 2, "price": 7, "note": "b"}])
    at = client.now()
    source = spark.read.format("nyala").options(table=table.name, masters=cluster.masters)
    begun = source.load()
    table.alter().drop_column("price").rename_column("note", "remark").commit()
    table.alter().add_column("price", pa.string(), default="x").commit()
    then = source.options(at=str(at)).load()
    for frame in (then, begun):
        assert frame.columns == ["k", "price", "note"]
        rows = [(r.k, r.price, r.note) for r in frame.orderBy("k").collect()]
        assert rows == [(1, 42, "a"), (2, 7, "b")]
    chosen = source.options(at=str(at), where="price > 10", columns="note").load()
    assert [r.note for r in chosen.collect()] == ["a"]
    now = spark.read.format("nyala").options(table=table.name, masters=cluster.masters).load()
    assert now.columns == ["k", "remark", "price"]
    client.drop_table(table.name)
