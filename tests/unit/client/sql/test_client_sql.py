"""SQL: the columns and rows fetched of each table, and equal results."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from nyala.client.sql.query import run_sql
from nyala.common.errors import InvalidArgument, NotFound, Unavailable
from nyala.common.hybrid_time import as_stamp
from tests.unit.client.support.sql_tables import TablesInMemory, plainly, table_of

SCHEMA = pa.schema([
    ("k", pa.int64()), ("name", pa.string()), ("day", pa.date32()), ("moment", pa.timestamp("us")),
    ("price", pa.decimal128(10, 2)), ("small", pa.int8()), ("real", pa.float64()),
])  # fmt: skip


def rows(count=50):
    data = [
        {
            "k": n,
            "name": [None, "it's", 'a "b"', "plain", "%x_"][n % 5],
            "day": None if n % 7 == 0 else f"2013-01-{1 + n % 28:02}",
            "moment": f"2013-01-01T{n % 24:02}:00:00",
            "price": f"{n}.25",
            "small": n % 9,
            "real": None if n % 11 == 0 else ("nan" if n % 5 == 0 else str(n)),
        }
        for n in range(count)
    ]
    table = pa.Table.from_pylist(data)
    return pa.table([table.column(f.name).cast(f.type) for f in SCHEMA], names=SCHEMA.names)


@pytest.fixture
def tables():
    odd = [{"k": n, 'odd "name"': n % 3, "k = 1 or k": -n, "false": n % 2 == 0} for n in range(9)]
    return TablesInMemory({
        "t": table_of(rows(), "k"),
        "U": table_of(rows(10), "k"),
        "odd": table_of(pa.Table.from_pylist(odd), "k"),
        "twisted": table_of(pa.table({"k": [1, 2], "s": ["x > 1", "y"], 's == "x': ["0", "a"]}), "k"),
    })  # fmt: skip


MIDDLE = ", ".join([*map(str, range(12)), "{}", *map(str, range(30, 40))])
"""A list whose printed form, as an Arrow expression, leaves out the value in the middle."""
PUSHED = [
    ("select name from t where k = 3", ["k", "name"], {3}),
    ("select count(*) from t", ["k"], None),
    ("select k from t where name = 'it''s'", ["k", "name"], {n for n in range(50) if n % 5 == 1}),
    ("select k from t where name in ('it''s', 'plain') and k > 10", ["k", "name"],
     {n for n in range(11, 50) if n % 5 in (1, 3)}),
    ("select k from t where moment < timestamp '2013-01-01 02:00:00'", ["k", "moment"],
     {0, 1, 24, 25, 48, 49}),
    ("select k from t where price between 3 and 5.25", ["k", "price"], {3, 4, 5}),
    ("select k from t where day is null", ["k", "day"], {n for n in range(50) if n % 7 == 0}),
    ("select k from t where small = 8 or k = 0", ["k", "small"], {0, 8, 17, 26, 35, 44}),
    ("select k from t where k < 5 and real <= 3", ["k", "real"], {0, 1, 2, 3, 4}),
    ("select k from (select k, name from t where k = 7) x", ["k"], {7}),
    ("select k from t where k in (" + ", ".join(map(str, range(-60, 8))) + ")", ["k"], set(range(8))),
    ("select name from t where name in ('x\n], null[bool])', 'plain') and small = 3", ["name", "small"],
     {3, 48}),
    ("with x as (select k, small from t) select k from x where k in (1, 2)", ["k"], {1, 2}),
]  # fmt: skip
"""A query, its required columns, the keys that servers send; None: no server-side filter."""


@pytest.mark.parametrize(("query", "columns", "keys"), PUSHED, ids=[p[0] for p in PUSHED])
def test_sql_fetches_only_needed_columns_and_rows(tables, query, columns, keys):
    answer = run_sql(query, tables)
    (asked,) = tables.asked
    assert sorted(asked.columns) == sorted(columns)
    assert asked.at == 77
    if keys is None:
        assert asked.where is None
    else:
        assert asked.where is not None, "no filter was pushed down"
        sent = tables.read("t", ("k",), asked.where, 0).column("k").to_pylist()
        assert set(sent) == keys
    assert answer.to_pylist() == plainly(tables, query).to_pylist()


ANY = [
    "select a.k x, b.k y from t a cross join t b where a.k = 3 and b.k > 47 order by 2",
    'select "odd ""name""" o from odd where "odd ""name""" = 2',
    'select k from odd where "k = 1 or k" = -3',
    "select k from twisted where s = 'x > 1'",
    'select k from odd where "false" order by k',
    'select k from odd where not "false" and k > 2 order by k',
    "select k from t where name = 'it''s' or name = 'x''::DATE' order by k",
    "select k from t where day > date '2013-01-09' and moment >= timestamp '2013-01-01 07:30:00' order by k",
    "select a.k from t a, t b where a.k = b.k and a.price * 2 > 60 and b.day is not null order by 1",
    "select k from t where name = 'a \"b\"' or k % 7 = 0 order by k",
    "select a.k from T a join u b on a.k = b.k where b.name = 'plain' order by 1",
    "with t2 as (select k from t where k > 40) select count(*) n from t2",
    "with t as (select 1 as k) select * from t",
    "with t as (select k + 1 as k from t) select max(k) from t",
    "with T as (select k from U where k < 2) select k from t order by k",
    "select 1 as one",
    "values (1), (2)",
    "select k from t where k in (select k from U where k > 3) order by k",
    "from t select k where k = 1 union all select k from U where k = 2",
    "with recursive r as (select 1 n union all select n + 1 from r join t on t.k = r.n where n < 9) from r",
    "select k from (select k, small + 1 as w from t) x order by k",
    "select count(*) from (select small from t)",
    "select k from t where true or small > 3 order by k",
    "select k from t where small = null",
    "select exists(select small from t)",
    "select 1 from t where exists (select name from t)",
    "select k from (select k, row_number() over (order by k desc) r from t) order by k",
    "select k from t order by (select 1), k limit 1",
    "select count(*) from t where real > 0 or real <= 0 or real is null",
    "select k from t where real > 40 order by k",
    "select k from t where not (k > 5 and day is null) order by k",
    f"select k from t where k in ({MIDDLE.format(20)}) union all "
    f"select k from t where k in ({MIDDLE.format(21)}) order by k",
    "select x.small from (select distinct small, name from t) x order by all",
    "summarize select k from t",
    "select sum(k) from t where k in (" + ", ".join(map(str, range(40))) + ")",
    "select k from t where k not in (1, 2) and small = 1 order by k",
    "select k from t where name in ('it''s', "
    + ", ".join(f"'{n}'" for n in range(15))
    + ", 'plain'"
    + ", 'x'" * 15
    + ") order by k",
    "select k from t where real <= 3 or k = 40 order by k",
    "select unnest([1, 2]) u, * from range(2) order by all",
    "pivot (select small, k from t) on small in (1, 3) using sum(k)",
    "select * from (select small, k from t) pivot (sum(k) for small in (1, 3))",
    'select * from RANGE(2) a, "Generate_Series"(1, 2) b order by all',
]


