"""Commands of nyala that end themselves by SIGKILL at their Nth step. A program of the tests.

Each line of standard input is a JSON list: the step, 0 for none, and the words of a command, which a forked
process runs. For each, a line with a JSON list is printed: its exit status, negative when a signal ended it,
and what it printed. Steps are counted from 1. One is the moment before a file or folder below `FOLDER` is
made, renamed or removed; before and after a request that changes the state of the masters; before and after
a file is loaded into a table.
"""

import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import nyala.backup.take
from nyala.backup import load, restore
from nyala.cli.main import app
from nyala.client.cluster.masters import Masters

FOLDER = "FOLDER"
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
WRITING = os.O_WRONLY | os.O_RDWR


def end_at(step: int) -> None:
    """End this process at a step."""
    steps, folder = itertools.count(1), os.environ[FOLDER]

    def count() -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event not in CHANGES and not (event == "open" and (args[2] or 0) & WRITING):
            return
        if isinstance(args[0], str | os.PathLike) and os.fspath(args[0]).startswith(folder):
            count()

    change, load_file = Masters.change, load.load_file

    async def counted_change(self: Masters, *args: Any, **more: Any) -> Any:
        count()
        answer = await change(self, *args, **more)
        count()
        return answer

    def counted_load(*args: Any) -> int:
        count()
        rows = load_file(*args)
        count()
        return rows

    setattr(Masters, "change", counted_change)  # noqa: B010 - patched in this process only
    setattr(restore, "load_file", counted_load)  # noqa: B010 - as above
    sys.addaudithook(audit)


def forked(work: Callable[[], object]) -> tuple[int, str]:
    """Run a function in a forked process; return its exit status and what it printed."""
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            status: Any = 1
            try:
                work()
            except SystemExit as end:
                status = end.code
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status or 0)
        _, ended = os.waitpid(child, 0)
        printed.seek(0)
        return os.waitstatus_to_exitcode(ended), printed.read()


def main() -> None:
    """Run the commands of standard input."""
    assert nyala.backup.take, "what the commands import is imported before they are forked"
    for line in sys.stdin:
        step, words = json.loads(line)

        def work(step: int = step, words: list[str] = words) -> None:
            if step:
                end_at(step)
            app(words, prog_name="nyala")

        print(json.dumps(forked(work)), flush=True)


if __name__ == "__main__":
    main()
