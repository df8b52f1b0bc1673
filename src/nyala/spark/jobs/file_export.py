"""Export of a table to CSV, JSON lines or Parquet files: a task for each tablet, or a part of it."""

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from nyala.backup.folders import folder_locked, remove_others, whole_file
from nyala.backup.parts import BackupPart, write_part
from nyala.client.client import connect
from nyala.client.scan_token import ScanToken
from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.security.files import sync_folder
from nyala.spark.jobs.input_files import FORMATS
from nyala.spark.jobs.reports import Report
from nyala.spark.jobs.tasks import run_in_tasks
from nyala.spark.options import split

SPLIT_BYTES = 256 << 20
HOLD_S = 86_400
PARTIAL = ".partial"
"""End of the folder's name while it is written."""
PART = "part-"
"""Beginning of the names of its files."""
WORK = re.compile(r"work-[0-9a-f]{16}")
"""Name of the folder in it in which the tasks of one export write."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The outcome of an export.

    Attributes:
        folder: of the files.
        at: hybrid time of the snapshot.
        files: number of files.
        rows: number of rows.
    """

    folder: str
    at: int
    files: int
    rows: int


def export_files(
    spark: SparkSession,
    table: str,
    folder: str,
    *,
    masters: str,
    format: str = "parquet",
    columns: str = "",
    where: str = "",
    at: int = 0,
    dry_run: bool = False,
    report: Report = str,
) -> Exported:
    """Export the rows of a table, as of one moment, to a new folder of files.

    Args:
        spark: session.
        table: name of the table.
        folder: new, under the same path on all nodes; it appears when it is whole.
        masters: of the cluster.
        format: csv, json (one object a line) or parquet.
        columns: names, separated by commas; empty: all.
        where: row filter, as for `Table.scan`; empty: all rows.
        at: hybrid time; 0: now.
        dry_run: check only.
        report: called with lines about the progress.

    Raises:
        AlreadyPresent: the folder exists.
        Unavailable: another export writes to it.
        InvalidArgument: an unknown format, or columns that it cannot hold.
        NotFound: no such table or column.
    """
    if format not in FORMATS:
        raise InvalidArgument(f"format {format!r}: write one of {', '.join(FORMATS)}")
    target = Path(folder).absolute()
    if target.exists():
        raise AlreadyPresent(
            f"{target} exists, and an export never writes over files; name a new folder"
        )
    with connect(masters) as client:
        opened = client.table(table)
        moment = at or client.now()
        names = split(columns) or None
        scan = opened.scan(names, where or None, moment)
        _check_types(scan.schema, format)
        if dry_run:
            return Exported(str(target), moment, 0, scan.count())
        with partial_folder(target) as folder_now, opened.hold(moment, HOLD_S):
            schema = scan.schema.serialize().to_pybytes()
            parts = [
                BackupPart(bytes(token), str(folder_now / f"{PART}{number:05d}.{format}"), schema)
                for number, token in enumerate(scan.tokens(SPLIT_BYTES))
            ]
            report(f"{table}: {len(parts)} parts")
            counts = run_in_tasks(spark, parts, partial(_write, kind=format))
            found = [c for c in counts if c]
            if not found and format != "json":  # an import needs the columns
                write_columns(folder_now / f"{PART}{0:05d}.{format}", scan.schema, format)
                found = [0]
        return Exported(str(target), moment, len(found), sum(found))


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Create an empty folder for the block, which gets the name of the target at its end.

    Its path is new each time: tasks of an export whose driver was killed may still write to theirs.

    Args:
        target: path of the folder when it is whole.

    Raises:
        Unavailable: another export writes to it.
        AlreadyPresent: another export has just ended.
        InvalidArgument: it is a link, or has files that no export has written.
    """
    folder = target.with_name(target.name + PARTIAL)
    if folder.is_symlink():
        raise _foreign(folder, "is a link")
    folder.mkdir(parents=True, exist_ok=True)
    text = f"another export writes to {target}; name a new folder"
    with folder_locked(folder, text):
        if target.exists():
            raise AlreadyPresent(text)
        _remove_own(folder)  # of an export that ended early
        work = folder / f"work-{secrets.token_hex(8)}"
        work.mkdir()
        yield work
        remove_others(work, [p.name for p in work.iterdir() if p.name.startswith(PART)])
        sync_folder(work)
        os.replace(work, target)
        folder.rmdir()
        sync_folder(target.parent)


def _remove_own(folder: Path) -> None:
    """Remove what exports that ended early have left in a folder.

    Raises:
        InvalidArgument: it has something else; nothing was removed.
    """
    left = list(folder.iterdir())
    work = [p for p in left if WORK.fullmatch(p.name) and p.is_dir() and not p.is_symlink()]
    files = [p for p in left if p not in work] + [p for w in work for p in w.iterdir()]
    for path in files:
        if not path.name.startswith((PART, f".{PART}")) or (
            path.is_dir() and not path.is_symlink()
        ):
            raise _foreign(folder, f"has {path.name!r}, which no export has written")
    for path in files:
        path.unlink(missing_ok=True)
    for path in work:
        shutil.rmtree(path)  # a task may still write to it


def _foreign(folder: Path, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{folder} {what}; an export writes to this folder and removes what is in it: move it, or name "
        "another folder for the export"
    )


def _check_types(schema: pa.Schema, format: str) -> None:
    binary = [f.name for f in schema if pa.types.is_binary(f.type)]
    if binary and format != "parquet":
        raise InvalidArgument(
            f"{format} files cannot hold the binary columns {', '.join(binary)}; use --format parquet, or "
            "leave them out with --columns"
        )


def _write(part: BackupPart, kind: str) -> int:
    """Write the rows of a part, in a task; return their number."""
    if kind == "parquet":
        made = write_part(part)
        return made.rows if made else 0
    schema = pa.ipc.read_schema(pa.py_buffer(part.schema))
    path = Path(part.path)
    rows = 0
    with whole_file(path) as out:
        if kind == "csv":
            with pcsv.CSVWriter(out, schema) as writer:
                for batch in ScanToken.parse(part.token).to_batches():
                    writer.write_batch(batch)
                    rows += batch.num_rows
        else:
            for batch in ScanToken.parse(part.token).to_batches():
                out.writelines(json_lines(batch))
                rows += batch.num_rows
    if not rows:
        path.unlink(missing_ok=True)  # another try may have removed it
    return rows


def write_columns(path: Path, schema: pa.Schema, kind: str) -> None:
    """Write a file without rows.

    Args:
        path: of the file.
        schema: its columns.
        kind: csv or parquet.
    """
    with whole_file(path) as out:
        make = pcsv.CSVWriter if kind == "csv" else pq.ParquetWriter
        make(out, schema).close()


def json_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield rows as JSON objects, one a line, which an import reads as the same rows.

    Dates, times and decimals are texts; NaN and infinities are NaN, Infinity and -Infinity. Nulls are left
    out.

    Args:
        batch: rows without binary columns.
    """
    columns: list[list[Any]] = []
    for column in batch.columns:
        as_text = pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type)
        columns.append((pc.cast(column, pa.string()) if as_text else column).to_pylist())
    names = batch.schema.names
    for row in zip(*columns, strict=True):
        found = {n: v for n, v in zip(names, row, strict=True) if v is not None}
        yield (json.dumps(found, ensure_ascii=False) + "\n").encode()
