"""Rows of CSV and JSON lines, block by block; a line that cannot be read is found with its number."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.json as pjson

from nyala.common.errors import InvalidArgument
from nyala.common.types import MAX_CELL_BYTES

BLOCK_LINES = 20_000
BLOCK_BYTES = 16 << 20
"""Bytes after which a block has no further line."""
LINE_BYTES = 32 << 20
"""Maximum bytes of a line; no more of a longer one is kept in memory."""
ARROW_BYTES = 1 << 20
"""Least size of the blocks of Arrow's readers, each of which has to hold a whole line."""
SHOWN_BYTES = 1_000
"""Most bytes of a bad line that are kept."""
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"
_COMPRESSED = {
    b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"BZh91AY&SY": "bunzip2", b"\xfd7zXZ\0": "unxz",
    b"PK\x03\x04": "unzip", b"\x04\x22\x4d\x18": "unlz4",
}  # fmt: skip
"""Command that unpacks a file, by its first bytes."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no row of the table.

    Attributes:
        number: of the line in its file, from 1.
        error: why.
        text: the line, or its beginning; bytes that are not UTF-8 are escaped.
    """

    number: int
    error: str
    text: str


class Parse(Protocol):
    """A function that reads whole lines."""

    def __call__(self, lines: bytes) -> pa.Table:
        """Return the rows; raises an error of Arrow, or UnicodeDecodeError."""
        ...


def csv_parser(header: Sequence[str], schema: pa.Schema, delimiter: str) -> Parse:
    """Return a function that reads lines of CSV without their header.

    An empty field is null, and an empty text in quotes is an empty text. A value with a line break is an
    error: Arrow would take the lines up to the next quote, which may be many rows, for one value.

    Args:
        header: names of the fields.
        schema: names and types of the columns wanted.
        delimiter: between fields.
    """
    convert = pcsv.ConvertOptions(
        column_types=schema, include_columns=schema.names, null_values=[""], strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )  # fmt: skip
    parse = pcsv.ParseOptions(delimiter=delimiter, ignore_empty_lines=True)

    def parsed(lines: bytes) -> pa.Table:
        ended = lines if lines.endswith(b"\n") else lines + b"\n"
        block = max(ARROW_BYTES, len(ended) + 1)
        read = pcsv.ReadOptions(column_names=list(header), use_threads=False, block_size=block)
        found = pcsv.read_csv(io.BytesIO(ended), read, parse, convert)
        if b'"' in lines:
            _check_breaks(found)
        return _checked(found, schema)

    return parsed


def _check_breaks(table: pa.Table) -> None:
    """Refuse values with a line break.

    Raises:
        ArrowInvalid: some value has one.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        text = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        if text and pc.any(pc.match_substring(column, "\n")).as_py():
            raise pa.ArrowInvalid(
                f"a quote is not closed, or the value of column {name!r} has a line break"
            )


def _checked(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table; refuse values that no table takes.

    Args:
        table: rows that were read.
        schema: columns wanted.

    Raises:
        ArrowInvalid: a column that is not nullable has a null, or a value is too large.
    """
    for field in schema:
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(f"column {field.name!r} has no value, and it cannot be null")
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            largest = pc.max(pc.binary_length(column)).as_py() or 0
            if largest > MAX_CELL_BYTES:
                raise pa.ArrowInvalid(
                    f"the value of column {field.name!r} has {largest} bytes, and a table takes "
                    f"{MAX_CELL_BYTES}"
                )
    return table


