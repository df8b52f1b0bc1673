"""Jobs on Spark: what they write, find and refuse, and that they can be run again."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nyala
from nyala.backup.chain import chains_of
from nyala.backup.restore import RestoreOptions, Restoring
from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound
from nyala.spark.jobs import (
    backup,
    checksum,
    compare,
    copy,
    export_files,
    generate,
    import_files,
    input_files,
    restore,
    verify,
)  # fmt: skip
from nyala.spark.jobs.tasks import run_in_tasks

pytestmark = pytest.mark.full
SCHEMA = pa.schema([
    pa.field("k", pa.int64(), nullable=False), ("s", pa.string()), ("x", pa.float64()),
    pa.field("n", pa.int32(), nullable=False), ("t", pa.timestamp("us", "UTC")), ("d", pa.date32()),
    ("m", pa.decimal128(20, 3)),
])  # fmt: skip
PARTS = nyala.Partition(hash=[nyala.Hash(["k"], 3)])


@pytest.fixture
def where(cluster, client):
    yield {"masters": cluster.masters}
    for name in client.tables():
        client.drop_table(name)


@pytest.fixture
def table(spark, client, where):
    made = client.create_table("jobs", SCHEMA, ["k"], PARTS, replicas=1)
    generate(spark, "jobs", 1000, **where, seed=3)
    return made


def content(table, **options):
    return table.scan(order=True, **options).to_arrow()


def test_generated_rows_depend_on_the_seed_only(spark, client, table, where):
    for name, seed in (("again", 3), ("other", 4)):
        client.create_table(name, SCHEMA, ["k"], replicas=1)
        generate(spark, name, 500, **where, seed=seed)
        generate(spark, name, 500, **where, seed=seed, first=500)
    assert content(client.table("again")).equals(content(table))
    assert not content(client.table("other")).equals(content(table))
    sums = {n: checksum(spark, n, **where).checksum for n in ("jobs", "again", "other")}
    assert sums["jobs"] == sums["again"] != sums["other"]
    with pytest.raises(InvalidArgument, match="at least one row"):
        generate(spark, "jobs", 0, **where)


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_exported_files_are_imported_as_the_same_rows(
    spark, client, table, where, tmp_path, format
):
    folder = str(tmp_path / "out")
    done = export_files(spark, "jobs", folder, **where, format=format)
    assert (done.rows, done.files) == (1000, 3)
    client.create_table("back", SCHEMA, ["k"], PARTS, replicas=1)
    import_files(spark, folder, "back", **where)
    assert content(client.table("back")).equals(content(table))
    with pytest.raises(AlreadyPresent, match="never writes over"):
        export_files(spark, "jobs", folder, **where)
    client.create_table("none", SCHEMA, ["k"], replicas=1)
    done = export_files(spark, "none", f"{folder}0", **where, format=format)
    assert (done.rows, done.files) == (0, 0 if format == "json" else 1)
    if done.files:
        assert import_files(spark, f"{folder}0", "back", **where).files == 1


def test_bad_lines_end_an_import_or_are_kept_with_their_numbers(spark, client, where, tmp_path):
    path, bad = tmp_path / "rows.csv", tmp_path / "bad"
    path.write_text("k,v\n1,a\nx,b\n3,c\n4\n")
    how = {**where, "create": True, "key": ["k"], "replicas": 1}
    (tmp_path / "good.csv").write_text("k,v\n9,z\n")
    assert import_files(spark, str(tmp_path / "good.csv"), "t", **how, dry_run=True).columns == {
        "k": "int64", "v": "string",
    }  # fmt: skip
    assert client.tables() == []
    import_files(spark, str(tmp_path / "good.csv"), "t", **how)
    with pytest.raises(Exception, match="line 3"):
        import_files(spark, str(path), "t", **where)
    assert client.table("t").count() == 1
    done = import_files(spark, str(path), "t", **where, bad=str(bad), job_id="once")
    assert done.bad_lines == 2
    [side] = bad.glob("*.jsonl")
    found = [json.loads(line) for line in side.read_text().splitlines()]
    assert [(f["number"], f["text"]) for f in found] == [(3, "x,b"), (5, "4")]
    assert client.table("t").scan(["k"], order=True).to_arrow()["k"].to_pylist() == [1, 3, 9]
    with pytest.raises(InvalidArgument, match="not an empty folder"):
        import_files(spark, str(path), "t", **where, bad=str(bad))
    again = import_files(spark, str(path), "t", **where, bad=str(bad), job_id="once")
    assert (again.bad_lines, [p.name for p in bad.glob("*.jsonl")]) == (2, [side.name])
    with pytest.raises(AlreadyPresent, match="leave --create out"):
        import_files(spark, str(path), "t", **how)


def test_large_files_are_imported_by_several_tasks(spark, client, where, tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "PART_BYTES", 400)
    rows = [f"{n},row {n}" if n % 50 else f"x{n},bad" for n in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["k,v", *rows]))
    columns = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
    made = client.create_table("t", columns, ["k"], replicas=1)
    how = {**where, "bad": str(tmp_path / "bad"), "op": "insert", "atomic": False}
    done = import_files(spark, str(tmp_path / "rows.csv"), "t", **how)
    assert (done.files, done.bad_lines) == (1, 4)
    files = sorted((tmp_path / "bad").glob("*.jsonl"))
    found = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert [f["number"] for f in found] == [2, 52, 102, 152]
    assert content(made).num_rows == 196
    pq.write_table(content(made), tmp_path / "rows.parquet", row_group_size=20)
    how = {"create": True, "key": ["k"], "replicas": 1, **where}
    import_files(spark, str(tmp_path / "rows.parquet"), "t2", op="insert", atomic=False, **how)
    assert content(client.table("t2")).equals(content(made))


def test_files_with_different_columns_are_imported_as_a_whole_and_once(
    spark, client, where, tmp_path
):
    columns = pa.schema(
        [pa.field("k", pa.int64(), nullable=False), ("a", pa.string()), ("b", pa.string())]
    )
    made = client.create_table("t", columns, ["k"], replicas=1)
    made.upsert([{"k": n, "a": "old", "b": "old"} for n in (1, 2)])
    for folder, column in (("p", "a"), ("q", "b")):
        (tmp_path / "in" / folder).mkdir(parents=True)
        (tmp_path / "in" / folder / "x.csv").write_text(f"k,{column}\n1,new\nx,bad\n")
    names = str(tmp_path / "in")
    with pytest.raises(Exception, match="line 3"):
        import_files(spark, names, "t", **where)
    assert {v for row in content(made).to_pylist() for v in row.values()} == {1, 2, "old"}
    before = client.now()
    for number in range(2):
        bad = tmp_path / f"bad{number}"
        done = import_files(spark, names, "t", **where, bad=str(bad), job_id="two groups")
        assert (done.bad_lines, len(list(bad.glob("*.jsonl")))) == (
            (2, 2) if not number else (0, 0)
        )
    assert content(made).to_pylist() == [
        {"k": 1, "a": "new", "b": "new"}, {"k": 2, "a": "old", "b": "old"},
    ]  # fmt: skip
    assert len(set(made.changes(before, net=False).to_arrow()["_timestamp"].to_pylist())) == 1


def test_comparison_finds_planted_differences(spark, client, table, where, tmp_path):
    folder = str(tmp_path / "out")
    export_files(spark, "jobs", folder, **where)
    copy(spark, "jobs", "two", **where, replicas=1)
    assert compare(spark, "jobs", "two", **where).equal
    assert compare(spark, "jobs", folder, **where).equal
    table.delete([{"k": 5}])
    table.upsert([{"k": 6, "s": "planted", "n": 1}, {"k": 2000, "n": 1}])
    for other in ("two", folder):
        found = compare(spark, "jobs", other, **where)
        assert not found.equal
        assert (found.only_left, found.only_right, found.changed) == (1, 1, 1)
        assert [(e["k"], e["what"]) for e in found.examples] == [
            ("5", "only_right"), ("6", "changed"), ("2000", "only_left"),
        ]  # fmt: skip
        assert "s" in found.examples[1]["columns"]
    with pytest.raises(InvalidArgument, match="lacks the columns nope"):
        compare(spark, "jobs", "two", **where, columns="nope")


def test_comparison_takes_any_names_and_finds_keys_that_files_have_twice(
    spark, client, where, tmp_path
):
    kinds = pa.schema([
        pa.field("k.k", pa.int64(), nullable=False), ("a.b", pa.string()), ("A", pa.string()),
        ("a", pa.string()), ("`", pa.float64()), ("what", pa.string()),
    ])  # fmt: skip
    for name in ("one", "two"):
        made = client.create_table(name, kinds, ["k.k"], replicas=1)
        made.upsert([{"k.k": 1, "a.b": name, "A": "x"}, {"k.k": 2, "a": "y", "`": 0.5}])
    found = compare(spark, "one", "two", **where)
    assert (found.rows, found.changed, found.only_left, found.only_right) == (2, 1, 0, 0)
    assert found.examples == [{"k.k": "1", "what": "changed", "columns": "a.b"}]
    assert checksum(spark, "one", **where).rows == 2
    path = str(tmp_path / "rows.parquet")
    how = {**where, "columns": "a.b,a,`,what"}
    rows = client.table("one").scan(order=True).to_arrow().drop(["A"])
    pq.write_table(rows, path)
    assert compare(spark, "one", path, **how).equal
    pq.write_table(pa.concat_tables([rows, rows.slice(1)]), path)
    found = compare(spark, "one", path, **how)
    assert (found.equal, found.rows, found.changed) == (False, 2, 1)
    for other in (pa.array(["1", "2"]), pa.array([1.0, 2.0])):
        pq.write_table(rows.set_column(0, "k.k", other), path)
        with pytest.raises(InvalidArgument, match="not comparable exactly"):
            compare(spark, "one", path, **how)
    (tmp_path / "rows.csv").write_text("k\n1\n")
    with pytest.raises(InvalidArgument, match=r"rows\.csv cannot be read as parquet"):
        compare(spark, "one", str(tmp_path / "rows.csv"), **how)


def test_linked_lists_with_a_lost_row_are_not_correct(spark, client, where):
    done = verify(spark, "lists", **where, load=300, lists=2, replicas=1, buckets=3)
    assert (done.correct, done.lists, done.rows, done.unreferenced) == (True, 2, 600, 2)
    table = client.table("lists")
    rows = table.scan(where="list = 1").to_arrow().to_pylist()
    [middle] = [r for r in rows if r["place"] == 100]
    [last] = [r for r in rows if r["place"] == 299]
    table.delete([{"key": middle["key"]}])
    found = verify(spark, "lists", **where)
    assert (found.correct, found.missing, found.examples) == (False, 1, [middle["key"]])
    table.upsert([{**middle, "place": 7}])
    assert not verify(spark, "lists", **where).correct
    table.upsert([middle])
    assert verify(spark, "lists", **where, expect=600).correct
    table.delete([{"key": last["key"]}])
    assert verify(spark, "lists", **where).correct
    assert not verify(spark, "lists", **where, expect=600).correct


def test_copy_that_follows_is_current_and_continues(spark, client, table, where, tmp_path):
    how = {
        **where,
        "follow": True,
        "once": True,
        "checkpoint": str(tmp_path / "state"),
        "replicas": 1,
    }
    copy(spark, "jobs", "two", **how, rows_at_a_time=300)
    two = client.table("two")
    assert content(two).equals(content(table))
    assert client.describe("two").partition == client.describe("jobs").partition
    table.delete([{"k": n} for n in range(100)])
    table.upsert([{"k": 5, "n": 1}, {"k": 500, "s": None, "n": 2}])
    copy(spark, "jobs", "two", **how)
    assert content(two).equals(content(table))
    with pytest.raises(AlreadyPresent, match="--existing"):
        copy(spark, "jobs", "two", **where)
    with pytest.raises(InvalidArgument, match="to itself"):
        copy(spark, "jobs", "jobs", **where)
    with pytest.raises(InvalidArgument, match="--checkpoint"):
        copy(spark, "jobs", "three", **where, follow=True)
    client.drop_table("two")
    with pytest.raises(NotFound, match="copy anew, with another checkpoint"):
        copy(spark, "jobs", "two", **how)
    assert "two" not in client.tables()
    copy(spark, "jobs", "two", **{**how, "checkpoint": str(tmp_path / "another")})
    assert content(client.table("two")).equals(content(table))


def test_backups_of_spark_and_of_one_process_are_one_format(spark, client, table, where, tmp_path):
    folder = str(tmp_path / "b")
    [full] = backup(spark, ["jobs"], folder, **where)
    table.delete([{"k": 5}])
    moment = client.now()
    table.upsert([{"k": 6, "n": -1}])
    [incremental] = backup(spark, ["jobs"], folder, **where)
    assert [e.kind for e in chains_of(tmp_path / "b", "jobs")[0].elements] == [
        "full",
        "incremental",
    ]
    for name, at in (("a", full.until), ("b", moment), ("c", incremental.until)):
        assert restore(spark, "jobs", folder, **where, name=name, at=at).name == name
        assert content(client.table(name)).equals(content(table, at=at))
    connection = Connection(where["masters"], ClientOptions())
    Restoring(connection, tmp_path / "b").restore("jobs", RestoreOptions(name="d"))
    connection.close()
    assert content(client.table("d")).equals(content(table))


def test_items_run_in_tasks_and_failed_ones_again(spark, tmp_path):
    def work(item: int) -> int:
        path = tmp_path / str(item)
        if not path.exists():
            path.touch()
            raise RuntimeError("the first attempt fails")
        return item * item

    assert run_in_tasks(spark, [3, 1, 2], work) == [9, 1, 4]
    assert run_in_tasks(spark, list(range(5)), str, at_once=2) == list("01234")
