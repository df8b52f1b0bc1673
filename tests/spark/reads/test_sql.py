"""`nyala.spark.sql`: the answers of Spark over full tables, of which only the needed parts are read."""

import threading
from typing import Any

import pyarrow as pa
import pytest

import nyala
import nyala.spark
from nyala.common.errors import InvalidArgument, NotFound

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
SCHEMA = pa.schema([
    ("k", pa.int64()), ("a", pa.int32()), ("b", pa.int64()), ("d", pa.float64()), ("s", pa.string()),
    ("at", pa.timestamp("us", "UTC")),
])  # fmt: skip
OTHER = pa.schema([("k", pa.int64()), ("b", pa.int64()), ("a", pa.int32())])
NAN = float("nan")
ROWS: list[dict[str, Any]] = [
    {"k": k, "a": k % 7, "b": None if k % 5 == 0 else -k, "d": NAN if k % 11 == 0 else k / 4,
     "s": None if k % 6 == 0 else f"s{k % 13}", "at": 1_400_000_000_000_000 + k}
    for k in range(200)
]  # fmt: skip
READS = {  # query -> columns of each read of its plan, in the order of the plan
    "select count(*) from wide_rows": [["_row"]],
    "select sum(b) from wide_rows": [["b"]],
    "select s from wide_rows where k < 10": [["k", "s"]],
    "select count(s) from wide_rows where d < 20 and a in (1, 2)": [["a", "d", "s"]],
    "select x.s from (select * from wide_rows) x where x.a = 3": [["a", "s"]],
    "with t as (select * from wide_rows) select p.a, q.b from t p join t q on p.k = q.k + 1":
        [["k", "a", "b"], ["k", "a", "b"]],
    "select a from (select a, b from wide_rows union all select a, b from few_rows) where a > 2":
        [["a"], ["a"]],
    "select o.a from few_rows o where exists (select 1 from wide_rows w where w.k = o.k and w.b < -5)":
        [["k", "a"], ["k", "b"]],
    "select a, (select max(d) from wide_rows where k < 100) m from few_rows": [["a"], ["k", "d"]],
    "select k from few_rows where if(now() < timestamp'2020-01-01', a, b) > 9": [["k", "b", "a"]],
}  # fmt: skip
ALIKE = [
    *READS,
    "select * from wide_rows natural join few_rows",
    "select * from wide_rows w left join few_rows using (k)",
    "select b from (select * from few_rows union select k, b, a from wide_rows)",
    "select few_rows.*, rank() over (partition by a order by k) r from few_rows",
    "select a, count(distinct s) from wide_rows group by rollup(a) having count(*) > 3",
    "select count(*) from wide_rows where k is null or s is not null or b > 0",
    "select sum(if(k is null, 1, 0)) n, max(a) from wide_rows",
    "select k from wide_rows where (a = 1 and d > 3) or (not (a = 2) and s like 's1%') or s is null",
    "select k from wide_rows where 5 > a and b <=> null and at > timestamp'2014-05-13 16:53:20.00005Z'",
    "select k from wide_rows where s in ('s1','s2','s3','s4','s5','s6','s7','s8','s9','s10','s0')",
    "select k from wide_rows where b not in (select b from few_rows where b is not null)",
    "select k from wide_rows where d != 3 and d >= 2",
    "select w.k from wide_rows w where false",
    "select mine.n, few_rows.a from mine join few_rows on mine.n = few_rows.k",
    "select k from wide_rows where k % 50 = 0 and k > 0.5",
    "select k, (select max(k) from wide_rows where a = 1) m from wide_rows",
]  # fmt: skip


@pytest.fixture(scope="module")
def tables(client):
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 4)])
    wide = client.create_table("wide_rows", SCHEMA, ["k"], parts, replicas=1)
    few = client.create_table("few_rows", OTHER, ["k"], replicas=1)
    wide.insert(pa.Table.from_pylist(ROWS, SCHEMA)).raise_for_errors()
    few.insert([{"k": k, "b": k * 2, "a": k % 7} for k in range(0, 200, 9)]).raise_for_errors()
    yield wide, few
    client.drop_table("wide_rows")
    client.drop_table("few_rows")


@pytest.fixture(scope="module")
def ask(spark, cluster, tables):
    spark.range(40).withColumnRenamed("id", "n").createOrReplaceTempView("mine")
    return lambda query, **how: nyala.spark.sql(spark, query, masters=cluster.masters, **how)


