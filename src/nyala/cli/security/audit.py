"""`nyala audit`: audit logs of servers."""

from typing import Annotated

import typer

from nyala.cli.output import say, verb

app = typer.Typer(no_args_is_help=True, help="Audit logs of servers.")


@app.callback()
def _group() -> None:
    """Audit logs of servers."""


@app.command("verify")
@verb
def verify(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="audit.log, and earlier files before it.")
    ],
) -> None:
    """Check that no line of an audit log was changed, removed or inserted.

    Lines removed from the end are found by the number and hash printed here, when they are noted elsewhere.
    """
    from nyala.security.audit import verify_files

    first, last, found = verify_files(files)
    say(f"lines {first} to {last} are intact; the hash of the last one is {found}")
