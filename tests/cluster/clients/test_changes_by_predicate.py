"""Deletes and updates by predicate: rows of one snapshot, counts, bad arguments, ends and continuations."""

import re
import threading

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import nyala
from nyala.cli.main import app
from nyala.client.core import ClientCore
from nyala.client.modify import modification
from nyala.client.write.writer import Writer
from nyala.common.errors import InvalidArgument, NotFound, SchemaMismatch
from nyala.wire.proto import nyala_pb2 as pb

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("price", pa.decimal128(10, 2)),
        ("x", pa.float32()),
        ("name", pa.string()),
        pa.field("must", pa.int64(), nullable=False),
        ("fixed", pa.int64()),
    ]
)


@pytest.fixture(scope="module")
def client(cluster):
    with cluster.connect() as made:
        yield made


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(modification, "CHUNK_ROWS", 10)


def create(client, name, rows=40):
    table = client.create_table(
        name, SCHEMA, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], 3)]), immutable=["fixed"]
    )
    table.insert(
        pa.table(
            {
                "k": range(rows),
                "n": pa.array(range(rows), pa.int32()),
                "price": pa.array([f"{i}.05" for i in range(rows)]).cast(pa.decimal128(10, 2)),
                "x": pa.array([i / 2 for i in range(rows)], pa.float32()),
                "name": [f"n{i}" for i in range(rows)],
                "must": range(rows),
            }
        )
    ).raise_for_errors()
    return table


def stored(table, *columns):
    found = table.scan(["k", *columns], order=True).to_arrow().to_pydict()
    return dict(zip(found["k"], zip(*(found[c] for c in columns), strict=True), strict=True))


def test_a_delete_by_predicate_deletes_the_rows_that_it_counts(client):
    table = create(client, "gone")
    done = table.delete_where("k < 20 and name <> 'n3'")
    assert (done.matched, done.changed, done.missing, done.failed) == (19, 19, 0, 0)
    assert sorted(stored(table, "n")) == [3, *range(20, 40)]
    assert done.timestamp > done.at > 0
    assert table.scan(at=done.at).count() == 40
    none = table.delete_where("k < 3")
    assert (none.matched, none.changed, none.timestamp, none.after) == (0, 0, 0, "")
    assert table.delete_where("true").changed == 21
    assert table.count() == 0


def test_an_update_by_predicate_takes_constants_and_expressions_of_the_old_values(client):
    table = create(client, "changed")
    done = table.update_where(
        "k >= 38",
        {
            "n": nyala.expr("must - n + 5"),
            "must": nyala.expr("n * 10"),
            "price": nyala.expr("price * 1.1"),
            "x": nyala.expr("price / 3"),
            "name": "price * 1.1",
        },
    )
    assert (done.matched, done.changed) == (2, 2)
    found = table.scan(where="k >= 37", order=True).to_arrow().to_pylist()
    assert [(r["n"], r["must"], str(r["price"]), r["name"]) for r in found] == [
        (37, 37, "37.05", "n37"),
        (5, 380, "41.86", "price * 1.1"),  # 41.855, rounded as in SQL
        (5, 390, "42.96", "price * 1.1"),
    ]
    assert found[1]["x"] == pytest.approx(38.05 / 3)
    table.update_where("k = 1", {"name": None, "n": pa.scalar(7), "price": nyala.expr("null")})
    assert stored(table, "name", "n", "price")[1] == (None, 7, None)
    table.update_where("k = 1", {"name": nyala.expr("'a' || 'b'"), "x": nyala.expr("1.5")})
    assert stored(table, "name", "x")[1] == ("ab", 1.5)


def test_rows_that_others_deleted_since_the_snapshot_are_counted_and_not_inserted_again(client):
    table = create(client, "meanwhile")
    at = client.now()
    table.delete([{"k": 1}, {"k": 2}])
    table.upsert([{"k": 3, "n": 1000, "must": 3}])
    done = table.update_where("n < 5", {"name": "late"}, at=at)
    assert (done.matched, done.changed, done.missing, done.failed) == (5, 3, 2, 0)
    assert stored(table, "name", "n")[3] == ("late", 1000)
    assert 1 not in stored(table, "n")
    done = table.delete_where("n < 5", at=at)
    assert (done.matched, done.changed, done.missing) == (5, 3, 2)


def test_row_errors_of_an_update_are_counted_and_have_the_key(client):
    table = create(client, "refused")
    table.update_where("k in (4, 5)", {"n": None})
    done = table.update_where("k < 6", {"must": nyala.expr("n + 1")})
    assert (done.matched, done.changed, done.failed) == (6, 4, 2)
    assert [(e["k"], e["code"]) for e in done.errors.to_pylist()] == [
        (4, "null_value"),
        (5, "null_value"),
    ]


