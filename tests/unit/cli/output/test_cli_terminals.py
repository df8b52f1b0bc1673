"""Commands on terminals of any encoding and width, and with closed streams: no error of Python."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from nyala.cli.output import Format, show
from tests.selected import first
from tests.waiting import within

LISTS = """
import typer
from nyala.cli import main
from nyala.cli.output import Format, show, verb

@main.app.command("check")
@verb
def check(format: Format = Format.TABLE):
    show(("name", "n"), [("\\u0141\\xf3d\\u017a \\u20ac", 1), ("\\ud800", 2)], format, "St\\xe4dte")

main.main()
"""
NAME = "Łódź €"


def run(*words: str, closed: str = "", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command by a shell that closes streams."""
    command = shlex.join([sys.executable, "-c", LISTS, *words])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(
        ["sh", "-c", f"{command} {closed}"], capture_output=True, check=False,
        env={**kept, **paths, **environ}, timeout=within(100),
    )  # fmt: skip


@pytest.mark.parametrize("encoding", first(["cp1252", "ascii", "latin-1"]))
@pytest.mark.parametrize("how", ["table", "csv", "json"])
def test_text_outside_the_encoding_is_escaped(encoding, how):
    done = run("check", "--format", how, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    if how == "json":
        assert json.loads(done.stdout)[0]["name"] == NAME
    else:
        assert NAME.encode(encoding, "backslashreplace") in done.stdout


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8", "en_US.ISO-8859-1"])
def test_pipes_are_utf_8_in_every_locale(locale):
    done = run("check", "--format", "csv", LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(f"name,n\n{NAME},1\n".encode())


@pytest.mark.parametrize("words", [("check",), ("nothing",), ("check", "--format", "json")])
@pytest.mark.parametrize("closed", first([">&-", "2>&-", "<&-", "<&- >&- 2>&-"], 2))
def test_closed_streams_are_discarded(closed, words):
    done = run(*words, closed=closed)
    assert done.returncode == (2 if "nothing" in words else 0)
    assert b"Traceback" not in done.stderr + done.stdout
    assert not (done.stdout and ">&-" in closed.replace("2>&-", ""))


ROW = ("flights", "RUNNING", 12, "x" * 32, "2024-01-01 <= day < 2025-01-01")
HEADINGS = ("table", "state", "tablets", "id", "partition")


@pytest.mark.parametrize(("columns", "as_table"), [("200", True), ("80", True), ("60", False)])
def test_listing_breaks_no_word_on_a_terminal_of_any_width(monkeypatch, capsys, columns, as_table):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", columns)
    show(HEADINGS, [ROW, ROW], Format.TABLE)
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= int(columns)
    words = [word.strip("│") for line in lines for word in line.split()]
    for cell in ROW:
        for word in str(cell).split():
            assert words.count(word) >= 2, (word, lines)
    assert any(set(HEADINGS) <= set(re.findall(r"\w+", line)) for line in lines) == as_table
    if not as_table:
        assert [line.split()[0] for line in lines if line] == [*HEADINGS, *HEADINGS]


@pytest.mark.parametrize("columns", ["1", "5", "20"])
def test_narrow_terminal_shows_every_cell(columns):
    done = run("check", COLUMNS=columns, LINES="1", PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stderr) == (0, b"")
    assert NAME.encode() in done.stdout
