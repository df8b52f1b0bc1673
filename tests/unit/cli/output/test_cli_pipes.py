"""Commands whose output is read by another program that ends first, such as `head`."""

import os
import subprocess
import sys

import pytest

from tests.selected import first
from tests.waiting import within

FAILING = """
import typer
from nyala.cli import main
from nyala.cli.output import Format, show, verb

@main.app.command("check")
@verb
def check():
    show(("n",), [(n,) for n in range(10)], Format.TABLE)
    print("x" * 1_000_000)
    raise typer.Exit(1)

main.main()
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "code",
    first(
        [
            ["-c", FAILING, "check"],
            ["-m", "nyala.cli.main", "config", "list"],
            ["-m", "nyala.cli.main", "version"],
            ["-m", "nyala.cli.main", "--help"],
            ["-m", "nyala.cli.main", "config", "list", "--format", "json"],
            ["-m", "nyala.cli.main", "config", "list", "--format", "csv"],
        ],
        2,
    ),
)
def test_command_without_reader_ends_quietly_with_status_of_sigpipe(code, unbuffered):
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, *code],
            stdout=write,
            stderr=subprocess.PIPE,
            env=environ,
            timeout=within(100),
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_exit_status_stays_when_output_is_read():
    done = subprocess.run(
        [sys.executable, "-c", FAILING, "check"],
        capture_output=True,
        timeout=within(100),
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"")
