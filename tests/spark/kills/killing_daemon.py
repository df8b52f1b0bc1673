"""A daemon of Python workers whose tasks kill their executor at a step of a job. A module of the tests.

`KILLS` is a folder: its file `at` names the job and the step at which the next task that comes to it kills
its executor, and `killed JOB, STEP` is made by the kill, so that there is one.
"""

import os
import signal
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.daemon import manager

from nyala.backup import load, parts, row_groups
from nyala.client.scan_token import ScanToken
from nyala.spark.daemon import WORKER, preload
from nyala.spark.jobs import backups, file_export
from nyala.spark.writes.atomic import AtomicWriter
from nyala.spark.writes.writer import TableWriter
from tests.spark.modes.killed_executor import parent

FOLDER = "KILLS"
FIRST, LAST, COMMIT = "first batch", "last batch", "before the commit"
STEPS = (FIRST, LAST, COMMIT)


def come_to(step: str, jobs: tuple[str, ...]) -> None:
    """Kill the executor of this task if it is the step of one of these jobs, and no task has done it.

    Args:
        step: one of STEPS.
        jobs: names.
    """
    folder = Path(os.environ[FOLDER])
    at = (folder / "at").read_text()
    if at not in {f"{job}, {step}" for job in jobs}:
        return
    try:
        os.close(os.open(folder / f"killed {at}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(parent(os.getppid()), signal.SIGKILL)  # above this worker and its daemon
    signal.pause()


def watched(batches: Iterator[Any], jobs: tuple[str, ...]) -> Iterator[Any]:
    """Pass batches on; come to FIRST when the one after the first is wanted, to LAST after the last one.

    Args:
        batches: of a task.
        jobs: names.
    """
    for number, batch in enumerate(batches):
        yield batch
        if not number:
            come_to(FIRST, jobs)
    come_to(LAST, jobs)


def ended(function: Callable[..., Any], *jobs: str) -> Callable[..., Any]:
    """Return a function that comes to COMMIT at its end.

    Args:
        function: its work.
        *jobs: names.
    """

    @wraps(function)
    def called(*words: Any, **named: Any) -> Any:
        done = function(*words, **named)
        come_to(COMMIT, jobs)
        return done

    return called


def giving(function: Callable[..., Any], *jobs: str) -> Callable[..., Any]:
    """Return a function whose batches are watched.

    Args:
        function: returns batches.
        *jobs: names.
    """

    @wraps(function)
    def called(*words: Any, **named: Any) -> Any:
        return watched(function(*words, **named), jobs)

    return called


def writing(write: Callable[..., Any], job: str) -> Callable[..., Any]:
    """Return the `write` of a writer, whose batches are watched, and which comes to COMMIT at its end.

    Args:
        write: the method.
        job: name.
    """
    return ended(lambda self, batches: write(self, watched(batches, (job,))), job)


def main() -> None:
    """Run the daemon."""
    changed: list[tuple[Any, str, Any]] = [
        (AtomicWriter, "write", writing(AtomicWriter.write, "import")),
        (TableWriter, "write", writing(TableWriter.write, "copy")),
        (ScanToken, "to_batches", giving(ScanToken.to_batches, "export", "backup")),
        (load, "batches_of", giving(row_groups.batches_of, "restore")),
        (file_export, "write_part", ended(parts.write_part, "export")),
        (parts, "write_own_part", ended(parts.write_own_part, "backup")),
        (backups, "load_in_task", ended(backups.load_in_task, "restore")),
    ]
    for where, name, function in changed:
        setattr(where, name, function)
    preload(WORKER)
    manager()


if __name__ == "__main__":
    main()
