"""Files that are unusual, damaged or made to do harm: what an import reads of them, without Spark."""

import bz2
import gzip
import json
import lzma
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nyala.common.errors import InvalidArgument, NyalaError, SchemaMismatch
from nyala.spark.jobs import input_files, text_lines
from nyala.spark.jobs.file_import import CHECKED_FILES, ImportPlan, check_first_lines, read_file
from nyala.spark.jobs.input_files import check_columns, columns_in, in_parts, list_files, schema_of

TEXTS = pa.schema([("k", pa.int64()), ("s", pa.string())])
MONEY = pa.schema([("k", pa.int64()), ("d", pa.decimal128(20, 2))])
LARGE = b"x" * (10 << 20)
CSV = b"k,s\n1,a\n"
A, B = {"k": 1, "s": "a"}, {"k": 2, "s": "b"}


def imported(path, bad, schema=None):
    """Return the rows of a file, and number and error of each bad line.

    Args:
        path: of the file.
        bad: folder of bad lines.
        schema: of the table; None: it is created.
    """
    files = tuple(part for file in list_files(str(path)) for part in in_parts(file))
    table = schema_of(files[0]) if schema is None else schema
    check_columns(files, table, ["k"])
    columns = tuple(columns_in(f, table.names) for f in files)
    plan = ImportPlan(files, columns, table.serialize().to_pybytes(), str(bad), 9)
    rows = [row for n in range(len(files)) for b in read_file(plan, n) for row in b.to_pylist()]
    texts = [line for p in sorted(bad.iterdir()) for line in p.read_text().splitlines()]
    return rows, [(line["number"], line["error"]) for line in map(json.loads, texts)]


@pytest.fixture
def read(tmp_path):
    """Write a file, and import it."""
    (tmp_path / "bad").mkdir()

    def written(name, content, schema=None):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            pq.write_table(content, path)
        return imported(path, tmp_path / "bad", schema)

    return written


@pytest.mark.parametrize(
    ("name", "content", "rows", "bad"),
    [
        ("large.csv", b"k,s\n1," + LARGE + b"\n2,b\n", [B], [(2, "has 10485760 bytes, and")]),
        ("quoted.csv", b'k,s\n1,a\n3,"' + LARGE + b'"\n2,b', [A, B], [(3, "10485760 bytes, and")]),
        ("large.jsonl", b'{"k":1,"s":"' + LARGE + b'"}\n{"k":2,"s":"b"}\n', [B],
         [(1, "has 10485760 bytes, and a table takes 65536")]),
        ("zero.csv", b"k,s\n1,a\0b\n2,\0\n", [{"k": 1, "s": "a\0b"}, {"k": 2, "s": "\0"}], []),
        ("zero.jsonl", b'{"k":1,"s":"a"}\n{"k":3,"s":"a\0b"}\n\0\n', [A],
         [(2, "JSON parse error"), (3, "JSON parse error")]),
        ("escaped.jsonl", b'{"k":1,"s":"a\\u0000b"}\n', [{"k": 1, "s": "a\0b"}], []),
        ("crlf.csv", b'k,s\r\n1,a\r\n2,"b"\r\n', [A, B], []),
        ("crlf.jsonl", b'{"k":1,"s":"a"}\r\n\r\n{"k":2,"s":"b"}\r\n', [A, B], []),
        ("open.csv", b'k,s\n1,a\n2,"b\n', [A], [(3, "a quote is not closed")]),
        ("open end.csv", b'k,s\n1,a\n2,"b', [A], [(3, "a quote is not closed")]),
        ("twice.jsonl", b'{"k":1,"s":"a"}\n{"k":3,"k":2}\n', [A], [(2, "specified twice")]),
        ("nested.jsonl", b'{"k":1,"s":"a"}\n{"k":2,"s":{"x":1}}\n{"k":3,"s":[1]}\n{"k":4,"n":{}}\n', [A],
         [(2, "string to object"), (3, "string to array"), (4, "unexpected field")]),
        ("list.jsonl", b'[{"k":1,"s":"a"}]\n{"k":2,"s":"b"}\n', [B], [(1, "object to array")]),
        ("latin.csv", b"k,s\n1,a\n3,\xe9t\xe9\n2,b\n", [A, B],
         [(3, "is not UTF-8; if the whole file has another encoding, convert it: iconv")]),
        ("a 100%25 b:c#?.csv", CSV, [A], []),
        ("[a]*.csv", CSV, [A], []),
    ],
)  # fmt: skip
def test_text_files_are_read_line_by_line_and_a_bad_line_is_left_out(
    read, name, content, rows, bad
):
    found, errors = read(name, content, TEXTS)
    assert found == rows
    assert [number for number, _ in errors] == [number for number, _ in bad]
    for (_, error), (_, part) in zip(errors, bad, strict=True):
        assert part in error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mark.csv", b"\xef\xbb\xbf" + CSV, "begins with a byte order mark; remove it: sed"),
        ("mark.jsonl", b'\xef\xbb\xbf{"k":1}\n', "begins with a byte order mark; remove it: sed"),
        ("mac.csv", b"k,s\r1,a\r2,b\r", r"is 3 lines with the line break \\r.*tr '\\r' '\\n'"),
        ("mixed.csv", b"k,s\r1,a\n2,b\n", "is 2 lines with the line break"),
        ("twice.csv", b"k,s,k\n1,a,2\n", "has to name each column once"),
        ("zero.csv", b"k,s\0\n1,a\n", "is no text: it has zero bytes"),
        ("latin.csv", b"k,\xe9\n1,a\n", "first line: byte 0xe9 at position 2 is not UTF-8; .* iconv -f"),
        ("a.csv.gz", gzip.compress(CSV, mtime=0), "is compressed; unpack it first: gunzip"),
        ("gz.csv", gzip.compress(CSV, mtime=0), "is compressed; unpack it first: gunzip"),
        ("zst.csv", pa.compress(CSV, "zstd", asbytes=True), "unpack it first: unzstd"),
        ("a.json.zst", pa.compress(CSV, "zstd", asbytes=True), "unpack it first: unzstd"),
        ("bz2.csv", bz2.compress(CSV), "unpack it first: bunzip2"),
        ("xz.csv", lzma.compress(CSV), "unpack it first: unxz"),
        ("gz.parquet", gzip.compress(CSV, mtime=0), "unpack it first: gunzip"),
        ("text.parquet", CSV * 9, "cannot be read as parquet: Parquet magic bytes not found"),
        ("short.parquet", b"P", "cannot be read as parquet"),
        ("twice.parquet", pa.table([[1], [2]], names=["k", "k"]), "has several columns k; rename"),
        ("wide.parquet", pa.table({"k": [1], "d": pa.array([1], pa.decimal256(50, 2))}),
         r"'d' has the type decimal256\(50, 2\)"),
        ("list.parquet", pa.table({"k": [1], "d": [[1]]}), "'d' has the nested type list"),
    ],
)  # fmt: skip
def test_files_that_no_table_takes_are_refused_with_what_to_do(read, name, content, message):
    with pytest.raises(InvalidArgument, match=message):
        read(name, content)