def json_parser(schema: pa.Schema) -> Parse:
    """Return a function that reads lines of JSON objects; a field that is no column is an error.

    A time has a zone if its column has one, and none otherwise, as in CSV: Arrow's own reader of JSON would
    move a time with a zone to UTC and drop the zone.

    Args:
        schema: names and types of the columns; an absent field is null.
    """
    texts = {f.name for f in schema if pa.types.is_temporal(f.type)}
    fields = [f.with_type(pa.string()) if f.name in texts else f for f in schema]
    parse = pjson.ParseOptions(
        explicit_schema=pa.schema([f.with_nullable(True) for f in fields]), unexpected_field_behavior="error"
    )  # fmt: skip

    def parsed(lines: bytes) -> pa.Table:
        block = max(ARROW_BYTES, len(lines) + 1)
        read = pjson.ReadOptions(use_threads=False, block_size=block)
        table = pjson.read_json(io.BytesIO(lines), read, parse)
        columns = [pc.cast(table.column(f.name), f.type) for f in schema]
        return _checked(pa.table(columns, names=schema.names), schema)

    return parsed


class LineRange:
    """The lines of a file that begin in a range of its bytes.

    Args:
        file: seekable.
        start: first byte of the range.
        end: byte after its last one.
        header: number of lines at the beginning of the file that are left out.
    """

    def __init__(self, file: BinaryIO, start: int, end: int, header: int = 0) -> None:
        self._file = file
        self._end = end
        file.seek(max(0, start - 1))
        for _ in range(1 if start else header):
            while (line := file.readline(LINE_BYTES)) and not line.endswith(b"\n"):
                pass
        self._first = self._at = file.tell()
        self._inside = False

    def readline(self, most: int) -> bytes:
        """Return the next bytes of the present line, or of the next one; none: there is no further line.

        Args:
            most: maximum number of bytes.
        """
        if not self._inside and self._at >= self._end:
            return b""
        line = self._file.readline(most)
        self._at += len(line)
        self._inside = bool(line) and not line.endswith(b"\n")
        return line

    def lines_before(self) -> int:
        """Return the number of lines of the file before the first one of the range, by reading them."""
        self._file.seek(0)
        left, count = self._first, 0
        while left and (found := self._file.read(min(left, BLOCK_BYTES))):
            left -= len(found)
            count += found.count(b"\n")
        self._file.seek(self._at)
        return count


def read_lines(file: LineRange, parse: Parse) -> Iterator[tuple[pa.Table | None, list[BadLine]]]:
    """Yield the rows of blocks of lines, and the lines that could not be read, by their numbers in the file.

    A block that cannot be read as a whole is halved until the lines at fault are found.

    Args:
        file: its lines.
        parse: reads lines.
    """
    number, before = 1, None
    while lines := _block(file):
        bad: list[BadLine] = []
        tables = list(_halved(lines, number, parse, bad))
        if bad and before is None:
            before = file.lines_before()
        found = [replace(line, number=line.number + (before or 0)) for line in bad]
        yield pa.concat_tables(tables) if tables else None, found
        number += len(lines)


def _block(file: LineRange) -> list[bytes]:
    """Return the next lines; of one that is too long one byte more than the maximum."""
    lines: list[bytes] = []
    size = 0
    while (
        len(lines) < BLOCK_LINES and size < BLOCK_BYTES and (line := file.readline(LINE_BYTES + 1))
    ):
        lines.append(line)
        size += len(line)
        rest = line
        while len(rest) > LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LINE_BYTES + 1)
    return lines


def _halved(
    lines: list[bytes], number: int, parse: Parse, bad: list[BadLine]
) -> Iterator[pa.Table]:
    """Yield the rows of lines; add to `bad` those that cannot be read.

    Args:
        lines: some.
        number: of the first one.
        parse: reads lines.
        bad: result.
    """
    text = b"".join(lines)
    if not text.strip():
        return
    try:
        if any(len(line) > LINE_BYTES for line in lines):
            raise pa.ArrowInvalid(f"the line has more than {LINE_BYTES} bytes")
        text.decode()
        table = parse(text)
        wanted = sum(1 for line in lines if line.strip())
        if table.num_rows != wanted:
            raise pa.ArrowInvalid(f"{wanted} lines were read as {table.num_rows} rows")
        yield table
    except (pa.ArrowException, UnicodeDecodeError) as err:
        if len(lines) == 1:
            shown = lines[0][:SHOWN_BYTES].rstrip(b"\r\n").decode(errors="backslashreplace")
            why = not_utf8(err) if isinstance(err, UnicodeDecodeError) else str(err)
            bad.append(BadLine(number, " ".join(why.split()), shown))
            return
        middle = len(lines) // 2
        yield from _halved(lines[:middle], number, parse, bad)
        yield from _halved(lines[middle:], number + middle, parse, bad)


