"""`nyala backup TABLE... DIR`, and `nyala backup list|show|verify|prune`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nyala.cli.output import (
    Format,
    FormatOption,
    MastersOption,
    fail,
    print_json,
    say,
    show,
    stays,
    verb,
)

CREATE = "create"
LISTED = ("table", "chain", "element", "kind", "until", "time", "rows", "files", "bytes")
FILES = ("element", "file", "tablet", "rows", "bytes", "sha256")


class Backups(TyperGroup):
    """The group, whose command `create` need not be written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; without the name of a command they are those of `create`."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [CREATE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=Backups, no_args_is_help=True)
DirArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backups.")]
OneTable = Annotated[str, typer.Option("--table", help="One table; all if not given.")]


@app.callback()
def _group() -> None:
    """Back up tables: nyala backup TABLE... DIR."""


@app.command(CREATE)
@verb
@stays("the folder has the former backups, and the next backup removes what this one wrote")
def create(
    names: Annotated[
        list[str], typer.Argument(metavar="TABLE... DIR", help="Tables, and the folder.")
    ],
    masters: MastersOption = "",
    full: Annotated[
        bool, typer.Option("--full", help="Take a full backup, which begins a new chain.")
    ] = False,
    keep_history_s: Annotated[
        int,
        typer.Option(
            min=0,
            max=7 * 86_400,
            help="Seconds for which the history after this backup is held, so that the next one can be "
            "incremental; 0: as long as history_max_age_s.",
        ),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be backed up, and write nothing.")
    ] = False,
) -> None:
    """Back up tables as of one moment: what changed since the last backup, or all rows if there is none."""
    from nyala.backup.take import TakeOptions, Taking
    from nyala.client.connection import Connection
    from nyala.client.core import ClientOptions

    if len(names) < 2:
        raise fail("name tables, and then the folder: nyala backup TABLE... DIR", 2)
    options = TakeOptions(full=full, keep_history_s=keep_history_s, dry_run=dry_run)
    connection = Connection(masters, ClientOptions())
    try:
        made = Taking(connection, Path(names[-1]), report=say).take(names[:-1], options)
    finally:
        connection.close()
    for element in made:
        since = f" after {element.since}" if element.since else ""
        what = f"{element.table}: {element.kind} backup{since}, as of {element.until}"
        if dry_run:
            print(f"{what} would be taken")
        else:
            rows = sum(f.rows for f in element.files)
            print(f"{what}: {rows} rows and changes, {element.bytes} bytes, element {element.id}")


def _tables(folder: Path, table: str) -> list[str]:
    from nyala.backup.folders import tables_in

    known = tables_in(folder)
    if table and table not in known:
        raise fail(f"{folder} has no backup of table {table!r}; it has: {', '.join(known)}")
    return [table] if table else known


@app.command("list")
@verb
def list_(folder: DirArgument, table: OneTable = "", format: FormatOption = Format.TABLE) -> None:
    """List the elements of the chains; `until` is the latest moment that an element restores."""
    from nyala.backup.chain import chains_of, shown

    rows = [
        (
            name, number, e.id, e.kind, str(e.until), shown(e.until), sum(f.rows for f in e.files),
            len(e.files), e.bytes,
        )
        for name in _tables(folder, table)
        for number, chain in enumerate(chains_of(folder, name), 1)
        for e in chain.elements
    ]  # fmt: skip
    show(LISTED, rows, format)


@app.command("show")
@verb
def show_(
    folder: DirArgument,
    table: Annotated[str, typer.Option(help="Table; needed if there are several.")] = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the definition, the columns and the files of the newest chain of a table."""
    from nyala.backup.chain import newest_chain
    from nyala.common.types import type_name

    names = _tables(folder, table)
    if len(names) > 1:
        raise fail(f"{folder} has several tables; give --table, one of: {', '.join(names)}", 2)
    chain = newest_chain(folder, names[0])
    last = chain.elements[-1]
    files = [
        (e.id, f.name, f.tablet, f.rows, f.bytes, f.sha256) for e in chain.elements for f in e.files
    ]
    columns = [(c.name, type_name(c.type)) for c in last.intervals[-1].schema.columns]
    if format is Format.JSON:
        print_json({
            "table": last.table, "id": last.table_id, "since": chain.since, "until": chain.until,
            "rows": last.rows_at_end, "definition": last.definition.to_json(), "columns": dict(columns),
            "files": [dict(zip(FILES, f, strict=True)) for f in files],
        })  # fmt: skip
        return
    if format is Format.TABLE:
        print(f"table {last.table}, id {last.table_id}, {last.rows_at_end} rows at {chain.until}")
        print(f"any moment from {chain.since} to {chain.until} can be restored")
        print("columns: " + ", ".join(f"{name} {kind}" for name, kind in columns))
    show(FILES, files, format)


@app.command("verify")
@verb
def verify(folder: DirArgument, table: OneTable = "") -> None:
    """Check presence, size, checksum and number of rows of every file."""
    from nyala.backup.chain import chains_of, check_files

    for name in _tables(folder, table):
        files, size = check_files(chains_of(folder, name))
        print(f"{name}: {files} files, {size} bytes, are as their manifests state")


@app.command("prune")
@verb
@stays("what is left can be restored: run the command again, which removes the rest")
def prune(
    folder: DirArgument,
    keep: Annotated[
        int, typer.Option(min=0, help="Number of newest chains of each table that stay; 0: any.")
    ] = 0,
    before: Annotated[
        str,
        typer.Option(
            help="Time, such as 2026-01-31T12:00:00+00:00: moments after it stay, as far as there are any."
        ),
    ] = "",
    table: OneTable = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")
    ] = False,
) -> None:
    """Remove old chains as a whole. The newest chain of a table always stays."""
    from nyala.backup import retention
    from nyala.common.hybrid_time import stamp_of_text

    time = stamp_of_text(before) if before else None
    for name in _tables(folder, table):
        gone = retention.prune(folder, name, keep=keep or None, before=time, dry_run=dry_run)
        size = sum(c.bytes for c in gone)
        done = "would be removed" if dry_run else "removed"
        print(f"{name}: {len(gone)} chains, {size} bytes, {done}")
