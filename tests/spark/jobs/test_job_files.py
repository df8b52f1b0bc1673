"""Files of imports and exports without Spark: bad lines and their numbers, formats, what is refused."""

import contextlib
import io
import json
import math
import os
import random
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException, StreamingQueryException

from nyala.backup.folders import whole_file
from nyala.common.errors import AlreadyPresent, InvalidArgument, Unavailable
from nyala.spark.jobs import commands
from nyala.spark.jobs.commands import parse
from nyala.spark.jobs.file_export import json_lines, partial_folder, write_columns
from nyala.spark.jobs.file_import import ImportPlan, read_file
from nyala.spark.jobs.input_files import check_columns, list_files, schema_of
from nyala.spark.jobs.text_lines import LineRange, parser_of, read_lines

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("x", pa.float64()), ("d", pa.date32())])


def read(text: bytes, kind: str, schema=SCHEMA, header=0, within=None):
    """Return rows and bad lines of a text, or of those of its lines that begin in a range of bytes."""
    parse_lines = parser_of(kind, schema.names, schema, ",")
    start, end = within or (0, len(text))
    lines = LineRange(io.BytesIO(text), start, end, header)
    blocks = list(read_lines(lines, parse_lines))
    rows = [row for table, _ in blocks if table is not None for row in table.to_pylist()]
    return rows, [(bad.number, bad.text) for _, found in blocks for bad in found]


def test_bad_lines_of_csv_are_found_with_their_numbers():
    lines = [f"{n},s{n},{n / 2},2026-01-01".encode() for n in range(1000)]
    wrong = {7: b"x,a,1,2026-01-01", 8: b"1,2", 500: b"1,\xff,1,2026-01-01", 999: b'1,"open,1,'}
    for number, line in wrong.items():
        lines[number] = line
    rows, bad = read(b"\n".join([b"header", *lines]), "csv", header=1)
    assert [number for number, _ in bad] == [n + 2 for n in wrong]
    assert bad[2][1] == "1,\\xff,1,2026-01-01"
    assert [r["k"] for r in rows] == [n for n in range(1000) if n not in wrong]


def test_bad_lines_of_json_are_found_with_their_numbers():
    good = b'{"k": 1, "s": "a", "x": NaN, "d": "2026-01-01"}'
    lines = [
        good,
        b"",
        b"{",
        good,
        b'{"k": 1, "other": 2}',
        b'{"k": "text"}',
        b'{"k": 2}',
        b'{"k":3,"d":"x"}',
    ]
    rows, bad = read(b"\n".join(lines), "json")
    assert [number for number, _ in bad] == [3, 5, 6, 8]
    assert [r["k"] for r in rows] == [1, 1, 2]
    assert math.isnan(rows[0]["x"])


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("seed", range(4))
def test_each_line_is_in_one_part_of_its_file_and_keeps_its_number(kind, end, seed):
    chance = random.Random(seed)
    schema, lines, wrong = pa.schema([("k", pa.int64()), ("s", pa.string())]), [], []
    for n in range(60):
        if chance.random() < 0.1:
            lines.append(b"")
        elif chance.random() < 0.2:
            lines.append(b"bad" * chance.randrange(1, 9))
            wrong.append(len(lines) + 1)
        else:
            text = "é" * chance.randrange(9)
            line = f"{n},{text}" if kind == "csv" else json.dumps({"k": n, "s": text})
            lines.append(line.encode())
    whole = b"\n".join([b"k,s", *lines]) + end
    header = 1 if kind == "csv" else 0
    if kind == "json":
        whole = b"\n" + whole[4:]
    cuts = sorted(chance.choices(range(len(whole)), k=12))
    parts = [read(whole, kind, schema, header, part) for part in pairwise([0, *cuts, len(whole)])]
    rows, bad = read(whole, kind, schema, header)
    assert [number for number, _ in bad] == wrong
    assert [row for found, _ in parts for row in found] == rows
    assert [line for _, found in parts for line in found] == bad


