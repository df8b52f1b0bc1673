"""Progress of a long call for its caller, and the caller's request to stop it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from nyala.client.write.staging import StagingTarget
from nyala.common.errors import InvalidArgument
from nyala.common.values.casting import Conversion, Requested, conversion_of

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

OnProgress = Callable[[int], object]
"""Called with the number of rows so far."""


class WriteArguments(Requested, total=False):
    """Arguments of every write: those of `Conversion` and `Watch`, and the transaction that it belongs to."""

    progress: bool | OnProgress
    stop: threading.Event | None
    txn: StagingTarget | None


def split_arguments(how: WriteArguments, label: str) -> "tuple[Conversion, Watch]":
    """Return the conversions of a write, and its progress.

    Raises:
        InvalidArgument: a value that is none of its argument.
        TypeError: an unknown argument.
    """
    rest = dict(how)
    watch = Watch(how.get("progress", False), how.get("stop"), label)
    for name in ("progress", "stop", "txn"):
        rest.pop(name, None)
    return conversion_of(rest), watch


class Watch:
    """Progress and stop event of one call; a context manager, which ends the bar.

    Args:
        progress: True draws a bar in a terminal or a notebook, and nothing elsewhere; a callable is called
            with the number of rows so far.
        stop: event that ends the call early when it is set.
        label: text beside the bar.
        total: number of rows, if it is known.

    Attributes:
        active: progress is shown, or there is an event.
        ended_early: the event ended the call.

    Raises:
        InvalidArgument: `progress` or `stop` is something else.
    """

    def __init__(
        self,
        progress: bool | OnProgress = False,
        stop: threading.Event | None = None,
        label: str = "",
        total: int | None = None,
    ) -> None:
        if not isinstance(progress, bool) and not callable(progress):
            raise InvalidArgument(
                f"progress={progress!r}: pass True for a bar, or a function that takes the number of rows"
            )
        if stop is not None and not callable(getattr(stop, "is_set", None)):
            raise InvalidArgument(
                f"stop={stop!r}: pass a threading.Event, and set it to stop the call"
            )
        self.active = bool(progress) or stop is not None
        self.ended_early = False
        self._progress = progress
        self._stop = stop
        self._label = label
        self._total = total
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, and show the number of their rows that were accepted."""
        rows = 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            self.reached(rows)

    def stopped(self) -> bool:
        """Return whether the call is to end, which it does then."""
        self.ended_early = self._stop is not None and self._stop.is_set()
        return self.ended_early

    def reached(self, rows: int) -> None:
        """Show the number of rows so far."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=rows, shown=f"{rows:,}")
        elif callable(self._progress):
            self._progress(rows)

    def __enter__(self) -> "Watch":
        if self._progress is True:
            self._bar = _bar()
            self._task = self._bar.add_task(self._label, total=self._total, shown="0")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with suppress(OSError, ValueError):  # the terminal is gone
                self._bar.stop()


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]} rows"),
        TimeElapsedColumn(),
        console=console,
        disable=not (console.is_terminal or console.is_jupyter),
    )
