"""Folder of bad lines: whose it is, and its files when an import is continued."""

import json

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument
from nyala.spark.jobs import bad_lines
from nyala.spark.jobs.file_import import ImportPlan, read_file
from nyala.spark.jobs.input_files import list_files

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def import_into(bad, source):
    """Read all files of a folder as the tasks of an import do; return file and number of each bad line."""
    files = tuple(list_files(str(source)))
    columns = (("k", "v"),) * len(files)
    plan = ImportPlan(files, columns, SCHEMA.serialize().to_pybytes(), str(bad), 9)
    for number in range(len(files)):
        list(read_file(plan, number))
    bad_lines.remove_others(str(bad), [bad_lines.file_name(n, f.path) for n, f in enumerate(files)])
    lines = [x for p in sorted(bad.glob("*.jsonl")) for x in p.read_text().splitlines()]
    assert bad_lines.count_lines(str(bad)) == len(lines)
    found = [json.loads(line) for line in lines]
    return [(f["file"].rpartition("/")[2], f["number"]) for f in found]


def test_folder_belongs_to_the_operation_that_has_begun_it(tmp_path):
    bad = tmp_path / "bad"
    assert bad_lines.checked_folder("", "one") == ""
    assert bad_lines.checked_folder(str(bad), "one") == str(bad)
    bad_lines.begin(str(bad), "one")
    (bad / "00000-a.csv.bad.jsonl").write_text("{}\n")
    assert bad_lines.checked_folder(str(bad), "one") == str(bad)
    bad_lines.begin(str(bad), "one")
    for other in ("two", ""):
        with pytest.raises(InvalidArgument, match="its files are not of this import"):
            bad_lines.checked_folder(str(bad), other)
    with pytest.raises(InvalidArgument, match="is not a folder"):
        bad_lines.checked_folder(str(bad / "00000-a.csv.bad.jsonl"), "one")


def test_folder_of_an_import_that_ended_before_it_noted_its_operation_is_empty(tmp_path):
    (tmp_path / "..operation.0123456789abcdef.tmp").write_text("o")
    assert bad_lines.checked_folder(str(tmp_path), "two") == str(tmp_path)
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(InvalidArgument, match="is not an empty folder"):
        bad_lines.checked_folder(str(tmp_path), "two")


def test_continued_import_has_each_bad_line_once_whatever_became_of_the_files(tmp_path):
    source, bad = tmp_path / "in", tmp_path / "bad"
    for folder in ("b", "c"):
        (source / folder).mkdir(parents=True)
        (source / folder / "x.csv").write_text("k,v\n1,a\nx,b\n3,c\ny,d\n")
    bad_lines.begin(str(bad), "one")
    assert import_into(bad, source) == [("x.csv", 3), ("x.csv", 5)] * 2
    assert import_into(bad, source) == [("x.csv", 3), ("x.csv", 5)] * 2
    (bad / ".00001-x.csv.bad.jsonl.0123456789abcdef.tmp").write_text("{")  # of a killed task
    (bad / "notes").write_text("of the user")
    (source / "a.csv").write_text("k,v\n1,a\n")
    (source / "b" / "x.csv").write_text("k,v\n1,a\n2,b\n")
    assert import_into(bad, source) == [("x.csv", 3), ("x.csv", 5)]
    assert sorted(p.name for p in bad.iterdir()) == [
        ".operation", "00002-x.csv.bad.jsonl", "notes",
    ]  # fmt: skip
