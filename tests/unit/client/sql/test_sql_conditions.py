"""Conditions of SQL that DuckDB keeps to itself and servers evaluate all the same: patterns, arithmetic, two
columns, nulls in lists."""

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.client.sql.query import run_sql
from nyala.common.errors import InvalidArgument
from tests.unit.client.support.sql_tables import TablesInMemory, plainly, table_of

NAMES = ["Anna", "anna", "50%", "a_b", None, "\u212aelvin", "it's", "a!b"]
ROWS = pa.table(
    {
        "k": pa.array(range(16), pa.int64()),
        "name": pa.array([NAMES[n % 8] for n in range(16)]),
        "other": pa.array([NAMES[n % 3] for n in range(16)]),
        "small": pa.array([[127, -128, 3, None][n % 4] for n in range(16)], pa.int8()),
        "wide": pa.array([n - 4 for n in range(16)], pa.int32()),
        "day": pa.array([n % 5 for n in range(16)], pa.date32()),
        "real": pa.array([float("nan") if n % 3 else n / 2 for n in range(16)]),
        "ok": pa.array([n % 3 == 0 for n in range(16)]),
    }
)


@pytest.fixture
def tables():
    return TablesInMemory({"t": table_of(ROWS, "k"), "U": table_of(ROWS.slice(0, 5), "k")})


def keys_sent(tables, number=0):
    asked = tables.asked[number]
    if asked.where is None:
        return None
    return tables.read(asked.table, ("k",), asked.where, 0).column("k").to_pylist()


PUSHED = [
    "name like '%n%'",
    "name like '_nna'",
    "name not like '%a%'",
    "name like '%!_%' escape '!'",
    "name not like 'a!_%' escape '!'",
    "name like 'a!b'",
    "name ilike 'AN%'",
    "name ilike 'k%'",
    "name not ilike '%A!_%' escape '!'",
    "name || other like '%aA%'",
    "name = other",
    "small < wide",
    "k + 1 > wide * 2",
    "k % 3 = 1",
    "1 - k between wide and 4",
    "small in (3, null)",
    "small not in (3, 127)",
    "not (k % 2 = 0 or name = other)",
    "day > date '1970-01-02' or name = other",
    "(k * 2 = 6 or ok) and name is not null",
    "not ok and k <> 4",
    "t.wide >= T.K - 4 and name like '%a'",
]
"""Conditions for which servers send exactly the rows of the result."""


@pytest.mark.parametrize("condition", PUSHED)
def test_servers_evaluate_conditions_that_duckdb_does_not_pass_on(tables, condition):
    query = f"select k from t where {condition} order by k"
    expected = [row["k"] for row in plainly(tables, query).to_pylist()]
    assert run_sql(query, tables).column("k").to_pylist() == expected
    assert keys_sent(tables) == expected
    assert 0 < len(expected) < 16, "the condition selects nothing, or everything"


KEPT = [
    "select k from t where real < wide",  # to DuckDB NaN is the greatest number
    "select k from t where real * 2 > 3",
    "select k from t where name not ilike 'É%'",
    "select k from t where k / 2 > 1",
    "select k from t where k % (wide - 20) = 1",
    "select k from t where length(name) > 3",
    "select k from t where name is distinct from other",
    "select k from t where name like other",
    "select k from t where name = other collate nocase",
    "select ok from t x(name, other) where x.other || x.other = 'annaanna'",
    "select k from t tablesample 100% where name = other",
    "select k from t where name = other using sample 100%",
    "select a.k from t a join t b on a.k = b.k where a.name = a.other",
    "select k from t full join U using (k) where U.name is not distinct from U.other and t.name = t.other",
    "select k from t left join U using (k) where U.name || 'x' like '%zz' or U.name || 'x' is null",
    "select k from U where not exists (select 1 from t where U.name = t.other or U.name = U.other)",
    "select k from U anti join t using (k) where name = other",
    "with t as (select * from U) select k from t where name = other",
    "select x.k from (select k, other as name, name as other from t) x where x.name like '%a%'",
]
"""Queries with a condition that has another meaning, or belongs to other rows than those of the scan."""


