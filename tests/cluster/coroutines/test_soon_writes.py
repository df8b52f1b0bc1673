"""Writes whose result is a future, on a real cluster."""

from concurrent.futures import CancelledError, wait

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import InvalidArgument, SchemaMismatch

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
HASHED = nyala.Partition(hash=[nyala.Hash(["k"], 3)])


def test_writes_whose_results_are_futures_take_effect(cluster):
    with cluster.connect() as client:
        table = client.create_table("soon", SCHEMA, ["k"], HASHED)
        writing = [table.insert_soon([{"k": k, "v": "a"}]) for k in range(200)]
        writing.append(table.insert_soon(pa.table({"k": range(200, 30_200)})))
        assert sum(w.result().rows for w in writing) == 30_200
        again = table.insert_soon([{"k": 1, "v": "b"}]).result()
        assert again.errors.column("code").to_pylist() == ["already_present"]
        wait([table.update_soon([{"k": 2, "v": "c"}]), table.delete_soon([{"k": 3}])])
        assert table.get([{"k": 2}, {"k": 3}]) == [{"k": 2, "v": "c"}, None]
        with client.transaction() as txn:
            table.upsert_soon([{"k": 4, "v": "d"}], txn=txn).result()
            assert table.get({"k": 4}) == {"k": 4, "v": "a"}
        assert table.get({"k": 4}) == {"k": 4, "v": "d"}


def test_wrong_rows_are_refused_before_there_is_a_future(cluster):
    with cluster.connect() as client:
        table = client.create_table("soon_refused", SCHEMA, ["k"])
        with pytest.raises(SchemaMismatch):
            table.upsert_soon([{"k": "one"}])
        with pytest.raises(InvalidArgument, match="rows in memory"):
            table.upsert_soon({"k": k} for k in range(3))
        assert table.count() == 0
    with pytest.raises(InvalidArgument, match="closed"):
        table.upsert_soon([{"k": 1}])


def test_futures_end_when_their_client_is_closed(cluster):
    client = cluster.connect()
    table = client.create_table("soon_closed", SCHEMA, ["k"])
    writing = [table.upsert_soon([{"k": k}]) for k in range(50)]
    writing.append(table.upsert_soon(pa.table({"k": range(100, 60_000)})))
    client.close()
    for one in writing:
        try:
            assert one.result(timeout=120).rows
        except (nyala.errors.NyalaError, CancelledError):
            continue
