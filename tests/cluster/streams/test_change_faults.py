"""Leaders that are killed or stopped under a delete or update by predicate: each row is changed once."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import nyala
from nyala.client.modify import modification
from tests.cluster.streams.conftest import TABLE

pytestmark = pytest.mark.full

ROWS, CHUNK = 16_000, 250
"""Number of rows, of which the predicate selects the even ones, and of rows of a chunk."""
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64())])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(modification, "CHUNK_ROWS", CHUNK)


@pytest.fixture
def table(cluster) -> Iterator[nyala.Table]:
    with cluster.connect() as client:
        hashed = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
        made = client.create_table(TABLE, SCHEMA, ["k"], hashed)
        try:
            made.insert(rows(range(ROWS))).raise_for_errors()
            yield made
        finally:
            client.drop_table(TABLE)


def rows(keys: range) -> pa.Table:
    return pa.table([pa.array(keys), pa.array([k % 2 for k in keys])], schema=SCHEMA)


class Inserts(threading.Thread):
    """Inserts further rows that the predicate would select, once the first chunk is written.

    Args:
        table: the table.
        fault: gets the number of each chunk; see `conftest.fault`.

    Attributes:
        made: keys of the rows inserted.
        error: error that ended it, or None.
    """

    def __init__(self, table: nyala.Table, fault: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._table = table
        self._fault = fault
        self._begun, self._ended = threading.Event(), threading.Event()
        self.made: list[int] = []
        self.error: BaseException | None = None
        self.start()

    def progress(self, changed: int) -> None:
        """Take the progress of the change: the snapshot is read since before this."""
        self._begun.set()
        self._fault(changed // CHUNK)

    def run(self) -> None:
        try:
            self._begun.wait()
            while not self._ended.wait(0.01):
                key = ROWS + 2 * len(self.made)
                self._table.insert(rows(range(key, key + 1))).raise_for_errors()
                self.made.append(key)
        except BaseException as err:
            self.error = err

    def finish(self) -> list[int]:
        """Insert no more; return the keys."""
        self._ended.set()
        self.join()
        assert self.error is None, self.error
        assert self.made
        return self.made


def check(table: nyala.Table, done: nyala.ChangeResult, kind: str) -> None:
    """Check the counts, and that the feed has one change of each selected row since the snapshot."""
    selected = range(0, ROWS, 2)
    assert (done.matched, done.changed, done.missing, done.failed) == (len(selected),) * 2 + (0, 0)
    feed = table.changes(done.at, net=False, columns=["k"]).to_arrow().to_pydict()
    found = Counter(k for k, op in zip(feed["k"], feed["_op"], strict=True) if op == kind)
    assert found == Counter(selected)


def test_update_whose_leader_fails_changes_each_row_once(table, fault):
    others = Inserts(table, fault)
    done = table.update_where("n = 0", {"n": nyala.expr("n + k + 10")}, progress=others.progress)
    made = others.finish()
    check(table, done, "update")
    found = table.scan().to_arrow().to_pydict()
    expected = {k: 1 if k % 2 else k + 10 for k in range(ROWS)} | dict.fromkeys(made, 0)
    assert dict(zip(found["k"], found["n"], strict=True)) == expected


def test_delete_whose_leader_fails_deletes_each_row_once(table, fault):
    others = Inserts(table, fault)
    done = table.delete_where("n = 0", progress=others.progress)
    made = others.finish()
    check(table, done, "delete")
    assert sorted(table.scan(["k"]).to_arrow()["k"].to_pylist()) == [*range(1, ROWS, 2), *made]
