"""The command `nyala`, also `python -m nyala`.

Until a command begins (`verb` in `cli/output.py`) an interrupt ends the process with a sentence; later the
command says what stays under way. So an interrupt during imports leaves no traceback, and none is lost there.
"""

import os
import signal
import sys

UNTIL_COMMAND = "_until_command"
"""Attribute of a handler of interrupts that a command replaces by Python's own as it begins."""
SENTENCE = "nyala: interrupted before the command began: nothing stays under way\n"
INTERRUPTED = 130
"""Exit status when the user interrupts a command, as of a command that SIGINT ends."""


def _end(number: int, frame: object) -> None:
    """End the process. Not by an exception, since imports may replace it by one of their own."""
    del number, frame
    os.write(sys.stderr.fileno(), SENTENCE.encode())
    os._exit(INTERRUPTED)


setattr(_end, UNTIL_COMMAND, True)


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from nyala.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
