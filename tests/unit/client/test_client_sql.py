"""SQL: what is fetched of each table, and that the answer is the same however little that is."""

from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pytest

from nyala.client.sql import run_sql
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.predicate import evaluate
from nyala.common.schema import Schema, from_arrow
from nyala.common.where import parse

SCHEMA = from_arrow(
    pa.schema(
        [
            ("k", pa.int64()),
            ("name", pa.string()),
            ("day", pa.date32()),
            ("moment", pa.timestamp("us")),
            ("price", pa.decimal128(10, 2)),
        ]
    ),
    ["k"],
)
ODD = from_arrow(
    pa.schema(
        [
            ("k", pa.int64()),
            ('odd "name"', pa.int32()),
            ("k = 1 or k", pa.int64()),
            ("false", pa.bool_()),
        ]
    ),
    ["k"],
)
"""Names that, unquoted in a plan, would say something else."""


@dataclass
class Fake:
    """A table in memory that filters as a tablet does, and remembers what was asked of it."""

    rows: pa.RecordBatch
    asked: list[tuple[object, object, int]] = field(default_factory=list)
    definition: Schema = SCHEMA
    primary_key = ("k",)

    @property
    def schema(self) -> pa.Schema:
        return self.definition.arrow

    def scan(self, columns, where, at):
        self.asked.append((columns, where, at))
        found = self.rows
        if where is not None:
            by_id = self.definition.by_id
            tree = parse(where, self.definition)
            keep = evaluate(tree, lambda i: found.column(by_id[i].name), found.num_rows)
            found = found.filter(keep)
        names = list(columns) if columns is not None else found.schema.names
        self.answer = pa.Table.from_batches([found.select(names)])
        return self

    def to_arrow(self) -> pa.Table:
        return self.answer


def rows(count=50):
    data = [
        {
            "k": n,
            "name": [None, "it's", 'a "b"', "plain", "%x_"][n % 5],
            "day": None if n % 7 == 0 else f"2013-01-{1 + n % 28:02}",
            "moment": f"2013-01-01T{n % 24:02}:00:00",
            "price": f"{n}.25",
        }
        for n in range(count)
    ]
    table = pa.Table.from_pylist(data)
    cast = pa.table(
        [table.column(f.name).cast(f.type) for f in SCHEMA.arrow], names=SCHEMA.arrow.names
    )
    (batch,) = to_batches(cast, SCHEMA)
    return batch


@pytest.fixture
def tables():
    odd = [{"k": n, 'odd "name"': n % 3, "k = 1 or k": -n, "false": n % 2 == 0} for n in range(9)]
    (batch,) = to_batches(odd, ODD)
    return {"t": Fake(rows()), "U": Fake(rows(10)), "odd": Fake(batch, definition=ODD)}


def run(tables, query):
    def open_table(name):
        if name not in tables:
            raise NotFound(f"no table {name!r}")
        return tables[name]

    return run_sql(query, open_table, lambda: 77)


PUSHED = [
    ("select name from t where k = 3", ("k", "name"), "k"),
    ("select count(*) from t", ("k",), None),
    ("select k from t where name = 'it''s'", ("k", "name"), "name"),
    ("select k from t where name in ('it''s', 'plain') and k > 10", ("k", "name"), "k"),
    ("select k from t where day >= date '2013-01-05'", ("k", "day"), "day"),
    ("select k from t where moment < timestamp '2013-01-01 05:00:00'", ("k", "moment"), "moment"),
    ("select k from t where price between 3 and 9.25", ("k", "price"), "price"),
    ("select k from t where day is null", ("k", "day"), "day"),
]


@pytest.mark.parametrize(("query", "columns", "filtered"), PUSHED, ids=[p[0] for p in PUSHED])
def test_only_columns_and_rows_that_count_are_fetched(tables, query, columns, filtered):
    answer = run(tables, query)
    ((asked, where, at),) = tables["t"].asked
    assert set(columns) <= set(asked)
    assert len(asked) <= len(columns) + 1
    assert at == 77
    if filtered is None:
        assert where is None
    else:
        assert filtered in (where or ""), f"nothing was pushed down: {where}"
    assert answer.to_pylist() == plain(tables, query)


ANY = [
    "select a.k x, b.k y from t a cross join t b where a.k = 3 and b.k > 47 order by 2",
    'select "odd ""name""" o from odd where "odd ""name""" = 2',
    'select k from odd where "k = 1 or k" = -3',
    'select k from odd where "false" order by k',
    'select k from odd where not "false" and k > 2 order by k',
    "select k from t where name = 'it''s' or name = 'x''::DATE' order by k",
    "select k from t where day > date '2013-01-09' and moment >= timestamp '2013-01-01 07:30:00' order by k",
    "select k from t where (k % 3) = 1 and name is not null order by k",
    "select a.k from t a, t b where a.k = b.k and a.price * 2 > 60 and b.day is not null order by 1",
    "select * from t order by k limit 3",
    "select k from t where name = 'a \"b\"' or k % 7 = 0 order by k",
    "select a.k from t a join U b on a.k = b.k where b.name = 'plain' order by 1",
    "select a.k, b.name from t a, t b where a.k = b.k + 1 and b.k < 4 order by 1",
    "with t2 as (select k from t where k > 40) select count(*) n from t2",
    "with t as (select 1 as k) select * from t",
    "select name, count(*) n from t where lower(name) like '%x%' group by name order by 2, 1",
    "select k from t where name like 'pl%' order by k",
    "select k from t where not (k > 5 and day is null) order by k",
    "select 1 as one",
    "select k from t where k in (select k from U where k > 3) order by k",
    "select max(moment) m, min(price) p from t where k <> 49",
    "select k from t where price * 2 > 80 order by k",
    "from t select k where k = 1 union all select k from U where k = 2",
]


@pytest.mark.parametrize("query", ANY, ids=ANY)
def test_push_down_changes_no_answer(tables, query):
    assert run(tables, query).to_pylist() == plain(tables, query)


def plain(tables, query):
    """The same query over whole tables."""
    engine = duckdb.connect(":memory:")
    try:
        for name, table in tables.items():
            engine.register(name, pa.Table.from_batches([table.rows]))
        return engine.sql(query).to_arrow_table().to_pylist()
    finally:
        engine.close()


@pytest.mark.parametrize(
    "query",
    [
        "drop table t", "insert into t values (1)", "select 1; select 2", "", "selec 1",
        "copy (select 1) to '/tmp/x.csv'", "attach '/tmp/x.db'", "select k frm t", "set threads = 1",
        "select * from read_csv('/etc/passwd')", "select * from '/etc/passwd'", "select nope from t",
    ],
)  # fmt: skip
def test_what_is_no_query_over_these_tables_is_refused(tables, query):
    with pytest.raises((InvalidArgument, NotFound)):
        run(tables, query)


def test_tables_that_are_not_there_are_named(tables):
    with pytest.raises(NotFound, match="nothing"):
        run(tables, "select * from t join nothing using (k)")
    with pytest.raises(NotFound, match="no schema 'information_schema'"):
        run(tables, "select * from information_schema.tables")
