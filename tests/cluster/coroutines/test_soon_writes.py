"""Writes whose result is a future, on a real cluster."""

import threading
from concurrent.futures import CancelledError, wait

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import InvalidArgument, SchemaMismatch
from tests.waiting import wait_until

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


def test_callbacks_begin_further_writes_and_neither_wait_nor_end_those_of_others(cluster):
    with cluster.connect() as client:
        table = client.create_table("soon_callbacks", SCHEMA, ["k"])
        refused: list[str] = []
        further: list[int] = []

        def look_up():
            try:
                table.get({"k": 0})
            except InvalidArgument as err:
                refused.append(str(err))

        def write_again():
            again = table.upsert_soon([{"k": 1, "v": "b"}])
            again.add_done_callback(lambda done: further.append(done.result().rows))

        def leave():
            raise SystemExit

        def in_thread_of_client(callback):
            """Return a callback that does nothing where the future had ended before it was added."""
            own = threading.current_thread()
            return lambda _: None if threading.current_thread() is own else callback()

        def done():
            writing = [table.upsert_soon([{"k": k, "v": "a"}]) for k in range(100)]
            for callback in (look_up, write_again, leave):
                writing[-1].add_done_callback(in_thread_of_client(callback))
            writing[0].add_done_callback(in_thread_of_client(leave))
            assert sum(w.result(timeout=120).rows for w in writing) == 100
            return refused and further

        wait_until(done, "callbacks ran in the client's thread")
        assert "in another thread" in refused[0]
        assert set(further) == {1}
