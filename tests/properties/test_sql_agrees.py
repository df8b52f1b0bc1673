"""`client.sql` returns the same as DuckDB alone over the same Arrow tables, for every SELECT."""

from random import Random

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.client.sql.query import run_sql
from nyala.common.errors import InvalidArgument
from tests.properties.support.sql_agrees import TABLES, shown, tables
from tests.properties.support.sql_queries import Queries
from tests.unit.client.support.sql_tables import plainly


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**40))
def test_random_selects_equal_duckdb_results(seed):
    random = Random(seed)
    in_memory = tables(random)
    query = Queries(random, TABLES).one()
    try:
        expected = shown(plainly(in_memory, query))
    except duckdb.Error:
        try:
            found = run_sql(query, in_memory)
        except InvalidArgument:
            return
        raise AssertionError(f"answered {found.to_pylist()} to {query}") from None
    assert shown(run_sql(query, in_memory)) == expected, query
    assert len({a.at for a in in_memory.asked}) <= 1, "tables were read at different times"
