"""SQL with filters that real servers evaluate, and frames that make tables: both on one small cluster."""

from random import Random

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import InvalidArgument
from nyala.testing import MiniCluster
from tests.properties.support.sql_agrees import TABLES, shown, tables
from tests.properties.support.sql_queries import Queries
from tests.unit.client.support.sql_tables import TablesInMemory, plainly


@pytest.fixture(scope="module")
def client():
    with MiniCluster(1, 1) as cluster, cluster.connect() as made:
        yield made


@pytest.fixture(scope="module")
def in_memory(client) -> TablesInMemory:
    """The tables of `TABLES` in tablets and flushed rowsets, and the same in memory."""
    made = tables(Random(5))
    for name, (definition, batch) in made.tables.items():
        key = definition.key_columns[0].name
        parts = nyala.Partition(range=nyala.Range([key], [(None, 3), (3, None)]))
        client.create_table(name, batch.schema, [key], parts, replicas=1).insert(
            batch
        ).raise_for_errors()
    return made


@pytest.mark.parametrize("seed", range(60))
def test_server_side_filters_do_not_change_results(client, in_memory, seed):
    query = Queries(Random(seed), TABLES).one()
    try:
        expected = shown(plainly(in_memory, query))
    except duckdb.Error:
        with pytest.raises(InvalidArgument):
            client.sql(query)
        return
    assert shown(client.sql(query)) == expected, query


FRAMES = {
    "pandas": pd.DataFrame({"k": [1, 2], "t": pd.to_datetime(["2020-01-01", None]), "s": ["a", None]}),
    "filtered": pd.DataFrame({"k": [1, 2, 3], "u": np.array([1, 2, 255], np.uint8)})[lambda f: f.k > 1],
    "indexed": pd.DataFrame({"v": [0.5]}, index=pd.Index([5], name="k")),
    "zoned": pd.DataFrame({"k": [1], "t": pd.to_datetime(["2020-01-01"]).tz_localize("Europe/Berlin")}),
    "polars": pl.DataFrame({"k": [1], "c": pl.Series(["x"], dtype=pl.Categorical), "h": [None]},
                           schema_overrides={"h": pl.UInt32}),
    "arrow": pa.table({"k": [1], "m": pa.array([2], pa.timestamp("s")), "x": pa.array([b"a"], pa.binary(1))}),
    "dicts": [{"k": 1, "v": 1}, {"k": 2, "v": 0.5}, {"k": 3, "w": "x"}],
}  # fmt: skip


@pytest.mark.parametrize("kind", FRAMES)
def test_table_created_from_frame_returns_its_rows(client, kind):
    frame = FRAMES[kind]
    table = client.create_table(f"frame_{kind}", frame, ["k"], replicas=1)
    done = table.upsert(frame).raise_for_errors()
    back = table.scan(order=True).to_arrow()
    assert done.rows == back.num_rows == len(frame)
    if isinstance(frame, list):
        assert back.to_pylist() == [{"k": r["k"], "v": r.get("v"), "w": r.get("w")} for r in frame]
        return
    given = pa.table(frame) if not isinstance(frame, pd.DataFrame) else pa.Table.from_pandas(
        frame, preserve_index=kind == "indexed")  # fmt: skip
    assert back.to_pylist() == given.select(back.schema.names).to_pylist()
