"""`client.sql` returns the same as DuckDB alone over the same Arrow tables, for every SELECT."""

from collections import Counter
from random import Random

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.client.sql.query import run_sql
from nyala.common.errors import InvalidArgument
from nyala.common.expressions.predicate import And, CompareValues, Like, Not, Or
from tests.enough import FULL
from tests.properties.support.sql_agrees import TABLES, shown, tables
from tests.properties.support.sql_queries import Queries
from tests.properties.support.where_texts import COLUMNS, Conditions
from tests.unit.client.support.sql_tables import TablesInMemory, plainly, table_of


@settings(max_examples=60 if FULL else 30, deadline=None)
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


def check_condition(seed):
    """Check one condition of a table, and return the parts that were pushed down.

    Where DuckDB alone ends with an error of some row, servers may have left this row out.
    """
    random = Random(seed)
    arrays = [pa.array(random.choices(values, k=30), kind) for kind, values in COLUMNS.values()]
    in_memory = TablesInMemory({"r": table_of(pa.table(arrays, names=list(COLUMNS)), "k")})
    query = f"select * from r where {Conditions(random).one().ours}"
    try:
        expected = shown(plainly(in_memory, query))
    except duckdb.Error:
        return []
    assert shown(run_sql(query, in_memory)) == expected, query
    return [part for a in in_memory.asked if a.where for part in leaves(a.where)]


@settings(max_examples=75 if FULL else 25, deadline=None)
@given(st.integers(0, 2**40))
def test_random_conditions_equal_duckdb_results(seed):
    check_condition(seed)


def test_conditions_with_patterns_and_calculations_are_pushed_down():
    pushed = Counter(type(part) for seed in range(40) for part in check_condition(seed))
    assert min(pushed[Like], pushed[CompareValues]) >= 5, pushed


def leaves(tree):
    match tree:
        case And(children) | Or(children):
            for child in children:
                yield from leaves(child)
        case Not(child):
            yield from leaves(child)
        case _:
            yield tree