def test_value_in_another_encoding_does_not_make_a_binary_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"k,s\n1,a\n3,\xe9\n")
    assert schema_of(list_files(str(path))[0]) == TEXTS


@pytest.mark.parametrize(
    "text", ['[{"k":1},\n{"k":2}]\n', '[\n {\n  "k": 1\n }\n]\n', '[{"k":1}]', "k,s\n1,a\n"]
)
def test_json_that_is_not_one_object_a_line_is_refused_with_the_command_that_converts_it(
    tmp_path, text
):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"cannot be read as json: .*one object .* jq -c"):
        schema_of(list_files(str(path))[0])


def test_columns_of_json_are_inferred_from_the_good_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"k":1,"s":"a"}\n{"k":2,\n[]\n7\n{"k":3}\n')
    assert schema_of(list_files(str(path))[0]) == TEXTS


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("{}.csv", CSV, b"k,s\n1,a\nx,b\n"),
        ("{}.csv", CSV, b"k,s\n1,a\n2,\xe9\n"),
        ("{}.csv", CSV, b"k,s\n1,a\n" + b"2,b\n" * 200_000 + b"3\n"),
        ("{}.jsonl", b'{"k":1}\n', b'{"k":1}\n{"k":2}\n{"k":"x"}\n'),
    ],
)
def test_bad_line_in_the_first_files_is_found_before_the_job_unless_it_has_a_folder(
    tmp_path, name, good, bad
):
    for number in range(CHECKED_FILES):
        (tmp_path / name.format(f"{number:02}")).write_bytes(good)
    (tmp_path / name.format("18")).write_bytes(bad)
    files = tuple(list_files(str(tmp_path)))
    schema = TEXTS.serialize().to_pybytes()
    plan = ImportPlan(files, tuple(columns_in(f, TEXTS.names) for f in files), schema, "", 9)
    with pytest.raises(InvalidArgument, match=r"18.*: line (3|200003): .* with --bad FOLDER"):
        check_first_lines(plan)
    check_first_lines(replace(plan, bad=str(tmp_path)))
    (tmp_path / name.format("18")).write_bytes(good)
    check_first_lines(plan)


DAY, TIME = date(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("column", "stored", "value"),
    [
        (pa.array(["a"]).dictionary_encode(), pa.string(), "a"),
        (pa.array([7]).dictionary_encode(), pa.int64(), 7),
        (pa.array(["a"], pa.large_string()), pa.string(), "a"),
        (pa.array([b"a"], pa.large_binary()), pa.binary(), b"a"),
        (pa.array(["a"], pa.string_view()), pa.string(), "a"),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), b"ab"),
        (pa.array([Decimal("1.5")], pa.decimal256(20, 2)), pa.decimal128(20, 2), Decimal("1.50")),
        (pa.array([Decimal("1.5")], pa.decimal32(5, 2)), pa.decimal128(5, 2), Decimal("1.50")),
        (pa.array([TIME], pa.timestamp("ns")), pa.timestamp("us"), TIME),
        (pa.array([TIME], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC"), TIME.replace(tzinfo=UTC)),
        (pa.array([DAY], pa.date64()), pa.date32(), DAY),
        (pa.array([255], pa.uint8()), pa.int16(), 255),
        (pa.array([1.5], pa.float16()), pa.float32(), 1.5),
        (pa.array([None], pa.null()), pa.string(), None),
    ],
    ids=lambda it: str(it.type) if isinstance(it, pa.Array) else None,
)  # fmt: skip
def test_columns_of_parquet_become_the_types_of_tables(read, column, stored, value):
    content = pa.table({"k": [1], "d": column})
    assert read("a.parquet", content) == ([{"k": 1, "d": value}], [])
    schema = pa.schema([("k", pa.int64()), ("d", stored)])
    assert read("b.parquet", content, schema) == ([{"k": 1, "d": value}], [])


