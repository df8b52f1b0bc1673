"""Writes of a repeated task: late, in another order, after an alteration. Without Spark itself."""

import os
from collections import Counter
from operator import methodcaller
from random import Random

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import InvalidArgument, SchemaMismatch, SessionExpired
from nyala.spark.writes import task as task_module
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.task import REPEATABLE, TaskWrites, in_runs
from nyala.testing import MiniCluster
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture(scope="module")
def quick():
    """A cluster with results that expire after a second."""
    with MiniCluster(1, 1, options={"client_result_ttl_s": "1"}) as made:
        yield made


@pytest.fixture
def table(quick, request):
    with quick.connect() as client:
        name = f"t_{request.node.name}"[:60]
        yield client.create_table(name, SCHEMA, ["k"], replicas=1)
        client.drop_table(name)


def rows(keys, value="x"):
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([value] * len(keys))})


def attempt(quick, table, name, batches, op="upsert", value="x"):
    """Run one attempt of a task; return the number of rows written."""
    written = 0
    with TaskWrites(quick.masters, table.name, name) as task:
        for batch in batches:
            send = methodcaller(op, rows(batch, value))
            written += task.write([op], send).raise_for_errors().rows
    return written


class Forgotten(Exception):
    """A tablet no longer has a task's results; tasks do not handle this error."""


def once(table, op, batch):
    try:
        return getattr(table, op)(batch)
    except SessionExpired as err:
        raise Forgotten from err


def forget(quick, table, name, batches, op):
    """Wait until the tablet has expired the results of a task."""

    def expired():
        table.upsert(rows([999]))  # time passes in a tablet as entries are applied
        probe = f"{name} probe"
        with TaskWrites(quick.masters, table.name, name) as task:
            try:
                task.write([op], lambda table: once(table, op, rows(batches[0])))
            except Forgotten:
                return probe
        return None

    wait_until(expired, "results are forgotten")


BATCHES = [[0, 1, 2], [3, 4], [5]]


@pytest.mark.parametrize("op", REPEATABLE)
def test_repeated_task_of_repeatable_op_succeeds_at_any_delay(quick, table, op):
    if op.startswith("update"):
        table.upsert(rows(range(9), "old"))
    name = os.urandom(8).hex()
    attempt(quick, table, name, BATCHES[:2], op)
    forget(quick, table, name, BATCHES, op)
    assert attempt(quick, table, name, BATCHES, op) == 6
    stored = {r["k"]: r["v"] for r in table.scan(where="k < 6").to_arrow().to_pylist()}
    assert stored == ({} if op == "delete_ignore" else dict.fromkeys(range(6), "x"))


@pytest.mark.parametrize("op", ["upsert", "insert_ignore", "delete_ignore"])
def test_repeated_task_with_reordered_rows_succeeds(quick, table, op):
    name = os.urandom(8).hex()
    attempt(quick, table, name, [[0, 1], [2, 3]], op)
    assert attempt(quick, table, name, [[3, 2], [1, 5], [0, 4]], op) == 6


def test_repeated_task_succeeds_after_table_was_altered(quick, table):
    name = os.urandom(8).hex()
    attempt(quick, table, name, BATCHES)
    table.alter().add_column("w", pa.int64()).commit()
    assert attempt(quick, table, name, BATCHES) == 6
    table.alter().set_options({"history_max_age_s": "100"}).commit()
    assert attempt(quick, table, name, BATCHES) == 6


def test_recognised_task_writes_each_row_once(quick, table):
    name, before = os.urandom(8).hex(), table.scan().at
    attempt(quick, table, name, BATCHES[:2], "insert")
    attempt(quick, table, name, BATCHES, "insert")
    assert table.changes(before, net=False).to_arrow().num_rows == 6


@pytest.mark.parametrize("op", ["insert", "delete"])
def test_unrepeatable_task_is_refused_with_remedy(quick, table, op):
    table.upsert(rows(range(9)))
    name, other = os.urandom(8).hex(), os.urandom(8).hex()
    keys = [[100, 101], [102]] if op == "insert" else [[0, 1], [2]]
    attempt(quick, table, name, keys, op)
    with pytest.raises(
        SessionExpired, match=f"op {op} .* run the job again with ops that may be repeated"
    ):
        attempt(quick, table, name, [keys[0][::-1], keys[1]], op)
    with TaskWrites(
        quick.masters, table.name, other
    ) as task:  # nor later, once sequences are abandoned
        task.write(["upsert"], lambda t: t.upsert(rows([1, 2])))
    with TaskWrites(quick.masters, table.name, other) as task:
        task.write(["upsert"], lambda t: t.upsert(rows([2, 1])))
        with pytest.raises(SessionExpired, match=f"op {op} "):
            task.write([op], lambda t: getattr(t, op)(rows([7])))