def test_an_open_quote_takes_no_other_lines():
    text = b'1,"a,,\n2,b,,\n3,"c"",,\n4,"d",,\r\n5,"e'
    rows, bad = read(text, "csv")
    assert ([r["k"] for r in rows], [number for number, _ in bad]) == ([2, 4], [1, 3, 5])
    two = pa.schema([("k", pa.int64()), ("s", pa.string())])
    rows, bad = read(b'1,"abc\n2,x\n3,def"\n4,y\n', "csv", two)
    assert ([r["k"] for r in rows], [number for number, _ in bad]) == ([2, 3, 4], [1])
    rows, bad = read(b'1,a\n\n2,"b', "csv", two)
    assert ([r["k"] for r in rows], [number for number, _ in bad]) == ([1], [3])


def test_a_line_with_two_rows_is_bad():
    two = pa.schema([("k", pa.int64()), ("s", pa.string())])
    rows, bad = read(b"1,a\r2,b\n3,c\r\n", "csv", two)
    assert ([r["k"] for r in rows], [number for number, _ in bad]) == ([3], [1])
    rows, bad = read(b'{"k":1}{"k":2}\n\n{"k":3}\n', "json", two)
    assert ([r["k"] for r in rows], [number for number, _ in bad]) == ([3], [1])
    rows, bad = read(b'{"k":3}\n{"k":\n4}\n', "json", two)
    assert ([r["k"] for r in rows], [number for number, _ in bad]) == ([3], [2, 3])


def test_a_line_without_a_value_that_is_needed_is_bad():
    needed = pa.schema([pa.field("k", pa.int64(), nullable=False), ("s", pa.string())])
    assert read(b"1,a\n,b\n", "csv", needed)[1] == [(2, ",b")]
    assert read(b'{"k":1}\n{"s":"b"}\n{"k":null}\n', "json", needed)[1] == [
        (2, '{"s":"b"}'), (3, '{"k":null}'),
    ]  # fmt: skip


def test_times_have_a_zone_if_their_column_has_one():
    times = pa.schema(
        [("k", pa.int64()), ("n", pa.timestamp("us")), ("z", pa.timestamp("us", "UTC"))]
    )
    values = ["2026-01-01T02:00:00", "2026-01-01T02:00:00+02:00", "2026-01-01T02:00:00Z"]
    csv = "".join(f"1,{v},\n" for v in values) + "".join(f"2,,{v}\n" for v in values)
    lines = [{"k": 1, "n": v} for v in values] + [{"k": 2, "z": v} for v in values]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for content, kind in ((csv, "csv"), (text, "json")):
        rows, bad = read(content.encode(), kind, times)
        assert [number for number, _ in bad] == [2, 3, 4]
        assert [str(t) for r in rows for t in (r["n"], r["z"]) if t is not None] == [
            "2026-01-01 02:00:00", "2026-01-01 00:00:00+00:00", "2026-01-01 02:00:00+00:00",
        ]  # fmt: skip