@pytest.mark.parametrize("query", KEPT)
def test_conditions_with_another_meaning_are_left_to_duckdb(tables, query):
    expected = sorted(map(str, plainly(tables, query).to_pylist()))
    assert sorted(map(str, run_sql(query, tables).to_pylist())) == expected
    assert [a.table for a in tables.asked if a.where is not None] == []


OUTER = [
    ("select k from t left join U using (k) where t.name = t.other", ["t"]),
    ("select k from t left join U using (k) where U.name = U.other and t.k + 0 >= 0", ["t"]),
    ("select t.k from t, U where t.k = U.k and t.name = t.other and U.name like '%a'", ["t", "U"]),
    ("select t.k from t semi join U using (k) where name = other", ["t"]),
    (
        "select k from U join (select k from t) using (k) join (select 2 as z) on k + 0 = z where k % 2 = 0",
        ["U"],
    ),
    ("with t as (select * from t) select k from t where name = other", []),
    ("select k from t where name = other union select k from U", ["t"]),
    ("with r as (select k from t where name = other) select k from r join U using (k)", ["t"]),
    ("select k from U where k in (select k from t where name = other)", ["t"]),
]
"""Queries of two tables, and those for which a condition is evaluated by servers."""


@pytest.mark.parametrize(("query", "filtered"), OUTER)
def test_conditions_of_joins_and_subqueries_reach_the_servers_of_their_table(
    tables, query, filtered
):
    expected = sorted(r["k"] for r in plainly(tables, query).to_pylist())
    assert sorted(run_sql(query, tables).column("k").to_pylist()) == expected
    sent = {a.table: keys_sent(tables, n) for n, a in enumerate(list(tables.asked))}
    assert {name for name, keys in sent.items() if keys is not None} >= set(filtered)
    assert [name for name in filtered if sent[name] is None] == []


def test_column_has_precedence_over_result_of_same_name(tables):
    query = "select k as wide from t where wide * 1 = k - 4 and wide + 0 > 8"
    assert run_sql(query, tables).to_pylist() == plainly(tables, query).to_pylist()
    assert keys_sent(tables) == [13, 14, 15]


@pytest.mark.parametrize(
    "condition",
    [
        "small + small = 6",
        "small - 100 < k and name like '%zzz%'",
        "(small + 100) * 0 + k = 3",
        "not (small * small > 5)",
    ],
)
def test_rows_for_which_integers_overflow_are_fetched(tables, condition):
    query = f"select k from t where {condition}"
    with pytest.raises(duckdb.OutOfRangeException, match="Overflow"):
        plainly(tables, f"select k, {condition} from t")
    try:
        expected = plainly(tables, query).to_pylist()
    except duckdb.OutOfRangeException:
        with pytest.raises(InvalidArgument, match="Overflow"):
            run_sql(query, tables)
    else:
        assert run_sql(query, tables).to_pylist() == expected
    assert {0, 1} & set(keys_sent(tables)), "no row with an overflow was sent"


@pytest.mark.parametrize("condition", ["name like '{}%_'", "name ilike '{}' and name = other"])
def test_too_long_pattern_is_left_to_duckdb(tables, condition):
    query = f"select k from t where {condition.format('%a' * 501)}"
    assert run_sql(query, tables).to_pylist() == plainly(tables, query).to_pylist()


def test_too_deep_condition_is_left_to_duckdb(tables):
    deep = "name = other"
    for n in range(50):
        deep = f"({deep} or k = {n % 3 + 7} and ok)" if n % 2 else f"not ({deep})"
    query = f"select k from t where {deep} order by k"
    assert run_sql(query, tables).to_pylist() == plainly(tables, query).to_pylist()


def test_letters_with_an_ascii_lower_case_are_the_same_to_duckdb_and_servers():
    """Patterns in ASCII are pushed down for this reason; letters beyond differ in some versions."""
    letters = [chr(n) for n in range(1, 0x110000) if not 0xD800 <= n < 0xE000]
    every = "".join(letters)
    with duckdb.connect() as engine:
        theirs = engine.execute("select lower(?)", [every]).fetchall()[0][0]
    ours = pc.utf8_lower(pa.array([every]))[0].as_py()
    assert len(theirs) == len(ours) == len(every)
    differing = [
        a for a, b in zip(theirs, ours, strict=True) if a != b and (a < "\x80" or b < "\x80")
    ]
    assert differing == []
