"""SQL on hosts in other time zones, and beside tables with names of DuckDB's own views."""

import datetime as dt
import time

import pyarrow as pa
import pytest

from nyala.client.sql.query import run_sql
from tests.unit.client.support.sql_tables import TablesInMemory, table_of

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
ROWS = pa.table({
    "k": pa.array(range(8), pa.int64()),
    "ts": pa.array(
        [dt.datetime(2026, 1, 1, 3 * h, tzinfo=dt.UTC) for h in range(8)], pa.timestamp("us", "UTC")
    ),
    "plain": pa.array([dt.datetime(2026, 1, 1, 3 * h) for h in range(8)], pa.timestamp("us")),
})  # fmt: skip


@pytest.fixture(params=ZONES)
def host(request, monkeypatch):
    """The time zone of this process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("select k from t where ts < '2026-01-01 06:00:00' order by k", [0, 1]),
        ("select k from t where ts = timestamptz '2026-01-01 09:00:00'", [3]),
        ("select k from t where ts = plain + interval 3 hours", []),
        ("select count(distinct ts::date) from t", [1]),
        ("select extract(hour from ts) from t where k = 7", [21]),
        ("select distinct date_trunc('day', ts)::varchar from t", ["2026-01-01 00:00:00+00"]),
        ("select strftime(ts, '%H:%M') from t where k = 1", ["03:00"]),
        ("select ts::timestamp = plain from t where k = 2", [True]),
        ("select make_timestamptz(2026, 1, 1, 0, 0, 0) = min(ts) from t", [True]),
        ("select extract(timezone_hour from current_timestamp)", [0]),
        ("select (ts at time zone 'Asia/Tokyo')::varchar from t where k = 1", ["2026-01-01 12:00:00"]),
    ],
)  # fmt: skip
def test_answers_do_not_depend_on_the_zone_of_the_host(host, query, answer):
    found = run_sql(query, TablesInMemory({"t": table_of(ROWS, "k")}))
    assert found.column(0).to_pylist() == answer, host


def test_type_of_a_time_with_zone_does_not_depend_on_the_host(host):
    found = run_sql("select min(ts) m from t", TablesInMemory({"t": table_of(ROWS, "k")}))
    assert found.schema.field("m").type == pa.timestamp("us", "UTC"), host


@pytest.mark.parametrize(
    "name", ['x"; drop table other; --', "x'; select 1; --", "<script>alert(1)</script>", "../../x"]
)
def test_name_of_a_table_is_never_read_as_a_statement(name):
    """Abuse case 21."""
    small = table_of(pa.table({"k": [1, 2]}), "k")
    tables = TablesInMemory({name: small, "other": small})
    assert set(run_sql("show tables", tables).column("name").to_pylist()) == {name, "other"}
    quoted = '"' + name.replace('"', '""') + '"'
    assert run_sql(f"select sum(k) from {quoted}", tables).column(0).to_pylist() == [3]
    assert run_sql("select sum(k) from other", tables).column(0).to_pylist() == [3]


@pytest.mark.parametrize(
    "name",
    ["duckdb_tables", "duckdb_views", "DuckDB_Columns", "duckdb_databases", "sqlite_master", "pg_tables"],
)  # fmt: skip
def test_tables_with_names_of_duckdb_views_are_listed_and_read(name):
    small = table_of(pa.table({"k": [1, 2]}), "k")
    tables = TablesInMemory({name: small, "other": small})
    assert run_sql("show tables", tables).column("name").to_pylist() == sorted([name, "other"])
    listed = run_sql("show all tables", tables)
    assert set(listed.column("name").to_pylist()) == {name, "other"}
    assert run_sql(f"select sum(k) from {name}", tables).column(0).to_pylist() == [3]
    assert run_sql(f"describe {name}", tables).column("column_name").to_pylist() == ["k"]
