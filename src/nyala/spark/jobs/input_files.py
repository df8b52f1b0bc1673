"""Files of an import: their list, their format, their columns; what cannot be imported is refused first."""

import glob
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.json as pjson
import pyarrow.parquet as pq

from nyala.common.errors import InvalidArgument
from nyala.common.schema import check_column_name
from nyala.common.types import plain_type, type_name
from nyala.common.values.casting import check_types
from nyala.spark.jobs.text_lines import (
    ARROW_BYTES,
    LINE_BYTES,
    check_compressed,
    check_encoding,
    header_of,
)

FORMATS = ("csv", "json", "parquet")
SAMPLE_BYTES = ARROW_BYTES
"""Bytes at the beginning of the first file from which column types are inferred."""
_ENDINGS = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
}  # fmt: skip
PART_BYTES = 128 << 20
"""Approximate bytes of a file that one task reads."""
MAX_DIGITS = 38
"""Maximum precision of a decimal."""
_WIDER = {
    pa.float16(): pa.float32(), pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
    pa.null(): pa.string(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file, or a part of one.

    Attributes:
        path: absolute.
        kind: its format, of FORMATS.
        bytes: size.
        header: names of the fields of CSV, in the order of the file.
        delimiter: between fields of CSV.
        start: first byte of the part that a task reads: the lines, or row groups, that begin in it.
        end: byte after its last one.
    """

    path: str
    kind: str
    bytes: int
    header: tuple[str, ...] = ()
    delimiter: str = ","
    start: int = 0
    end: int = 0


def list_files(path: str, format: str = "", delimiter: str = ",") -> list[InputFile]:
    """Return the files that a path names: a file, all files of a folder, or a pattern.

    Args:
        path: of a file or a folder, or a pattern such as "data/*.csv". Names that begin with "." or "_" are
            skipped in folders, with what is in folders of such names; "_x=1" is a partition, and is not.
        format: of all files; empty: by their endings.
        delimiter: between fields of CSV.

    Raises:
        InvalidArgument: no such file, an empty folder, an unknown or mixed format, a wrong encoding.
    """
    if format and format not in FORMATS:
        raise InvalidArgument(f"format {format!r}: write one of {', '.join(FORMATS)}")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise InvalidArgument(
            f"delimiter {delimiter!r}: one ASCII character that is no quote and no line break"
        )
    found = _paths(path)
    files = [_file(p, format, delimiter) for p in found if p.stat().st_size]
    if not files:
        raise InvalidArgument(f"{path} has empty files only; name files with rows")
    kinds = {f.kind for f in files}
    if len(kinds) > 1:
        raise InvalidArgument(
            f"{path} has files of several formats ({', '.join(sorted(kinds))}); import them one by one, with "
            "a pattern such as '*.csv'"
        )
    return files


def _paths(path: str) -> list[Path]:
    named = Path(path)
    if named.is_dir():
        found = sorted(
            p
            for p in named.rglob("*")
            if p.is_file() and not any(map(_is_hidden, p.relative_to(named).parts))
        )
        if not found:
            raise InvalidArgument(f"the folder {path} has no files; name another one")
        return found
    found = [named] if named.is_file() else sorted(Path(p) for p in glob.glob(path, recursive=True))
    found = [p for p in found if p.is_file()]
    if not found:
        raise InvalidArgument(f"{path}: there is no such file; check the path")
    return found


def _is_hidden(name: str) -> bool:
    """Return whether Spark skips a name in a folder of data, such as _SUCCESS, _temporary and .x.crc."""
    return name[0] == "." or (name[0] == "_" and "=" not in name)


def _file(path: Path, format: str, delimiter: str) -> InputFile:
    try:
        str(path).encode()
    except (
        UnicodeEncodeError
    ) as err:  # Spark cannot pass on an error with this name, nor a report of bad lines
        raise InvalidArgument(
            f"the name of file {str(path)!r} is no UTF-8 text; rename the file, or name a pattern without it"
        ) from err
    with path.open("rb") as file:
        start = file.readline(SAMPLE_BYTES)
    check_compressed(str(path), start)
    kind = format or _ENDINGS.get(path.suffix.lower(), "")
    if not kind:
        raise InvalidArgument(
            f"{path}: its ending does not tell its format; give --format, one of {', '.join(FORMATS)}"
        )
    header: list[str] = []
    if kind != "parquet":
        check_encoding(str(path), start)
        header = header_of(str(path), start, delimiter) if kind == "csv" else []
    size = path.stat().st_size
    return InputFile(str(path.absolute()), kind, size, tuple(header), delimiter, 0, size)


def in_parts(file: InputFile) -> list[InputFile]:
    """Return the parts of a file, each of which is for one task: about `PART_BYTES` of it."""
    count = -(-file.bytes // PART_BYTES)
    ends = [file.bytes * (n + 1) // count for n in range(count)]
    return [replace(file, start=a, end=b) for a, b in pairwise([0, *ends])]


def schema_of(file: InputFile) -> pa.Schema:
    """Return the columns of a file, with types that a table can have; text files are sampled.

    Raises:
        InvalidArgument: nested or unsupported types, with their columns; a file that cannot be read.
    """
    try:
        found = _schema(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as err:
        hint = (
            "one object is read from a line, and an array becomes such lines by: jq -c '.[]'"
            if file.kind == "json"
            else "check --format and --delimiter"
        )
        raise InvalidArgument(f"{file.path} cannot be read as {file.kind}: {err}; {hint}") from err
    fields, problems = [], []
    for field in found:
        kind = _stored(field.type)
        try:
            check_column_name(field.name)
            type_name(kind)
        except InvalidArgument:
            nested = "nested " if pa.types.is_nested(field.type) else ""
            problems.append(f"column {field.name!r} has the {nested}type {field.type}")
        fields.append(pa.field(field.name, kind))
    if problems:
        raise InvalidArgument(
            f"{file.path}: {'; '.join(problems)}. A table has columns of simple types with names that do not "
            "begin with '_': write each part of a nested value to a column of its own, or the whole as text, "
            "and cast other values to a type that tables have"
        )
    return pa.schema(fields)


def _schema(file: InputFile) -> pa.Schema:
    if file.kind == "parquet":
        return _parquet_schema(file)
    with open(file.path, "rb") as raw:
        sample = raw.read(SAMPLE_BYTES)
        sample += raw.readline(LINE_BYTES)
    block = max(ARROW_BYTES, len(sample) + 1)
    if file.kind == "csv":
        read = pcsv.ReadOptions(block_size=block, use_threads=False)
        parse = pcsv.ParseOptions(delimiter=file.delimiter, invalid_row_handler=lambda row: "skip")
        options = pcsv.ConvertOptions(null_values=[""], strings_can_be_null=True)
        columns = pcsv.read_csv(io.BytesIO(sample), read, parse, options).schema
        texts = [f.with_type(pa.string()) if pa.types.is_binary(f.type) else f for f in columns]
        return pa.schema(texts)  # Arrow takes a column with a value that is not UTF-8 for bytes
    blocks = pjson.ReadOptions(block_size=block, use_threads=False)
    try:
        found: pa.Schema = pjson.read_json(io.BytesIO(sample), blocks).schema
    except pa.ArrowInvalid:
        sample = _objects(sample)
        if not sample:
            raise
        found = pjson.read_json(io.BytesIO(sample), blocks).schema
    times = pa.schema(
        [pa.field(f.name, pa.string()) for f in found if pa.types.is_timestamp(f.type)]
    )
    texts = pjson.read_json(io.BytesIO(sample), blocks, pjson.ParseOptions(explicit_schema=times))
    for field in times:  # Arrow drops the zone of a time
        try:
            pc.cast(texts.column(field.name), pa.timestamp("us"))
        except pa.ArrowInvalid:
            zoned = field.with_type(pa.timestamp("us", "UTC"))
            found = found.set(found.get_field_index(field.name), zoned)
    return found


def _objects(sample: bytes) -> bytes:
    """Return the lines that are JSON objects."""
    kept = []
    for line in sample.split(b"\n"):
        with suppress(ValueError, RecursionError):
            if isinstance(json.loads(line), dict):
                kept.append(line)
    return b"\n".join(kept)


def _parquet_schema(file: InputFile) -> pa.Schema:
    """Return the columns of a Parquet file.

    Raises:
        InvalidArgument: it cannot be read, or has two columns of one name.
    """
    try:
        found = pq.read_schema(file.path)
    except (pa.ArrowException, OSError) as err:
        raise InvalidArgument(
            f"{file.path} cannot be read as parquet: {err}; check its format"
        ) from err
    twice = sorted({n for n in found.names if found.names.count(n) > 1})
    if twice:
        raise InvalidArgument(
            f"{file.path} has several columns {', '.join(twice[:20])}; rename them, so that each name "
            "is there once"
        )
    return found


def _stored(kind: pa.DataType) -> pa.DataType:
    plain = plain_type(kind)
    if pa.types.is_timestamp(plain):
        return pa.timestamp("us", "UTC" if plain.tz else None)
    if pa.types.is_date64(plain):
        return pa.date32()
    if pa.types.is_decimal(plain) and plain.precision <= MAX_DIGITS:
        return pa.decimal128(plain.precision, plain.scale)
    if pa.types.is_fixed_size_binary(plain) and not pa.types.is_decimal(plain):
        return pa.binary()
    return _WIDER.get(plain, plain)


@contextmanager
def unchanged(file: InputFile, raw: BinaryIO) -> Iterator[None]:
    """Check that a file is the one that was listed, and is not changed while it is read in the block.

    The time of its change is not compared with that of the list: nodes may have copies of their own.

    Args:
        file: as it was listed.
        raw: the same, opened.

    Raises:
        InvalidArgument: it was changed.
    """
    before = os.fstat(raw.fileno())
    start = raw.readline(SAMPLE_BYTES) if file.kind == "csv" else b""
    raw.seek(0)
    same = before.st_size == file.bytes and (
        file.kind != "csv" or tuple(header_of(file.path, start, file.delimiter)) == file.header
    )
    if same:
        yield
        after = os.fstat(raw.fileno())
        same = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    if not same:
        raise InvalidArgument(
            f"{file.path} was changed while it was imported; run the job again when it is complete"
        )


def columns_in(file: InputFile, columns: Sequence[str]) -> tuple[str, ...]:
    """Return those of some columns that a file has, in their order; JSON lines can have all.

    Args:
        file: the file.
        columns: names.
    """
    if file.kind == "json":
        return tuple(columns)
    names = file.header or _parquet_schema(file).names
    return tuple(c for c in columns if c in names)


def check_columns(files: Sequence[InputFile], columns: pa.Schema, keys: Sequence[str]) -> None:
    """Refuse files whose columns are not those of a table.

    Args:
        files: to import.
        columns: of the table.
        keys: of its primary key.

    Raises:
        InvalidArgument: names the file, and the columns that it lacks or that are unknown.
        SchemaMismatch: a Parquet file has a column of a type that never converts to that of the table.
    """
    for file in files:
        if file.kind == "json":
            continue  # each line has fields of its own
        found = None if file.header else _parquet_schema(file)
        names = file.header if found is None else found.names
        unknown = [n for n in names if n not in columns.names]
        lacking = [k for k in keys if k not in names]
        if unknown:
            raise InvalidArgument(
                f"{file.path} has columns that the table does not have: {', '.join(unknown[:20])}; the table "
                f"has: {', '.join(columns.names[:20])}. Rename them in the file, or add them to the table"
            )
        if lacking:
            raise InvalidArgument(
                f"{file.path} lacks columns of the primary key: {', '.join(lacking)}"
            )
        for field in found or ():
            kind = plain_type(field.type)
            stored = columns.field(field.name).type
            check_types(kind, stored, f"{file.path}: column {field.name!r}")