@pytest.mark.parametrize("query", ANY, ids=[q[:70] for q in ANY])
def test_sql_queries_equal_duckdb_results(tables, query):
    assert run_sql(query, tables).to_pylist() == plainly(tables, query).to_pylist()


def test_sql_query_reads_all_tables_at_one_time(tables):
    run_sql("select * from t join U using (k), (select max(k) from odd)", tables)
    assert len(tables.asked) == 3
    assert {a.at for a in tables.asked} == {77}


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("select name from t where k = ?", [7]),
        ("select name from t where k = $1", (7,)),
        ("select name from t where k = $key", {"key": 7}),
    ],
)
def test_parameters_select_rows_at_the_servers(tables, query, parameters):
    run_sql(query, tables, parameters)
    assert str(tables.asked[0].where) == str(_where(tables, "select name from t where k = 7"))


def _where(tables, query):
    run_sql(query, tables)
    return tables.asked[-1].where


def test_parameter_is_a_value_and_never_sql(tables):
    found = run_sql("select k from t where name = ?", tables, ["x' or true or '"])
    assert found.num_rows == 0


@pytest.mark.parametrize(
    ("query", "parameters", "text"),
    [
        ("select k from t where k = ?", None, "not provided"),
        ("select k from t where k = ?", [1, 2], "parameter"),
        ("select k from t where k = $a", {"b": 1}, "parameter"),
        ("select k from t where k = ?", "7", "pass a list of values"),
        ("select k from t where k = ?", 7, "pass a list of values"),
    ],
)
def test_wrong_parameters_are_refused(tables, query, parameters, text):
    with pytest.raises(InvalidArgument, match=text):
        run_sql(query, tables, parameters)


@pytest.mark.parametrize(
    ("at", "stamp"),
    [
        (4_000, 4_000),
        (0, 1),
        (datetime(2026, 1, 2, tzinfo=UTC), as_stamp(datetime(2026, 1, 2, tzinfo=UTC))),
    ],
)
def test_sql_query_at_a_time_reads_columns_and_rows_of_then(tables, at, stamp):
    run_sql("select * from t join U using (k)", tables, at=at)
    assert sorted(tables.opened) == [("U", stamp), ("t", stamp)]
    assert [asked.at for asked in tables.asked] == [stamp, stamp]


def test_sql_query_at_no_time_is_refused(tables):
    with pytest.raises(InvalidArgument, match="not str"):
        # A wrong type is what the test gives.
        run_sql("select * from t", tables, at="yesterday")  # type: ignore[arg-type]


