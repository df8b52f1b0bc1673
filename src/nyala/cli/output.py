"""Output of the command line: tables, JSON, CSV; errors and exit statuses."""

import base64
import errno
import functools
import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from nyala.__main__ import INTERRUPTED, raise_between_imports
from nyala.common.errors import NyalaError
from nyala.env.monotonic import command as beginning

P = ParamSpec("P")
T = TypeVar("T")


DEFAULT_DIR = "./nyala-data"


class Format(StrEnum):
    """Format of a listing."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def local_masters(given: str) -> str:
    """Return the given masters, or those of the local cluster if none are given.

    Raises:
        typer.Exit: none are given, and there is no local cluster.
    """
    if given:
        return given
    from nyala.testing import layout

    found = layout.load(DEFAULT_DIR)
    if found is None:
        raise fail(
            "no master address: --masters is not given, NYALA_MASTERS is not set, and there is no local "
            f"cluster in {DEFAULT_DIR}; give --masters host:port,..., change to the folder that has "
            f"{DEFAULT_DIR}, or start a local cluster with: nyala up",
            2,
        )
    return found.masters


def _masters_given(context: typer.Context, given: str) -> str:
    """Return the masters of a command; while a shell completes its line, what is typed so far."""
    return given if context.resilient_parsing else local_masters(given)


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        help="Output format; in CSV null is an empty field, and an empty text is quoted. JSON and CSV have "
        "binary values in base64, and NaN, Infinity and -Infinity as texts.",
    ),
]
AtOption = Annotated[
    str,
    typer.Option(
        help="Snapshot: a hybrid time, or a time with its zone such as 2026-01-31T12:00:00+00:00; now if not "
        "given."
    ),
]
MastersOption = Annotated[
    str,
    typer.Option(
        "--masters",
        envvar="NYALA_MASTERS",
        callback=_masters_given,
        show_default=False,
        help=f"host:port,...; not given: the local cluster in {DEFAULT_DIR}.",
    ),
]
DirOption = Annotated[str, typer.Option("--dir", help="Folder of the local cluster.")]


def dir_hint(dir: str) -> str:
    """Return the option that names a folder in a command that a message proposes."""
    return "" if dir == DEFAULT_DIR else f" --dir {shlex.quote(dir)}"


PLAIN = ("pid", "at", "timestamp", "epoch")
"""Numeric columns that users copy from: no thousands separators."""
PIPE_WIDTH = 10_000
"""Width, in columns, of tables that are not printed to a terminal."""


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which a terminal would obey; all but tab and new line."""


def show(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], how: Format, title: str = "",
    *, data: bool = False,
) -> None:  # fmt: skip
    """Print a listing.

    Args:
        columns: their headings.
        rows: the values, in the order of the columns.
        how: format of the listing.
        title: title of a table for terminals; empty: none.
        data: the values are those of a user's table, whose numbers are printed unformatted.
    """
    if how is Format.JSON:
        names = _unique(columns)
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if how is Format.CSV:
        for row in (columns, *rows):
            print(",".join(map(_csv_field, row)))
        return
    cells = [
        [_cell(v, data or c in PLAIN) for c, v in zip(columns, row, strict=True)] for row in rows
    ]
    _print_table(columns, cells, title)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """Print a table; on a narrow terminal without lines, or each row as lines of name and value.

    A word of a cell is never broken in a table: a terminal of 80 columns has no room for two ids.

    Args:
        columns: their headings.
        rows: the cells, as markup.
        title: title of the table; empty: none.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else PIPE_WIDTH)
    unlimited = console.options.update(width=PIPE_WIDTH)
    with_lines = Table(title=title or None, title_justify="left")
    without = Table(
        title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False
    )
    for table in (with_lines, without):
        for number, column in enumerate(columns):
            words = not rows or any(" " in row[number] for row in rows)
            table.add_column(column, no_wrap=terminal and not words, overflow="fold")
        for row in rows:
            table.add_row(*row)
        needed = Measurement.get(console, unlimited, table).minimum
        if not (rows and terminal) or needed <= console.width:
            console.print(table)
            return
    if title:
        console.print(title, style="italic")
    for number, row in enumerate(rows):
        if number:
            console.print()
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(style="bold")
        lines.add_column(overflow="fold")
        for name, value in zip(columns, row, strict=True):
            lines.add_row(name, value)
        console.print(lines)


def print_json(value: Any, *, line: bool = False) -> None:
    """Print a value as JSON that strict parsers read.

    Args:
        value: as `as_json` takes it.
        line: as one line, flushed.
    """
    print(json.dumps(as_json(value), indent=None if line else 2, allow_nan=False), flush=line)


def as_json(value: Any) -> Any:
    """Return a value of which JSON keeps everything.

    NaN and infinities are the texts "NaN", "Infinity" and "-Infinity", binary values are base64, decimals,
    dates and times are their texts. Integers are numbers with all their digits.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return str(value)


def _unique(columns: Sequence[str]) -> list[str]:
    """Return the names of columns; a repeated one gets a number, since an object has each name once."""
    found: list[str] = []
    for column in columns:
        name, number = column, 2
        while name in found:
            name, number = f"{column}_{number}", number + 1
        found.append(name)
    return found


