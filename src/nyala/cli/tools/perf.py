"""`nyala perf`: a load generator, and measured scans."""

from typing import TYPE_CHECKING, Annotated

import typer

from nyala.cli.output import (
    Format,
    FormatOption,
    MastersOption,
    fail,
    listed,
    say,
    show,
    stays,
    verb,
)

if TYPE_CHECKING:
    from nyala.operate.perf.loadgen import LoadResult

app = typer.Typer(no_args_is_help=True, help="Load generator, and measured scans.")
WRITTEN = (
    "table", "threads", "rows", "errors", "seconds", "rows_per_s", "batch_ms_median", "batch_ms_p99",
)  # fmt: skip
READ = ("table", "threads", "tablets", "rows", "bytes", "seconds", "rows_per_s")
Threads = Annotated[int, typer.Option(min=1, max=64, help="Threads, each with one call at a time.")]


@app.callback()
def _group() -> None:
    """Load generator, and measured scans."""


@app.command("loadgen")
@verb
@stays("a table whose name begins with loadgen_auto_ may be left: nyala table drop NAME")
def loadgen(
    masters: MastersOption = "",
    table: Annotated[
        str,
        typer.Option("--table", help="Existing table that keeps the rows; none: one of its own."),
    ] = "",
    threads: Threads = 2,
    rows_per_thread: Annotated[
        int, typer.Option(min=1, max=1_000_000_000, help="Rows of each thread.")
    ] = 100_000,
    batch_rows: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Rows of one insert call.")
    ] = 1_000,
    seq_start: Annotated[
        int, typer.Option(min=0, max=1 << 60, help="Number of the first row.")
    ] = 0,
    random: Annotated[
        bool, typer.Option("--random", help="Random row numbers instead of sequential ones.")
    ] = False,
    buckets: Annotated[
        int, typer.Option(min=1, max=1000, help="Tablets of a table of its own.")
    ] = 2,
    replicas: Annotated[
        int, typer.Option(min=1, max=7, help="Replicas of a table of its own.")
    ] = 3,
    run_scan: Annotated[
        bool,
        typer.Option("--run-scan", help="Count the rows afterwards; exit status 1 if some miss."),
    ] = False,
    keep_auto_table: Annotated[
        bool, typer.Option("--keep-auto-table", help="Do not drop the table of its own.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Insert generated rows and print rows per second. Without --table in a table that is dropped again.

    Rows whose key exists have no effect and are counted as errors.
    """
    import random as numbers
    from contextlib import nullcontext

    from nyala.client import connect
    from nyala.env.clock import random_id
    from nyala.operate.perf.loadgen import PREFIX, LoadPlan, auto_table, load

    system = numbers.SystemRandom()
    plan = LoadPlan(
        threads, rows_per_thread, batch_rows, seq_start, system.getrandbits(32) if random else None
    )
    name = table or PREFIX + random_id(system)
    with connect(masters) as client:
        made = (
            nullcontext(client.table(name))
            if table
            else auto_table(client, name, buckets=buckets, replicas=replicas, keep=keep_auto_table)
        )
        with made as target:
            before = target.count() if run_scan and table else 0
            done = load(target, plan)
            counted = target.count() if run_scan else None
    _print_load(name, threads, done, before, counted, format)
    if keep_auto_table and not table:
        say(f"the table {name} is kept; nyala table drop {name} deletes it")


def _print_load(
    name: str, threads: int, done: "LoadResult", before: int, counted: int | None, format: Format
) -> None:
    row: tuple[object, ...] = (
        name, threads, done.rows, done.errors, round(done.seconds, 3), done.rows_per_s, *done.batch_ms,
    )  # fmt: skip
    columns, row = (WRITTEN, row) if counted is None else ((*WRITTEN, "counted"), (*row, counted))
    show(columns, [row], format)
    if counted is not None and counted != before + done.rows:
        raise fail(
            f"{counted} rows were counted, {before + done.rows} expected: {before} before and {done.rows} "
            "inserted; if nobody else writes to the table, keep it (--keep-auto-table) and report this"
        )


@app.command("table_scan")
@verb
def table_scan(
    name: Annotated[str, typer.Argument(help="Name of the table.")],
    masters: MastersOption = "",
    columns: Annotated[
        str, typer.Option(help="Columns, separated by commas; all if not given.")
    ] = "",
    where: Annotated[str, typer.Option(help='For instance: "value > 3"')] = "",
    threads: Threads = 2,
    format: FormatOption = Format.TABLE,
) -> None:
    """Read all rows of a table, several tablets at a time, and print rows per second."""
    from nyala.client import connect
    from nyala.operate.perf.loadgen import scan

    with connect(masters) as client:
        done = scan(client.table(name), list(listed(columns)) or None, where or None, threads)
    show(
        READ,
        [
            (
                name,
                threads,
                done.tokens,
                done.rows,
                done.bytes,
                round(done.seconds, 3),
                done.rows_per_s,
            )
        ],
        format,
    )