def rows(frame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def reads(frame) -> list[list[str]]:
    """Return the columns of each read in the plan of a frame."""
    found = []

    def walk(plan):
        if plan.getClass().getSimpleName() == "DataSourceV2ScanRelation":
            output = plan.output()
            found.append([output.apply(n).name() for n in range(output.size())])
        for of in (plan.children(), plan.subqueries()):
            for n in range(of.size()):
                walk(of.apply(n))

    walk(frame._jdf.queryExecution().optimizedPlan())
    return found


def test_columns_that_a_query_does_not_need_are_not_read(ask):
    for query, columns in READS.items():
        assert sorted(reads(ask(query))) == sorted(columns), query


def test_answers_are_those_of_full_tables(spark, ask, tables):
    for table in tables:  # views of the session, which the tables of the cluster hide
        local = spark.createDataFrame(table.scan().to_arrow())
        local.createOrReplaceTempView(table.name)
    for query in ALIKE:
        assert rows(ask(query)) == rows(spark.sql(query)), query
    for table in tables:
        spark.catalog.dropTempView(table.name)


def test_views_are_of_one_snapshot_and_have_all_columns(spark, client, cluster, tables):
    where = {"masters": cluster.masters}
    frames = nyala.spark.register_views(spark, ["wide_rows", "few_rows"], **where)
    assert frames["few_rows"].columns == ["k", "b", "a"]
    joined = spark.sql("select count(*) from few_rows join wide_rows using (k)")
    assert joined.first()[0] == len(range(0, 200, 9))
    assert sorted(map(len, reads(joined))) == [len(OTHER), len(SCHEMA)]
    for name in frames:
        spark.catalog.dropTempView(name)
    with pytest.raises(NotFound, match="no table 'nowhere'"):
        nyala.spark.register_views(spark, ["nowhere"], **where)


def test_conditions_are_evaluated_by_the_servers(ask):
    """Of the rows that a task receives, and of the tablets that are read at all."""
    assert ask("select s from wide_rows where k = 17").rdd.getNumPartitions() == 1
    conditions = {
        "a = 3 and (d < 10 or s = 's4')": lambda r: r["a"] == 3 and (r["d"] < 10 or r["s"] == "s4"),
        "5 > a and b is not null": lambda r: r["a"] < 5 and r["b"] is not None,
        "k in (1, 2, 300) and k % 2 = 0": lambda r: r["k"] in (1, 2),  # the second part is Spark's
    }
    for text, wanted in conditions.items():
        frame = ask(f"select k, s, d from wide_rows where {text}")
        plan = frame._jdf.queryExecution().executedPlan()
        frame.collect()
        received = plan.collectLeaves().apply(0).metrics().apply("numOutputRows").value()
        assert received == sum(map(wanted, ROWS)), text


def test_queries_at_once_have_their_own_columns_and_rows(ask):
    queries = [f"select sum({c}) x from wide_rows where k < {n}" for c in "kab" for n in (50, 150)]
    expected = [sum(r[c] or 0 for r in ROWS if r["k"] < n) for c in "kab" for n in (50, 150)]
    found: dict[int, object] = {}
    frames = [ask(q) for q in queries]  # all planned before any is run

    def run(n: int) -> None:
        found[n] = frames[n].collect()[0].x, ask(queries[n]).collect()[0].x

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(queries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert [found.get(n) for n in range(len(queries))] == [(e, e) for e in expected]


def test_frame_is_of_the_session_and_of_one_snapshot(spark, client, ask, tables):
    _, few = tables
    before = client.now()
    frame = ask("select a.k from few_rows a join few_rows b on a.k = b.k")
    count = frame.count()
    few.insert([{"k": 1000, "b": 0, "a": 0}]).raise_for_errors()
    assert frame.count() == count
    assert ask("select k from few_rows", at=before).count() == count
    assert ask("select k from few_rows").count() == count + 1
    assert frame.sparkSession is spark
    assert frame.where("k > 50").count() < frame.count() == count
    few.delete([{"k": 1000}]).raise_for_errors()


def test_statements_and_wrong_queries_are_refused(spark, ask, tables):
    for statement in (
        "insert into few_rows values (1, 2, 3)", "drop table few_rows", "create view v as select 1",
        "with x as (select 1) insert into few_rows select * from x", "cache table few_rows",
        "create table copied as select * from few_rows", "explain select 1",
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="takes one query, select or with"):
            ask(statement)
    with pytest.raises(Exception, match=r"UNRESOLVED_COLUMN.*nothing"):
        ask("select nothing from few_rows")
    with pytest.raises(Exception, match="PARSE_SYNTAX_ERROR"):
        ask("select ((1 from few_rows")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        ask("select 1 from no_such_rows")
    assert not spark.catalog.tableExists("few_rows")  # no view is left in the session


def test_tables_that_differ_in_case_only_are_refused(spark, client, cluster, ask):
    client.create_table("FEW_rows", OTHER, ["k"], replicas=1)
    try:
        with pytest.raises(InvalidArgument, match="differ in case only"):
            ask("select * from few_rows")
        with pytest.raises(InvalidArgument, match="differ in case only"):
            nyala.spark.register_views(spark, masters=cluster.masters)
    finally:
        client.drop_table("FEW_rows")


def test_read_takes_columns_condition_and_time(spark, client, cluster, tables):
    where = {"masters": cluster.masters}
    before = client.now()
    frame = nyala.spark.read(
        spark, "few_rows", columns=["a", "k"], where="k < 30", at=before, **where
    )
    assert frame.columns == ["a", "k"]
    assert sorted(r.k for r in frame.collect()) == [0, 9, 18, 27]
    counted = nyala.spark.read(spark, "few_rows", columns=[], where="k < 30", **where)
    assert counted.columns == []
    assert counted.count() == 4
    for wrong in ({"columns": "a,k"}, {"columns": ["a,k"]}, {"where": 3}, {"at": "now"}):
        with pytest.raises(InvalidArgument):
            nyala.spark.read(spark, "few_rows", **wrong, **where)
