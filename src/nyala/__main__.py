"""The command `nyala`, also `python -m nyala`, and what interrupts do to it.

Until a command begins (`verb` in `cli/output.py`) an interrupt ends the process with a sentence; later the
command says what stays under way. So an interrupt during imports leaves no traceback, and none is lost there.

A command imports what it needs while it runs. A native module whose initialisation is interrupted may abort
the process, or raise an error of its own, and Python ignores exceptions in some callbacks of an import. So
an interrupt during an import of a command is held, and raised as the outermost import ends.
"""

import os
import signal
import sys
from types import FrameType

UNTIL_COMMAND = "_until_command"
"""Attribute of a handler of interrupts that a command replaces by its own as it begins."""
SENTENCE = "nyala: interrupted before the command began: nothing stays under way\n"
INTERRUPTED = 130
"""Exit status when the user interrupts a command, as of a command that SIGINT ends."""


def _end(number: int, frame: object) -> None:
    """End the process. Not by an exception, since imports may replace it by one of their own."""
    del number, frame
    os.write(sys.stderr.fileno(), SENTENCE.encode())
    os._exit(INTERRUPTED)


setattr(_end, UNTIL_COMMAND, True)


def raise_between_imports() -> None:
    """Let interrupts raise KeyboardInterrupt, but only while no import is under way.

    A handler that is neither Python's own nor that of `main` stays.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler or hasattr(handler, UNTIL_COMMAND):
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _imports(frame):
        signal.default_int_handler(number, frame)
    sys.setprofile(_import_ends)


def _import_ends(frame: FrameType, event: str, arg: object) -> None:
    """Raise the interrupt that was held as the outermost import ends. Called for every frame that does."""
    del arg
    if event == "return" and _is_import(frame) and not _imports(frame.f_back):
        sys.setprofile(None)
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and not _is_import(frame):
        frame = frame.f_back
    return frame is not None


def _is_import(frame: FrameType) -> bool:
    return frame.f_code.co_filename == "<frozen importlib._bootstrap>"


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from nyala.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