def not_utf8(err: UnicodeDecodeError) -> str:
    """Return what is wrong with a line of another encoding, and the command that converts its file."""
    return (
        f"byte 0x{err.object[err.start]:02x} at position {err.start} is not UTF-8; if the whole file has "
        "another encoding, convert it: iconv -f ISO-8859-1 -t UTF-8, with its name in place of ISO-8859-1"
    )


def check_encoding(path: str, start: bytes) -> None:
    """Refuse a file that is not UTF-8 from its beginning on.

    Args:
        path: of the file, for the message.
        start: its first bytes.

    Raises:
        InvalidArgument: another encoding; the message has the command that converts it.
    """
    if start.startswith(_WIDE_MARKS):
        raise InvalidArgument(
            f"{path} is UTF-16, and text files have to be UTF-8; convert it: iconv -f UTF-16 -t UTF-8"
        )
    if start.startswith(_UTF8_MARK):
        raise InvalidArgument(
            f"{path} begins with a byte order mark; remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE"
        )
    if b"\0" in start:
        raise InvalidArgument(
            f"{path} is no text: it has zero bytes; name its format with --format"
        )


def check_compressed(path: str, start: bytes) -> None:
    """Refuse a file that is compressed as a whole, whatever its name.

    Args:
        path: of the file, for the message.
        start: its first bytes.

    Raises:
        InvalidArgument: the message has the command that unpacks it.
    """
    for first, command in _COMPRESSED.items():
        if start.startswith(first):
            raise InvalidArgument(f"{path} is compressed; unpack it first: {command}")


def header_of(path: str, line: bytes, delimiter: str) -> list[str]:
    """Return the names in the first line of a CSV file.

    Args:
        path: of the file, for the message.
        line: its first line.
        delimiter: between fields.

    Raises:
        InvalidArgument: another encoding, no names, or one twice.
    """
    options = pcsv.ReadOptions(autogenerate_column_names=True, use_threads=False)
    try:
        line.decode()
    except UnicodeDecodeError as err:
        raise InvalidArgument(f"{path}: its first line: {not_utf8(err)}") from err
    try:
        row = pcsv.read_csv(
            io.BytesIO(line), options, pcsv.ParseOptions(delimiter=delimiter),
            pcsv.ConvertOptions(column_types={f"f{n}": pa.string() for n in range(2_000)}),
        )  # fmt: skip
    except pa.ArrowException as err:
        raise InvalidArgument(f"{path}: its first line is no header of CSV: {err}") from err
    if row.num_rows > 1:
        raise InvalidArgument(
            f"{path}: its first line is {row.num_rows} lines with the line break \\r, and a line ends with "
            "\\n; convert the file: tr '\\r' '\\n'"
        )
    names = [str(row.column(n)[0].as_py() or "").strip() for n in range(row.num_columns)]
    twice = {n for n in names if names.count(n) > 1}
    if not all(names) or twice:
        raise InvalidArgument(
            f"{path}: the first line has to name each column once; it has {', '.join(names)[:200]!r}"
        )
    return names


def parser_of(kind: str, header: Sequence[str], schema: pa.Schema, delimiter: str) -> Parse:
    """Return the function that reads lines of a format, "csv" or "json".

    Args:
        kind: the format.
        header: names of the fields of CSV.
        schema: columns wanted.
        delimiter: between fields of CSV.
    """
    return csv_parser(header, schema, delimiter) if kind == "csv" else json_parser(schema)
