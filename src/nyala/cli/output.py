"""What the command line prints: tables, JSON, CSV; errors with their exit status (design section 13)."""

import csv
import functools
import io
import json
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from nyala.common.errors import NyalaError

P = ParamSpec("P")
T = TypeVar("T")


class Format(StrEnum):
    """How a listing is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormatOption = Annotated[Format, typer.Option("--format", help="How to print it.")]
MastersOption = Annotated[
    str,
    typer.Option(
        "--masters", envvar="NYALA_MASTERS", help="Master addresses: host:port,host:port,..."
    ),
]
DirOption = Annotated[str, typer.Option("--dir", help="Folder of the local cluster.")]
DEFAULT_DIR = "./nyala-data"
IDS = ("id", "uuid", "tablet")
"""Columns that people copy from: never cut or broken."""
PIPE_WIDTH = 10_000
"""What no terminal reads is not fitted to one."""


def show(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], how: Format, title: str = ""
) -> None:
    """Print a listing."""
    if how is Format.JSON:
        print(
            json.dumps(
                [dict(zip(columns, row, strict=True)) for row in rows], indent=2, default=str
            )
        )
        return
    if how is Format.CSV:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *rows])
        print(text.getvalue(), end="")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=column in IDS, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def say(text: str) -> None:
    """Print a line for a person on standard error, so that standard output stays machine-readable."""
    print(text, file=sys.stderr)


def fail(message: str, status: int = 1) -> typer.Exit:
    """Print an error and return what to raise."""
    say(f"nyala: {message}")
    return typer.Exit(status)


def verb(command: Callable[P, T]) -> Callable[P, T]:
    """Turn the errors of a command into one message and its exit status; no traceback for a user."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except NyalaError as err:
            raise fail(str(err), err.exit_status) from None
        except KeyboardInterrupt:
            raise fail("interrupted", 130) from None
        except BrokenPipeError:
            raise typer.Exit(0) from None

    return run