def test_sql_query_fetches_repeatedly_scanned_table_once(tables):
    steps = "with recursive r as (select 1 n union all select n + 1 from r join t on t.k = r.n where n < 20)"
    assert run_sql(f"{steps} select max(n) m from r", tables).to_pylist() == [{"m": 20}]
    assert len(tables.asked) == 1


def test_tables_are_listed_and_described(tables):
    assert run_sql("show tables", tables).to_pylist() == [
        {"name": n} for n in ("U", "odd", "t", "twisted")
    ]
    for query in ("describe t", "show t", "describe select * from T"):
        shown = run_sql(query, tables).to_pylist()
        assert [(r["column_name"], r["column_type"]) for r in shown][:3] == [
            ("k", "BIGINT"), ("name", "VARCHAR"), ("day", "DATE"),
        ]  # fmt: skip
    assert not tables.asked, "rows were read for a description"


def test_names_that_differ_in_case_only_are_refused_by_name(tables):
    tables.tables["T"] = tables.tables["U"]
    with pytest.raises(InvalidArgument, match=r"'t' and 'T' are tables .* rename"):
        run_sql('select * from "T"', tables)
    assert run_sql("with t as (select 1 as k) select k from t", tables).to_pylist() == [{"k": 1}]
    del tables.tables["T"]
    rows = pa.table({"k": [1], "v": [10], "V": [20]})
    tables.tables["cc"] = table_of(rows, "k")
    with pytest.raises(
        InvalidArgument, match=r"'v' and 'V' are columns of table 'cc' .*rename_column"
    ):
        run_sql('select "V" from CC', tables)
    assert {"name": "cc"} in run_sql("show tables", tables).to_pylist()
    tables.tables["é"] = tables.tables["É"] = tables.tables["U"]  # two names to DuckDB
    assert run_sql("select count(*) n from é", tables).to_pylist() == [{"n": 10}]


REFUSED = [
    "drop table t", "insert into t values (1)", "select 1; select 2", "copy (select 1) to '/tmp/x.csv'",
    "attach '/tmp/x.db'", "set threads = 1", "create table x (i int)", "create view v as select 1",
    "delete from t", "update t set k = 1", "truncate t", "alter table t add column z int",
    "install httpfs", "load httpfs", "pragma version", "call pragma_version()", "checkpoint", "use x",
    "export database '/tmp/x'", "begin", "prepare p as select 1",
    "merge into t using U on true when matched then delete", "select 1; pivot t on small using sum(k)",
    "select * from read_csv('/etc/passwd')", "select * from read_parquet('/x')", "select * from glob('/*')",
    "select * from read_text('/etc/passwd')", "select * from sniff_csv('/etc/passwd')",
    "select k from t where k in (select length(content) from read_text('/etc/passwd'))",
    "select * from arrow_scan(1, 2, 3)", "select * from query('select 1')",
    "select * from enable_profiling()", "select * from duckdb_settings()",
]  # fmt: skip


@pytest.mark.parametrize("query", REFUSED)
def test_sql_statements_with_side_effects_or_file_access_are_refused(tables, query):
    with pytest.raises(InvalidArgument, match="takes one query that reads tables"):
        run_sql(query, tables)
    assert not tables.asked


PIVOTS = [
    "pivot t on small using sum(k)",
    "select * from (pivot t on small using sum(k)) where true",
    "with x as (pivot t on small using sum(k)) select * from x",
    "pivot t on small in (select distinct small from t) using sum(k)",
    "describe (pivot t on small using sum(k))",
    "create table x as pivot t on small using sum(k)",
]


@pytest.mark.parametrize("query", PIVOTS)
def test_pivot_without_values_is_refused_with_remedy(tables, query):
    with pytest.raises(
        InvalidArgument, match=r"PIVOT without its values .* list them: pivot t on c"
    ):
        run_sql(query, tables)
    assert not tables.asked


@pytest.mark.parametrize(
    "query", ["", "selec 1", "select k frm t", "select nope from t", "select $1"]
)
def test_invalid_query_is_refused_with_duckdb_message(tables, query):
    with pytest.raises(InvalidArgument, match=r"SQL: |takes one query"):
        run_sql(query, tables)


@pytest.mark.parametrize(
    "query", ["select * from '/etc/passwd'", "select * from nothing join t using (k)"]
)
def test_missing_tables_are_named(tables, query):
    with pytest.raises(NotFound, match="no table '"):
        run_sql(query, tables)
    with pytest.raises(NotFound, match="no schema 'information_schema'"):
        run_sql("select * from information_schema.tables", tables)


def test_table_created_after_listing_is_found(tables):
    listed = ["U"]
    tables.names = lambda: listed
    assert run_sql("select count(*) n from t", tables).to_pylist() == [{"n": 50}]


def test_sql_read_errors_are_raised_unchanged(tables):
    tables.broken = Unavailable("no leader")
    with pytest.raises(Unavailable, match="no leader"):
        run_sql("select sum(k) from t where k > 3", tables)
