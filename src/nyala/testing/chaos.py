"""The simulator and the scenarios that come with nyala, run in a process of their own (`nyala chaos`).

They are in the wheel as files that no module of nyala imports, and in a clone in `tests`.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nyala.common.errors import NotFound, Unavailable

HERE = Path(__file__).parents[1]
INSTALLED, CLONE = HERE / "chaos_suite", HERE.parents[1]
PROGRAM = "tests.sim.named.run"
END_S = 5
"""Time in which the program ends its workers, in seconds; then all are killed."""


def suite() -> Path:
    """Return the folder that has the simulator.

    Raises:
        NotFound: this installation has none.
    """
    for folder in (INSTALLED, CLONE):
        if (folder / "tests" / "sim" / "named" / "run.py").is_file():
            return folder
    raise NotFound(
        f"this installation of nyala has no simulator: neither {INSTALLED} nor {CLONE / 'tests'} exists; "
        "install the wheel, which contains it, or run the command in a clone of the repository"
    )


def listing() -> list[tuple[str, str, str]]:
    """Return name, design document and content of each named scenario.

    Raises:
        Unavailable: the simulator does not run.
    """
    done = subprocess.run(_command("list"), env=_environment(), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise Unavailable(
            f"the simulator ended with status {done.returncode}; its own error is above: mend this "
            "installation, or install the wheel again"
        )
    return [(name, document, text) for name, document, text in json.loads(done.stdout)]


def run(words: Sequence[str]) -> int:
    """Run the program with some words, and return its exit status; what it prints is printed.

    It has a session of its own: an interrupt of the terminal reaches this process, which ends it. So do
    SIGTERM and SIGHUP, as nothing else would end the program and its workers.
    """
    with (
        _exit_at(signal.SIGTERM, signal.SIGHUP),
        subprocess.Popen(_command(*words), env=_environment(), start_new_session=True) as program,
    ):
        try:
            status = program.wait()
        except BaseException:  # also an interrupt: nothing else would end the program
            _end(program)
            raise
    return status if status >= 0 else 128 - status


def _end(program: "subprocess.Popen[bytes]") -> None:
    """End the program, and its workers with it; a second signal kills all at once."""
    program.terminate()
    try:
        program.wait(END_S)
    except BaseException as err:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(program.pid, signal.SIGKILL)
        if not isinstance(err, subprocess.TimeoutExpired):
            raise


@contextmanager
def _exit_at(*signals: signal.Signals) -> Iterator[None]:
    """Raise SystemExit at each of these signals in the block, except those that are ignored, as by nohup."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    heeded = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _command(*words: str) -> list[str]:
    """Return a command; -P keeps the present folder, which may have other `tests`, out of the search path."""
    return [sys.executable, "-P", "-m", PROGRAM, *words]


def _environment() -> dict[str, str]:
    paths = [str(suite()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
