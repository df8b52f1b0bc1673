"""`nyala restore DIR`: tables of a folder of backups, as of one moment."""

from pathlib import Path
from typing import Annotated

import typer

from nyala.cli.output import MastersOption, fail, moment_of, say, stays, verb
from nyala.common.texts.counted import counted


@verb
@stays("no table of the name exists: run the command again, which begins anew")
def restore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backups.")],
    masters: MastersOption = "",
    table: Annotated[
        list[str] | None, typer.Option(help="Table, may be repeated; all if not given.")
    ] = None,
    new_name: Annotated[
        str, typer.Option("--as", help="Name of the restored table, if it is one.")
    ] = "",
    at: Annotated[
        str,
        typer.Option(
            help="Moment: a hybrid time, or a time such as 2026-01-31T12:00:00+00:00; the latest one if not "
            "given."
        ),
    ] = "",
    replicas: Annotated[
        int, typer.Option(min=0, help="Replicas of each tablet; 0: as in the backup.")
    ] = 0,
    verify: Annotated[
        bool,
        typer.Option(
            help="Compare the checksums of all files before anything is written; otherwise their sizes."
        ),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the backup and the names, and write nothing.")
    ] = False,
) -> None:
    """Restore tables from backups, with columns, partitions and options, as they were at a moment."""
    from nyala.backup.folders import tables_in
    from nyala.backup.restore import RestoreOptions, Restoring
    from nyala.client.connection import Connection
    from nyala.client.core import ClientOptions

    names = table or tables_in(folder)
    if new_name and len(names) > 1:
        raise fail(f"--as names one table, and there are several: {', '.join(names)}", 2)
    options = RestoreOptions(
        name=new_name, at=moment_of(at), replicas=replicas, verify=verify, dry_run=dry_run
    )  # fmt: skip
    connection = Connection(masters, ClientOptions())
    try:
        restoring = Restoring(connection, folder, report=say)
        for name in names:
            done = restoring.restore(name, options)
            if dry_run:
                print(f"{name} would be restored as {done.name}, as of {done.at}")
            else:
                print(
                    f"{name} was restored as {done.name}, as of {done.at}: {counted(done.rows, 'row')}"
                )
    finally:
        connection.close()
