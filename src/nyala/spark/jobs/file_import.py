"""Import of CSV, JSON lines and Parquet files into a table: a task for each file, or part of a large one."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from nyala.backup.row_groups import batches_of, groups_within
from nyala.client.calls.rows import OPS
from nyala.client.client import Client, connect
from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound
from nyala.common.partitioning.partition_spec import Hash, Partition
from nyala.common.values.casting import exact_cast
from nyala.spark.jobs import bad_lines
from nyala.spark.jobs.input_files import (
    SAMPLE_BYTES,
    InputFile,
    check_columns,
    columns_in,
    in_parts,
    list_files,
    schema_of,
    unchanged,
)
from nyala.spark.jobs.reports import Report
from nyala.spark.jobs.tasks import numbers
from nyala.spark.jobs.text_lines import LINE_BYTES, BadLine, LineRange, parser_of, read_lines

KIND = "_columns"
"""Column of the data frame with the kind of each row, if files have different columns."""
CHECKED_FILES = 20
"""Number of files whose first lines are read before the job begins."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of an import.

    Attributes:
        table: name of the table.
        files: number of files.
        bytes: their size.
        bad_lines: number of lines that were left out; they are in the folder of bad lines.
        columns: type of each column, by name.
        created: the table is new.
    """

    table: str
    files: int
    bytes: int
    bad_lines: int
    columns: dict[str, str]
    created: bool


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """Files and columns of an import, for its tasks.

    Attributes:
        files: files, or parts of them: one for each task.
        columns: of each file, those of the table that it has.
        schema: serialised Arrow schema of all of these columns.
        bad: folder of bad lines; empty: the first bad line ends the job.
        max_bad: most bad lines of a file, or a part of one.
    """

    files: tuple[InputFile, ...]
    columns: tuple[tuple[str, ...], ...]
    schema: bytes
    bad: str
    max_bad: int

    @property
    def kinds(self) -> list[tuple[str, ...]]:
        """The different sets of columns; the number of one is the kind of its rows."""
        return list(dict.fromkeys(self.columns))


def import_files(
    spark: SparkSession,
    path: str,
    table: str,
    *,
    masters: str,
    format: str = "",
    delimiter: str = ",",
    create: bool = False,
    key: Sequence[str] = (),
    buckets: int = 0,
    replicas: int = 3,
    bad: str = "",
    max_bad: int = 1000,
    op: str = "upsert",
    atomic: bool = True,
    job_id: str = "",
    operation: str = "",
    dry_run: bool = False,
    report: Report = str,
) -> Imported:
    """Import files into a table.

    Args:
        spark: session.
        path: of a file or folder, or a pattern; the same on all nodes.
        table: name of the table.
        masters: of the cluster.
        format: csv, json (one object a line) or parquet; empty: by the endings of the files.
        delimiter: between fields of CSV.
        create: create the table, with the columns of the first file.
        key: columns of the primary key of a created table.
        buckets: hash buckets of a created table; 0: one tablet.
        replicas: of each tablet of a created table.
        bad: folder for lines that cannot be read, with their numbers; empty: such a line ends the job.
        max_bad: most bad lines of one file, or of 128 MB of a larger one; more of them end the job.
        op: operation of each row, as for writes of data frames.
        atomic: all rows become visible at once, or none; false for more rows than the servers can stage.
        job_id: the job takes effect once under this id, however often it is run.
        operation: id of the operation that the folder of bad lines belongs to; one that was begun by another
            driver goes on with its files. Empty: `job_id`.
        dry_run: show the files and their columns, and write nothing.
        report: called with lines about the progress.

    Raises:
        InvalidArgument: files that cannot be imported; nothing was written.
        AlreadyPresent: with `create`, the table exists.
        NotFound: without `create`, there is no such table.
    """
    files = list_files(path, format, delimiter)
    found = schema_of(files[0]) if create else pa.schema([])
    operation = operation or job_id
    folder = bad_lines.checked_folder(bad, operation)
    with connect(masters) as client:
        schema, keys = _target(client, table, found, create, key, buckets)
        check_columns(files, schema, keys)
        plan = _plan(files, schema, folder, max_bad, op)
        shown = {f.name: str(f.type) for f in schema}
        size = sum(f.bytes for f in files)
        report(f"{len(files)} files, {size:,} bytes; columns: {shown}")
        check_first_lines(plan)
        result = Imported(table, len(files), size, 0, shown, create)
        if dry_run:
            return result
        if _is_done(client, job_id):
            report(f"job {job_id!r} has taken effect before; nothing is written again")
            return _with_bad(result, folder)
        if folder:
            bad_lines.begin(folder, operation)
        if create:
            parts = Partition(hash=[Hash(list(keys), buckets)]) if buckets else None
            client.create_table(table, schema, keys, parts, replicas)
    options = {"table": table, "masters": masters, "atomic": str(atomic).lower()}
    if job_id:
        options["job_id"] = job_id
    rows = _frame(spark, plan, options, op)
    rows.write.format("nyala").options(**options).mode("append").save()
    report(f"{len(files)} files were written")
    if folder:
        names = [bad_lines.file_name(n, f.path) for n, f in enumerate(plan.files)]
        bad_lines.remove_others(folder, names)
    return _with_bad(result, folder)


def _is_done(client: Client, job_id: str) -> bool:
    """Return whether a job has taken effect: its bad lines are those in the folder."""
    known = client.find_key(job_id) if job_id else None
    return known is not None and not known.query


def _with_bad(result: Imported, folder: str) -> Imported:
    return replace(result, bad_lines=bad_lines.count_lines(folder)) if folder else result


def _plan(
    files: Sequence[InputFile], schema: pa.Schema, folder: str, max_bad: int, op: str
) -> ImportPlan:
    """Return the plan of an import.

    Args:
        files: to import.
        schema: columns of the table.
        folder: of bad lines.
        max_bad: most bad lines of a file.
        op: operation of each row.

    Raises:
        InvalidArgument: an unknown operation, or files with different columns, one of them with a comma in
            its name.
    """
    if op not in OPS:
        raise InvalidArgument(f"op={op!r}: write one of {', '.join(OPS)}")
    parts = [(p, columns_in(f, schema.names)) for f in files for p in in_parts(f)]
    tasks, columns = zip(*parts, strict=True)
    own = pa.schema([f for f in schema if any(f.name in c for c in columns)])
    made = ImportPlan(tasks, columns, own.serialize().to_pybytes(), folder, max_bad)
    commas = [n for n in own.names if "," in n]
    if commas and len(made.kinds) > 1:
        raise InvalidArgument(
            f"column {commas[0]!r} has a comma in its name, and the files have different columns; import the "
            "files with equal columns together, and the others in other jobs"
        )
    return made


def _target(
    client: Client, table: str, found: pa.Schema, create: bool, key: Sequence[str], buckets: int
) -> tuple[pa.Schema, list[str]]:
    """Return columns and key of the table, which exists or will be created."""
    exists = table in client.tables()
    if create:
        if exists:
            raise AlreadyPresent(f"table {table!r} exists; leave --create out to add rows to it")
        lacking = [k for k in key if k not in found.names]
        if not key or lacking:
            several = len(found.names) == 1 and any(c in found.names[0] for c in ";\t|")
            raise InvalidArgument(
                f"a new table needs a primary key out of its columns: --key {found.names[0]}; the columns "
                f"are: {', '.join(found.names)}"
                + ("; if that is more than one, name the --delimiter of CSV" if several else "")
            )
        return pa.schema([f.with_nullable(f.name not in key) for f in found]), list(key)
    if not exists:
        raise NotFound(
            f"there is no table {table!r}; add --create and --key to create it, or name one of: "
            + ", ".join(client.tables()[:20])
        )
    if key or buckets:
        raise InvalidArgument(
            f"table {table!r} has its key and partitions; --key and --buckets belong to --create"
        )
    opened = client.table(table)
    return opened.schema, opened.primary_key


def _frame(spark: SparkSession, plan: ImportPlan, options: dict[str, str], op: str) -> DataFrame:
    """Return the rows of files, each of which is read by one task; add to `options` how they are written.

    Rows of files with different columns have a kind, by which only their own columns are written.

    Args:
        spark: session.
        plan: of the job.
        options: of the write.
        op: operation of each row.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
    if len(plan.kinds) == 1:
        options["op"] = op
    else:
        schema = pa.schema([*(f.with_nullable(True) for f in schema), (KIND, pa.string())])
        options["kind_column"] = KIND
        for number, names in enumerate(plan.kinds):
            options[f"kind.{number}"] = f"{op}: {', '.join(names)}"

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                kind = str(plan.kinds.index(plan.columns[number]))
                for found in read_file(plan, number):
                    yield _widened(found, schema, kind)

    frame = numbers(spark, len(plan.files))
    return frame.mapInArrow(rows, from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _widened(batch: pa.RecordBatch, schema: pa.Schema, kind: str) -> pa.RecordBatch:
    """Return rows with all columns of a schema, null in those that they lack, and with their kind."""
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name))
        else:
            value = pa.scalar(kind if field.name == KIND else None, field.type)
            columns.append(pa.repeat(value, batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def read_file(plan: ImportPlan, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, in a task; write its bad lines to a file of their own.

    Args:
        plan: of the job.
        number: of the file.

    Raises:
        InvalidArgument: a bad line, or too many; the message has the first one. Or a file that was changed.
    """
    file, columns = plan.files[number], plan.columns[number]
    every = pa.ipc.read_schema(pa.py_buffer(plan.schema))
    schema = pa.schema([every.field(n) for n in columns])
    with open(file.path, "rb") as raw, unchanged(file, raw):
        if file.kind == "parquet":
            yield from _parquet_rows(file, raw, schema)
            return
        found: list[BadLine] = []
        yield from _text_rows(plan, file, raw, schema, found)
        if plan.bad:
            bad_lines.replace_lines(plan.bad, number, file.path, found)


def check_first_lines(plan: ImportPlan) -> None:
    """Refuse a bad line at the beginning of a text file, unless such lines have a folder.

    Of many files the first ones are read; the tasks find the bad lines of the others, and later ones.

    Args:
        plan: of the job.

    Raises:
        InvalidArgument: names file and line.
    """
    if plan.bad:
        return
    every = pa.ipc.read_schema(pa.py_buffer(plan.schema))
    beginnings = [(f, c) for f, c in zip(plan.files, plan.columns, strict=True) if not f.start]
    for file, columns in beginnings[:CHECKED_FILES]:
        if file.kind == "parquet":
            continue
        with open(file.path, "rb") as raw:
            sample = io.BytesIO(raw.read(SAMPLE_BYTES) + raw.readline(LINE_BYTES))
        schema = pa.schema([every.field(n) for n in columns])
        for _ in _text_rows(plan, file, sample, schema, []):
            pass


def _text_rows(
    plan: ImportPlan, file: InputFile, raw: BinaryIO, schema: pa.Schema, found: list[BadLine]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of CSV or JSON lines.

    Args:
        plan: of the job.
        file: the file.
        raw: the same, opened, or its beginning.
        schema: columns wanted.
        found: its bad lines, to which further ones are added.

    Raises:
        InvalidArgument: a bad line, or too many.
    """
    lines = LineRange(raw, file.start, file.end, int(file.kind == "csv"))
    parse = parser_of(file.kind, file.header, schema, file.delimiter)
    for table, bad in read_lines(lines, parse):
        found += bad
        _check_bad(file, found, plan)
        if table is not None:
            yield from table.select(schema.names).cast(schema).to_batches()


def _parquet_rows(file: InputFile, raw: BinaryIO, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file as rows of the table.

    Args:
        file: the file.
        raw: the same, opened.
        schema: columns wanted.

    Raises:
        InvalidArgument: it cannot be read, or has a null in a column that has none.
        SchemaMismatch: a value does not convert without loss; the message names column, row and value.
    """
    first = 0
    batches: Iterator[pa.RecordBatch] | None = None
    while True:
        try:
            if batches is None:
                about = pq.read_metadata(raw)
                groups = groups_within(about, file.bytes, file.start, file.end)
                first = sum(about.row_group(n).num_rows for n in range(min(groups, default=0)))
                batches = batches_of(raw, schema.names, groups)
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as err:
            if isinstance(err, OSError) and err.errno:
                raise  # of the operating system, not of the content
            raise InvalidArgument(
                f"{file.path} cannot be read after row {first}: {err}; write the file again"
            ) from err
        if batch is None:
            return
        columns = []
        for field in schema:
            what = f"{file.path}: column {field.name!r}"
            column = exact_cast(
                pa.chunked_array([batch.column(field.name)]), field.type, what, first
            )
            if column.null_count and not field.nullable:
                row = first + pc.index(pc.is_null(column), True).as_py()
                raise InvalidArgument(
                    f"{what}, row {row}: there is no value, and the column of the table cannot be null; "
                    "leave such rows out"
                )
            columns.append(column)
        yield from pa.table(columns, schema=schema).to_batches()
        first += batch.num_rows


def _check_bad(file: InputFile, found: Sequence[BadLine], plan: ImportPlan) -> None:
    most = plan.max_bad if plan.bad else 0
    if len(found) <= most:
        return
    first = found[0]
    where, hint = f"line {first.number}", "mend it, or leave such lines out with --bad FOLDER"
    if plan.bad:
        where = f"more than {most} bad lines; the first is line {first.number}"
        hint = "raise --max-bad, or mend the file"
    raise InvalidArgument(f"{file.path}: {where}: {first.error}: {first.text[:200]!r}; {hint}")