def test_a_stopped_call_continues_at_its_snapshot_after_its_last_batch(client, small_chunks):
    table = create(client, "stopped")
    stop = threading.Event()
    seen = []

    def show(rows):
        seen.append(rows)
        if rows >= 20:
            stop.set()

    done = table.update_where("k >= 5", {"n": nyala.expr("n + 100")}, progress=show, stop=stop)
    assert (done.stopped, done.matched, done.changed, seen) == (True, 20, 20, [10, 20])
    table.upsert([{"k": 100, "n": 1, "must": 1}])  # after the snapshot
    rest = table.update_where("k >= 5", {"n": nyala.expr("n + 100")}, at=done.at, after=done.after)
    assert (rest.stopped, rest.matched, rest.at) == (False, 15, done.at)
    assert stored(table, "n") == {**{k: (k + 100 * (k >= 5),) for k in range(40)}, 100: (1,)}


def test_an_error_in_between_tells_how_to_continue(client, small_chunks, monkeypatch):
    table = create(client, "broken")
    table.update_where("k = 25", {"must": 1 << 40})
    with pytest.raises(nyala.PartlyChanged) as caught:
        table.update_where("true", {"n": nyala.expr("must + 1")})
    done = caught.value.result
    assert (done.matched, done.changed) == (20, 20)
    assert "k=25" in str(caught.value)
    assert f"at={done.at}" in str(caught.value)
    assert isinstance(caught.value.__cause__, SchemaMismatch)
    rest = table.update_where(
        "k <> 25", {"n": nyala.expr("must + 1")}, at=done.at, after=done.after
    )
    assert (rest.matched, rest.changed) == (19, 19)
    assert stored(table, "n")[39] == (40,)
    with pytest.raises(SchemaMismatch):  # before any row: nothing took effect
        table.update_where("k >= 25", {"n": nyala.expr("must + 1")})


