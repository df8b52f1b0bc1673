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


NATIVE = """
import os, signal, sys, types
from importlib.abc import Loader
from importlib.machinery import ModuleSpec

class Native(Loader):
    def exec_module(self, module):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        except BaseException as err:
            raise ImportError("the initialisation failed") from err

class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, Native()) if name == "native" else None

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
from nyala.cli.output import verb

@verb
def command():
    import native
    print("the command continues")

command()
"""
"""A command that is interrupted while it imports a module that takes no exceptions."""


def test_interrupt_during_the_import_of_a_native_module_is_raised_as_the_import_ends():
    done = subprocess.run(
        [sys.executable, "-c", NATIVE], capture_output=True, text=True, timeout=within(100), check=False
    )  # fmt: skip
    assert "ImportError" not in done.stderr
    assert f"nyala: interrupted; {READS}" in done.stderr.splitlines()
    assert done.stdout == ""