def test_other_errors_are_not_retried(quick, table):
    with TaskWrites(quick.masters, table.name, "x") as task:
        tries = []

        def send(table):
            tries.append(table)
            return table.upsert(pa.table({"k": ["a"]}))

        with pytest.raises(SchemaMismatch):
            task.write(["upsert"], send)
        assert len(tries) == 1


def test_long_task_uses_equal_sessions_in_each_attempt(quick, table, monkeypatch):
    monkeypatch.setattr(task_module, "PER_SESSION", 2)
    ids = []

    def connect(masters, *, client_id, since, timeout_ms):
        ids.append(client_id)
        return nyala.connect(masters, client_id=client_id, since=since, timeout_ms=timeout_ms)

    monkeypatch.setattr(task_module, "connect", connect)
    batches = [[n] for n in range(5)]
    before = table.scan().at
    for _ in range(2):
        assert attempt(quick, table, "long", batches, "insert") == 5
    assert len(ids) == 6
    assert ids[:3] == ids[3:]
    assert len(set(ids)) == 3
    assert table.changes(before, net=False).to_arrow().num_rows == 5


# ---- kinds -----------------------------------------------------------------------------------------


def test_rows_of_one_op_are_grouped_for_distinct_keys():
    kinds = ["a", "b"] * 500
    batch = pa.record_batch({"k": list(range(1000)), "kind": kinds})
    pieces = in_runs(batch, "kind", ["k"])
    assert [value for value, _ in pieces] == ["a", "b"]
    assert pieces[0][1].column("k").to_pylist() == list(range(0, 1000, 2))
    assert in_runs(batch.slice(0, 0), "kind", ["k"]) == []
    with pytest.raises(InvalidArgument, match="null in 1 rows"):
        in_runs(pa.record_batch({"k": [1], "kind": pa.array([None], pa.string())}), "kind", ["k"])


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_one_key_stay_in_order(seed):
    random = Random(seed)
    count = random.randrange(1, 60)
    first = [random.randrange(3) for _ in range(count)]
    second = [random.choice(["x", "y", None]) for _ in range(count)]
    kinds = [random.choice(["born", "Died", "moved"]) for _ in range(count)]
    batch = pa.record_batch({
        "a": first, "b": pa.array(second, pa.string()), "kind": kinds, "n": list(range(count)),
    })  # fmt: skip
    pieces = in_runs(batch, "kind", ["a", "b"])
    written = [(value, row) for value, piece in pieces for row in piece.to_pylist()]
    assert sorted(row["n"] for _, row in written) == list(range(count))
    assert all(kinds[row["n"]] == value for value, row in written)
    by_key: dict[tuple[int, str | None], list[int]] = {}
    for _, row in written:
        by_key.setdefault((row["a"], row["b"]), []).append(row["n"])
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    most = max(Counter(zip(first, second, strict=True)).values())
    assert len(pieces) <= 3 * most


# ---- checks of the driver ------------------------------------------------------------------------


def check(quick, table, frame, **options):
    return WriteOptions.of(table.name, quick.masters, options, pa.schema(frame))


@pytest.mark.parametrize(
    ("frame", "options", "words"),
    [
        ([("v", pa.string())], {}, "lacks the key column 'k'"),
        ([("k", pa.string())], {}, "column 'k' has type string, but the table stores int64"),
        ([("k", pa.int64()), ("v", pa.list_(pa.int32()))], {}, "column 'v' has type list"),
        ([("k", pa.int64()), ("K", pa.string())], {}, "no column 'K'"),
        ([("k", pa.int64()), ("op", pa.int32())], {"op_column": "op"}, "make it a string"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_frame_is_refused_before_any_task_runs(quick, table, frame, options, words):
    with pytest.raises((InvalidArgument, SchemaMismatch), match=words):
        check(quick, table, frame, **options)


def test_frame_with_possibly_fitting_values_is_accepted(quick, table):
    frame = [("k", pa.int32()), ("v", pa.string()), ("What", pa.string())]
    made = check(quick, table, frame, kind_column="What", **{"kind.dep": "upsert: v"})
    assert set(made.kinds) == {"dep"}