def test_a_file_that_was_changed_is_not_imported(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("k,s\n1,x\n")
    [file] = list_files(str(path))
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    plan = ImportPlan((file,), (("k", "s"),), schema.serialize().to_pybytes(), "", 0)
    assert [b.to_pylist() for b in read_file(plan, 0)] == [[{"k": 1, "s": "x"}]]
    path.write_text("s,k\n1,2\n")
    with pytest.raises(InvalidArgument, match="was changed while it was imported"):
        list(read_file(plan, 0))
    path.write_text("k,s\n1,x\n")
    rows = read_file(plan, 0)
    next(rows)
    with path.open("a") as out:
        out.write("2,y\n")
    with pytest.raises(InvalidArgument, match="was changed while it was imported"):
        list(rows)


def test_exported_lines_are_read_as_the_same_rows():
    kinds = {
        "t": pa.timestamp("us", "UTC"), "u": pa.timestamp("us"), "d": pa.date32(), "x": pa.float64(),
        "m": pa.decimal128(38, 10), "s": pa.string(), "b": pa.bool_(), "i": pa.int8(), "f": pa.float32(),
    }  # fmt: skip
    numbers = [0, 1, -5, 86_400_000_001, None]
    columns = {
        "t": pa.array(numbers, kinds["t"]), "u": pa.array(numbers, kinds["u"]),
        "d": pa.array([0, 1, -5, 20_000, None], pa.date32()),
        "x": pa.array([0.1, float("nan"), float("-inf"), 1e-310, None]),
        "m": pa.array(["0.1", "-1", "1e27", "3", None]).cast(kinds["m"]),
        "s": pa.array(["", "é\n", '"', ",", None]), "b": pa.array([True, False, True, False, None]),
        "i": pa.array([-128, 127, 0, 1, None], pa.int8()),
        "f": pa.array([0.1, -0.0, 3, 1e-40, None], pa.float32()),
    }  # fmt: skip
    batch = pa.RecordBatch.from_pydict(columns)
    rows, bad = read(b"".join(json_lines(batch)), "json", batch.schema)
    assert (repr(rows), bad) == (repr(batch.to_pylist()), [])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_file_without_rows_has_the_columns(tmp_path, kind):
    path = tmp_path / f"part-00000.{kind}"
    write_columns(path, SCHEMA, kind)
    files = list_files(str(tmp_path))
    check_columns(files, SCHEMA, ["k"])
    plan = ImportPlan((files[0],), (tuple(SCHEMA.names),), SCHEMA.serialize().to_pybytes(), "", 0)
    assert list(read_file(plan, 0)) == []


def test_files_that_cannot_be_imported_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").write_text("k,s\n1,x\n")
    (tmp_path / "utf16.csv").write_bytes("k,s\n".encode("utf-16"))
    (tmp_path / "twice.csv").write_text("k,k\n")
    (tmp_path / "a.txt").write_text("k\n")
    (tmp_path / "zero.csv").write_text("")
    nested = pa.table({"k": [1], "tags": [["a"]], "at": [{"x": 1}]})
    pq.write_table(nested, tmp_path / "nested.parquet")
    for path, message in {
        "none.csv": "no such file", "empty": "no files", "utf16.csv": "iconv", "twice.csv": "once",
        "a.txt": "--format", "zero.csv": "empty files", "*.csv": "UTF-16|once",
    }.items():  # fmt: skip
        with pytest.raises(InvalidArgument, match=message):
            list_files(str(tmp_path / path))
    with pytest.raises(
        InvalidArgument, match=r"'tags' has the nested type list.*'at' has the nested"
    ):
        schema_of(list_files(str(tmp_path / "nested.parquet"))[0])
    for delimiter in ("é", '"', "\n", ";;"):
        with pytest.raises(InvalidArgument, match="one ASCII character"):
            list_files(str(tmp_path / "a.csv"), "", delimiter)
    [file] = list_files(str(tmp_path / "a.csv"))
    with pytest.raises(InvalidArgument, match="does not have: s"):
        check_columns([file], pa.schema([SCHEMA.field("k")]), ["k"])
    with pytest.raises(InvalidArgument, match="lacks columns of the primary key: id"):
        check_columns([file], SCHEMA.append(pa.field("id", pa.int64())), ["id"])
    pq.write_table(pa.table({"k": [1]}), tmp_path / "empty" / "b.parquet")
    (tmp_path / "empty" / "c.csv").write_text("k\n1\n")
    with pytest.raises(InvalidArgument, match="several formats"):
        list_files(str(tmp_path / "empty"))


def test_file_whose_name_is_no_text_is_refused_before_the_job(tmp_path):
    (tmp_path / "a.csv").write_text("k\n1\n")
    (tmp_path / os.fsdecode(b"b\xff.csv")).write_text("k\n2\n")
    with pytest.raises(InvalidArgument, match="is no UTF-8 text; rename the file") as refused:
        list_files(str(tmp_path))
    assert refused.value.message.isascii(), "it can be printed"
    assert len(list_files(str(tmp_path / "a*.csv"))) == 1


def test_two_exports_do_not_write_to_one_folder(tmp_path):
    target = tmp_path / "out"
    with partial_folder(target) as first:
        (first / "part-0").write_text("first")
        with pytest.raises(Unavailable, match="another export writes to"), partial_folder(target):
            pass
        assert (first / "part-0").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    with pytest.raises(AlreadyPresent), partial_folder(target):
        pass
    early = tmp_path / "early"
    (tmp_path / "early.partial").mkdir()
    for name in ("part-0", ".part-1.5e.tmp"):
        (tmp_path / "early.partial" / name).write_text("begun")
    with partial_folder(early) as folder:
        (folder / "part-2").write_text("whole")
        (folder / ".part-2.7c.tmp").write_text("of a try that was killed")
    assert [p.name for p in early.iterdir()] == ["part-2"]


def test_task_of_an_export_whose_driver_was_killed_writes_nothing_to_the_next_one(tmp_path):
    target = tmp_path / "out"

    def write_late(path, text):
        with whole_file(path) as file:
            file.write(text)

    with contextlib.suppress(InterruptedError), partial_folder(target) as first:
        write_late(first / "part-0", b"old")
        raise InterruptedError
    with partial_folder(target) as folder:
        with pytest.raises(FileNotFoundError):
            write_late(first / "part-0", b"old")
        write_late(folder / "part-1", b"new")
    with pytest.raises(FileNotFoundError):
        write_late(folder / "part-2", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert [p.name for p in target.iterdir()] == ["part-1"]


def test_export_removes_no_files_of_others(tmp_path):
    """Another user may have put a link to a folder where the files of an export would be written."""
    own, folder = tmp_path / "own", tmp_path / "out.partial"
    own.mkdir()
    (own / "letter").write_text("dear")
    folder.symlink_to(own)
    with (
        pytest.raises(InvalidArgument, match="is a link; an export"),
        partial_folder(tmp_path / "out"),
    ):
        pass
    folder.unlink()
    own.rename(folder)
    with (
        pytest.raises(InvalidArgument, match="has 'letter', which"),
        partial_folder(tmp_path / "out"),
    ):
        pass
    assert (folder / "letter").read_text() == "dear"
    (folder / "letter").unlink()
    (folder / "part-0").mkdir()
    with (
        pytest.raises(InvalidArgument, match="has 'part-0', which"),
        partial_folder(tmp_path / "out"),
    ):
        pass
    assert not (tmp_path / "out").exists()


def test_columns_are_inferred(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("k,price,day,at,flag,note\n1,1.5,2026-01-01,2026-01-01T00:00:00Z,true,\n")
    kinds = [str(f.type) for f in schema_of(list_files(str(path))[0])]
    assert kinds == ["int64", "double", "date32[day]", "timestamp[us, tz=UTC]", "bool", "string"]
    lines = tmp_path / "b.jsonl"
    lines.write_text(json.dumps({"k": 1, "s": "x", "none": None}) + "\n")
    assert [str(f.type) for f in schema_of(list_files(str(lines))[0])] == [
        "int64",
        "string",
        "string",
    ]
    lines.write_text('{"n": "2026-01-01T00:00:00", "z": "2026-01-01T00:00:00+02:00"}\n')
    kinds = [str(f.type) for f in schema_of(list_files(str(lines))[0])]
    assert kinds == ["timestamp[us]", "timestamp[us, tz=UTC]"]


def test_command_lines_are_checked():
    known = parse("import", ["a.csv", "t", "--key", "k, l", "--no-atomic"], "x", "m:1")
    assert (known["key"], known["atomic"], known["masters"]) == (["k", "l"], False, "m:1")
    assert parse("checksum", ["t", "--at", "1970-01-01T00:00:01+00:00"], "x", "m:1")["at"] > 0
    with pytest.raises(InvalidArgument, match=r"did you mean --format\?"):
        parse("import", ["a.csv", "t", "--fromat", "csv"], "x", "m:1")
    with pytest.raises(InvalidArgument, match="did you mean 'import'"):
        parse("improt", [], "x", "m:1")
    with pytest.raises(InvalidArgument, match="required: table"):
        parse("import", ["a.csv"], "x", "m:1")
    with pytest.raises(InvalidArgument, match="name the masters"):
        parse("checksum", ["t"], "x", "")


def test_an_error_of_a_task_is_one_message(monkeypatch, capsys):
    trace = "thrown from the worker:\nTraceback (most recent call last):\n  File x\n"

    def ended(text):
        def run(name, arguments, session):
            raise PythonException(trace + text)

        monkeypatch.setattr(commands, "run", run)
        return commands.main(["checksum", "t"], "x", "m:1", lambda: None)

    for text, status, shown in (
        ("nyala.common.errors.InvalidArgument: a.csv: line 2: [X]\n", 2, "a.csv: line 2: [X]"),
        ("nyala.client.results.RowErrors: 1 of 2 rows [Y]", 1, "1 of 2 rows [Y]"),
        (
            "OSError: [Errno 28] No space left on device\n",
            1,
            "No space left on device; fix that, and run the job again",
        ),
        (
            "PermissionError: [Errno 13] Permission denied: '/a'\n",
            1,
            "Permission denied: '/a'; fix that, and run the job again",
        ),
    ):
        assert ended(text) == status
        assert capsys.readouterr().err == f"nyala: a task failed: {shown}\n"
    with pytest.raises(PythonException, match="other"):
        ended("ValueError: other")


def test_error_of_a_stream_is_shown_without_its_traceback(monkeypatch, capsys):
    def run(*_):
        trace = "[STREAM_FAILED] Query terminated\n  File x\n"
        error = "nyala.common.errors.InvalidArgument: stream 'a' [Z]\n"
        raise StreamingQueryException(f"{trace}{error} SQLSTATE: 38000")

    monkeypatch.setattr(commands, "run", run)
    assert commands.main(["checksum", "t"], "x", "m:1", lambda: None) == 2
    assert capsys.readouterr().err == "nyala: the query failed: stream 'a' [Z]\n"


@pytest.mark.parametrize("name", commands.JOBS)
def test_interrupted_job_ends_with_130_and_says_what_stays(monkeypatch, capsys, name):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "parse", lambda *_: {})
    monkeypatch.setattr(commands, "run", interrupted)
    assert commands.main([name, "t"], "x", "m:1", lambda: None) == 130
    shown = capsys.readouterr().err
    assert shown == f"nyala: interrupted; {commands.INTERRUPTED_JOBS[name]}\n"
    assert commands.main([name, "t", "--standby"], "x", "m:1", lambda: None) == 130
    assert capsys.readouterr().err == f"nyala: interrupted; {commands.STANDBY_GOES_ON}\n"


class StoppingSession:
    """A session that the user interrupts while it stops."""

    def stop(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("error", "status"), [(None, 0), (KeyboardInterrupt, 130)])
def test_interrupt_while_the_session_stops_changes_no_outcome(monkeypatch, capsys, error, status):
    def job(*_, **__):
        if error is not None:
            raise error
        return {"rows": 7}

    monkeypatch.setattr(commands, "JOBS", {**commands.JOBS, "checksum": job})
    monkeypatch.setattr(commands, "parse", lambda *_: {"standby": False})
    assert commands.main(["checksum", "t"], "x", "m:1", StoppingSession) == status
    out, err = capsys.readouterr()
    assert out == ("" if error else '{"rows": 7}\n')
    assert ("interrupted" in err) == (error is not None)