NUMBERS = pa.schema([pa.field("k", pa.int32(), nullable=False)])


@pytest.mark.parametrize(
    ("content", "schema", "error", "message"),
    [
        (pa.table({"k": [1, 2], "d": pa.array([1000, 2001], pa.timestamp("ns"))}), None, SchemaMismatch,
         "column 'd', row 1: 2001 does not convert without loss"),
        (pa.table({"k": [1], "d": pa.array([Decimal("1e40")], pa.decimal256(50, 2))}), MONEY, SchemaMismatch,
         "column 'd', row 0: .* does not convert without loss"),
        (pa.table({"k": [1, 2**40]}), NUMBERS, SchemaMismatch, "column 'k', row 1: 1099511627776 does not"),
        (pa.table({"k": [1, None]}), NUMBERS, InvalidArgument, "column 'k', row 1: there is no value"),
        (pa.table({"k": ["1"]}), NUMBERS, SchemaMismatch, "column 'k' has type string, but the table stores"),
    ],
)  # fmt: skip
def test_value_of_parquet_that_the_table_does_not_take_is_named(
    read, content, schema, error, message
):
    with pytest.raises(error, match=message) as refused:
        read("a.parquet", content, schema)
    assert "a.parquet" in refused.value.message


@pytest.mark.parametrize("rows_of_group", [1, 7, 1000])
@pytest.mark.parametrize("size", [50, 300, 10_000])
def test_each_row_group_is_in_one_part_of_its_file(
    monkeypatch, read, tmp_path, size, rows_of_group
):
    monkeypatch.setattr(input_files, "PART_BYTES", size)
    content = pa.table({"k": range(100), "s": [f"{n}" for n in range(100)]})
    pq.write_table(content, tmp_path / "a.parquet", row_group_size=rows_of_group)
    found, _ = read("a.parquet", (tmp_path / "a.parquet").read_bytes())
    assert found == content.to_pylist()
    assert len(in_parts(list_files(str(tmp_path / "a.parquet"))[0])) > 1 or size == 10_000


def test_row_that_is_not_valid_is_named_by_its_number_in_the_whole_file(
    monkeypatch, read, tmp_path
):
    monkeypatch.setattr(input_files, "PART_BYTES", 200)
    content = pa.table({"k": [*range(50), None, *range(50)]})
    pq.write_table(content, tmp_path / "a.parquet", row_group_size=10)
    with pytest.raises(InvalidArgument, match="column 'k', row 50: there is no value"):
        read("a.parquet", (tmp_path / "a.parquet").read_bytes(), NUMBERS)


def test_damaged_page_of_parquet_is_an_error_of_the_file(read, tmp_path):
    content = pa.table({"k": range(10_000), "s": [f"{n:032}" for n in range(10_000)]})
    pq.write_table(content, tmp_path / "whole.parquet", compression="zstd")
    damaged = bytearray((tmp_path / "whole.parquet").read_bytes())
    half = len(damaged) // 2
    damaged[half : half + 64] = bytes(64)
    with pytest.raises(NyalaError, match=r"a\.parquet cannot be read after row 0"):
        read("a.parquet", bytes(damaged))


def test_folder_is_read_without_what_spark_skips(tmp_path):
    for name in (
        "_SUCCESS", ".hidden.csv", "_temporary/0/x.csv", ".old/x.csv", ".a.csv.crc", "_delta_log/0.json",
        "day=1/y.csv", "_x=1/z.csv", "a b.csv",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(CSV)
    found = [f.path.removeprefix(f"{tmp_path}/") for f in list_files(str(tmp_path))]
    assert found == ["_x=1/z.csv", "a b.csv", "day=1/y.csv"]


@pytest.mark.parametrize("end", [b"\n", b""])
def test_line_without_end_is_left_out_and_not_kept_in_memory(monkeypatch, read, end):
    monkeypatch.setattr(text_lines, "LINE_BYTES", 1000)
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 1500)
    lines = [b"k,s", b"1,a", b"3," + b"x" * 5_000, b"2,b", b"4," + b"y" * 5_000 + end]
    rows, bad = read("a.csv", b"\n".join(lines), TEXTS)
    assert rows == [A, B]
    assert bad == [(n, "the line has more than 1000 bytes") for n in (3, 5)]