def test_an_interrupted_call_tells_how_far_it_came(client, small_chunks):
    table = create(client, "interrupted")

    def show(rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        table.delete_where("true", progress=show)
    partly = caught.value.__cause__
    assert isinstance(partly, nyala.PartlyChanged)
    assert partly.result.changed == 10
    assert table.delete_where("true", at=partly.result.at, after=partly.result.after).changed == 30


def test_the_snapshot_is_held_while_the_call_runs_and_after_an_error(
    client, small_chunks, monkeypatch
):
    table = create(client, "held")
    asked = []
    monkeypatch.setattr(modification, "HOLD_MS", 10)  # always less than half is left: renewed
    held = ClientCore.hold

    async def hold(self, opened, at, ttl_ms):
        asked.append(at)
        return await held(self, opened, at, ttl_ms)

    monkeypatch.setattr(ClientCore, "hold", hold)
    done = table.delete_where("k < 25")
    assert done.changed == 25
    assert asked == [None, done.at, done.at, done.at]


BAD = {
    "no text": (lambda t: t.delete_where(None), InvalidArgument, "'true' selects every row"),
    "a wrong text": (lambda t: t.delete_where("k <"), InvalidArgument, "expected"),
    "an unknown column": (lambda t: t.delete_where("nix = 1"), NotFound, "nix"),
    "no values": (lambda t: t.update_where("true", {}), InvalidArgument, "pass a dict"),
    "values of no dict": (lambda t: t.update_where("true", "n = 1"), InvalidArgument, "pass a dict"),
    "an unknown value": (lambda t: t.update_where("true", {"nix": 1}), NotFound, "nix"),
    "a name of no text": (lambda t: t.update_where("true", {1: 1}), InvalidArgument, "is a str"),
    "a key": (lambda t: t.update_where("true", {"k": 1}), InvalidArgument, "primary key"),
    "an immutable": (lambda t: t.update_where("true", {"fixed": 1}), InvalidArgument, "immutable"),
    "a null": (lambda t: t.update_where("true", {"must": None}), InvalidArgument, "nulls"),
    "an Arrow null": (
        lambda t: t.update_where("true", {"must": pa.scalar(None, pa.int64())}), InvalidArgument, "nulls",
    ),
    "a null expression": (
        lambda t: t.update_where("true", {"must": nyala.expr("null")}), InvalidArgument, "nulls",
    ),
    "a constant outside": (lambda t: t.update_where("true", {"n": 1 << 40}), InvalidArgument, "int32"),
    "a text for a number": (
        lambda t: t.update_where("true", {"n": "n + 1"}), InvalidArgument, "nyala.expr('n + 1')",
    ),
    "an expression of another type": (
        lambda t: t.update_where("true", {"n": nyala.expr("name || 'x'")}), InvalidArgument, "int32",
    ),
    "a wrong expression": (
        lambda t: t.update_where("true", {"n": nyala.expr("n +")}), InvalidArgument, "expected",
    ),
    "an unknown operand": (lambda t: t.update_where("true", {"n": nyala.expr("nix")}), NotFound, "nix"),
    "no text of an expression": (lambda t: nyala.expr(t), InvalidArgument, "without expr"),
    "a position alone": (lambda t: t.delete_where("true", after="80"), InvalidArgument, "at="),
    "no position": (lambda t: t.delete_where("true", at=1, after="xy"), InvalidArgument, ".after"),
    "no time": (lambda t: t.delete_where("true", at="now"), InvalidArgument, "now"),
    "no progress": (lambda t: t.delete_where("true", progress=3), InvalidArgument, "progress"),
    "no event": (lambda t: t.delete_where("true", stop=True), InvalidArgument, "threading.Event"),
}  # fmt: skip


def test_wrong_arguments_are_refused_before_anything_changes(client):
    table = create(client, "untouched", rows=3)
    before = table.scan(order=True).to_arrow()
    for name, (call, kind, word) in BAD.items():
        with pytest.raises(kind) as caught:
            call(table)
        assert word in str(caught.value), name
    assert table.scan(order=True).to_arrow().equals(before)


def test_a_write_of_unknown_outcome_ends_as_partly_changed(client, small_chunks, monkeypatch):
    table = create(client, "unknown")
    write = Writer.write
    calls = []

    async def failing(self, opened, op, batch, **how):
        calls.append(op)
        if len(calls) == 1:
            raise nyala.errors.OutcomeUnknown("no answer")
        return await write(self, opened, op, batch, **how)

    monkeypatch.setattr(Writer, "write", failing)
    with pytest.raises(nyala.PartlyChanged) as caught:
        table.delete_where("true")
    assert caught.value.result.after == ""
    assert calls == [pb.DELETE]
    assert table.delete_where("true", at=caught.value.result.at).changed == 40


def run(cluster, *words, answer=None):
    return CliRunner().invoke(
        app, ["table", *words, "--masters", cluster.masters], input=answer and f"{answer}\n"
    )


def test_the_commands_ask_with_the_count_first(client, cluster):
    table = create(client, "asked")
    done = run(cluster, "delete_rows", "asked", "--where", "k < 10", answer="n")
    assert done.exit_code == 1
    assert "Delete 10 of 40 rows of table asked?" in done.output
    assert "nothing was changed" in done.output
    assert table.count() == 40
    done = run(cluster, "delete_rows", "asked", "--where", "k < 10", answer="y")
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "deleted 10 rows of table asked")
    sets = ("--set", "n=n * 2", "--set", "name='a=b'")
    done = run(cluster, "update_rows", "asked", "--where", "k in (12, 13)", *sets, "--yes")
    assert (done.exit_code, done.output) == (0, "updated 2 rows of table asked\n")
    assert stored(table, "n", "name")[12] == (24, "a=b")
    done = run(cluster, "update_rows", "asked", "--where", "k = 12", "--set", "must=null", "--yes")
    assert done.exit_code == 2
    assert "nulls" in done.output
    for wrong in (["n"], ["n=1", "--set", "n=2"]):
        done = run(cluster, "update_rows", "asked", "--where", "true", "--set", *wrong, "--yes")
        assert (done.exit_code, "COLUMN=EXPRESSION" in done.output) == (2, True)
    assert (
        run(cluster, "delete_rows", "asked", "--where", "true", "--after", "80", "--yes").exit_code
        == 2
    )
    table.update_where("k = 20", {"n": None})
    done = run(
        cluster, "update_rows", "asked", "--where", "k in (20, 21)", "--set", "must=n", "--yes"
    )
    assert done.exit_code == 1
    assert "updated 1 row of" in done.output
    assert "null_value" in done.output


def test_an_interrupted_command_tells_how_to_continue(client, cluster, small_chunks, monkeypatch):
    table = create(client, "broken_off")

    def interrupt(self, rows):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("nyala.client.write.watch.Watch.reached", interrupt)
        done = run(cluster, "delete_rows", "broken_off", "--where", "true", "--yes")
    assert done.exit_code == 130
    ((at, after),) = re.findall(r"at=(\d+), after='(\w+)'", done.output)
    rest = ("--at", at, "--after", after, "--yes")
    assert run(cluster, "delete_rows", "broken_off", "--where", "true", *rest).exit_code == 0
    assert table.count() == 0
