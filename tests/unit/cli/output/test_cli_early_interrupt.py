"""An interrupt before a command begins, and while the command imports what it needs."""

import subprocess
import sys

import pytest

from nyala.__main__ import SENTENCE
from nyala.cli.output import READS
from tests.waiting import within

INTERRUPTED_AT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.{})
from nyala.__main__ import main
main()
"""


def interrupted(module: str, handler: str) -> tuple[int, str]:
    """Run a command that is interrupted when it imports a module; return its status and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT.format(module, handler), "config", "list"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=within(100), check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("nyala.cli.main", SENTENCE),
        ("typer", SENTENCE),
        ("nyala.cli.suggest", SENTENCE),
        ("nyala.common.option_limits", f"nyala: interrupted; {READS}\n"),
    ],
)
def test_interrupt_during_an_import_ends_with_one_sentence(module, sentence):
    assert interrupted(module, "default_int_handler") == (130, sentence)


def test_ignored_interrupts_stay_ignored():
    assert interrupted("typer", "SIG_IGN") == (0, "")
