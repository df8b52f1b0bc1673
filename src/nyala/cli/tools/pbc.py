"""`nyala pbc dump`: metadata files of a data directory as JSON."""

from typing import Annotated

import typer

from nyala.cli.output import print_json, verb

app = typer.Typer(no_args_is_help=True, help="Metadata files of data directories.")


@app.callback()
def _group() -> None:
    """Metadata files of data directories."""


@app.command("dump")
@verb
def dump(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="DIR/instance, DIR/superblock/TABLET, DIR/cmeta/TABLET, or a manifest.",
        ),
    ],
) -> None:
    """Print the content of metadata files as JSON, one object for each. It changes nothing.

    The checksum of each file is verified. A file of a running server may be replaced while it is read: stop
    the server for a consistent set of files.
    """
    from nyala.env.files import SystemFiles
    from nyala.offline.metadata_files import read

    files = SystemFiles()
    try:
        print_json([read(files, path) for path in paths])
    finally:
        files.close()