def _csv_field(value: Any) -> str:
    """Return a field as PostgreSQL and DuckDB write it: null is empty, an empty text is quoted."""
    if value is None:
        return ""
    plain = as_json(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    if text and not any(c in text for c in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _cell(value: Any, plain: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    from rich.markup import escape

    if isinstance(value, int) and not plain:
        return f"{value:,}"
    if isinstance(value, bytes):
        return escape(repr(value)[2:-1])
    return escape(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(value)))


def say(text: str) -> None:
    """Print a message on standard error, so that standard output stays machine-readable."""
    print(text, file=sys.stderr)


CLOSED_PIPE = 141
"""Exit status when the reader of standard output has ended, as of a command that SIGPIPE ends."""


class PipeOutput(io.TextIOWrapper):
    """Standard output that ends the process quietly when its reader, such as `head`, has ended."""

    def write(self, text: str) -> int:
        """Write a text.

        Raises:
            SystemExit: the reader has ended.
        """
        try:
            return super().write(text)
        except BrokenPipeError:
            raise self._closed() from None

    def flush(self) -> None:
        """Write what is buffered.

        Raises:
            SystemExit: the reader has ended.
        """
        try:
            super().flush()
        except BrokenPipeError:
            raise self._closed() from None

    def _closed(self) -> SystemExit:
        """Return the exit; what is buffered is discarded, since Python flushes once more when it ends."""
        discard = os.open(os.devnull, os.O_WRONLY)
        os.dup2(discard, self.fileno())
        os.close(discard)
        return SystemExit(CLOSED_PIPE)


ESCAPED = "backslashreplace"
"""Characters that the encoding of a stream lacks are written as escapes."""


def take_streams() -> None:
    """Make the standard streams such that no output ends a command with an error of Python.

    A stream that the user has closed is discarded. Standard output to a file or pipe is UTF-8 on each host,
    unless PYTHONIOENCODING is set; a terminal has its own encoding. What an encoding lacks is escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", ESCAPED)
    if sys.stdout is None:
        sys.stdout = PipeOutput(
            io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", ESCAPED
        )
        return
    out = sys.stdout
    own = out.isatty() or "PYTHONIOENCODING" in os.environ
    sys.stdout = PipeOutput(
        out.buffer, out.encoding if own else "utf-8", ESCAPED, line_buffering=bool(out.line_buffering)
    )  # fmt: skip


def fail(message: str, status: int = 1) -> typer.Exit:
    """Print an error; return the exception to raise."""
    say(f"nyala: {message}")
    return typer.Exit(status)


HINTS = {
    errno.ENOTDIR: "a file exists where a folder is needed: name a folder, or move the file away",
    errno.EEXIST: "the path exists already: name another path",
    errno.EISDIR: "a folder exists where a file is needed: name a file, or move the folder away",
    errno.ENOENT: "check the path",
    errno.EACCES: "this user has no permission: use another folder, or change its permissions (ls -ld)",
    errno.EPERM: "this user has no permission: use another folder, or change its permissions (ls -ld)",
    errno.EROFS: "its disk is mounted read-only: use a folder on another one",
    errno.ENOSPC: "the disk is full: free some space, then run the command again (df -h)",
    errno.EIO: "the disk fails: see the kernel's log (dmesg), and use another one",
}
"""Advice for errors of the operating system."""


def describe_os_error(err: OSError) -> str:
    """Return a message for an error of the operating system: the error, the file, and advice."""
    what = f"{err.filename}: {err.strerror}" if err.filename else str(err.strerror or err)
    return f"{what}; {HINTS.get(err.errno or 0, 'fix that, then run the command again')}"


READS = "the command only reads: nothing stays under way"
TABLES = "the masters may still carry out what was sent: nyala table list and describe show it"
JOURNALS = "what was sent may still take effect: nyala journal list and describe show it"
STEPS = (
    "a step that was sent is still carried out: run the command again, which continues from there"
)
SERVERS = "the masters may still carry out what was sent: nyala tserver list shows it"
ROWS = "rows that were sent may still be changed: run the command again"
FILES = "nothing stays under way, but the change may be incomplete: run the command again"
STAYS = "_stays_under_way"
"""Attribute of a command: a sentence."""


def stays(sentence: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a command, below `verb`, with what stays under way when the user interrupts it."""

    def mark(command: Callable[P, T]) -> Callable[P, T]:
        setattr(command, STAYS, sentence)
        return command

    return mark


def verb(command: Callable[P, T]) -> Callable[P, T]:
    """Decorate a command: errors become one message and an exit status, without a traceback.

    An interrupt becomes one too, with what stays under way: what `stays` states, or nothing.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            raise_between_imports()
            with beginning():
                return command(*args, **kwargs)
        except NyalaError as err:
            raise fail(str(err), err.exit_status) from None
        except (KeyboardInterrupt, typer.Abort) as err:
            if not any(isinstance(e, KeyboardInterrupt) for e in (err, err.__context__)):
                raise  # a question was answered with no, or not at all
            sentence = getattr(command, STAYS, READS)
            raise fail(f"interrupted; {sentence}", INTERRUPTED) from None
        except BrokenPipeError:
            raise typer.Exit(CLOSED_PIPE) from None
        except OSError as err:
            raise fail(describe_os_error(err)) from None

    return run


def listed(text: str) -> tuple[str, ...]:
    """Return the items of a list by commas."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def moment_of(at: str) -> int | None:
    """Return the hybrid time of `--at`; None: now.

    Raises:
        InvalidArgument: it is no time.
    """
    from nyala.common.hybrid_time import stamp_of_text

    return None if at in ("", "0") else stamp_of_text(at)
