"""Output and exit status of the command line, where no cluster is needed."""

import csv
import errno
import io
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from nyala.__main__ import INTERRUPTED
from nyala.cli.main import app
from nyala.cli.output import (
    DEFAULT_DIR,
    HINTS,
    READS,
    STAYS,
    Format,
    local_masters,
    show,
    stays,
    verb,
)
from nyala.common.errors import (
    BY_CODE,
    InvalidArgument,
    NotFound,
    NyalaError,
    TimedOut,
    Unavailable,
)
from nyala.testing import layout

COLUMNS = ("id", "name", "rows", "well")
ROWS = [("f" * 32, "a, b", 1_234_567, True), ("0" * 32, 'say "hi"', None, False)]


def printed(capsys, how):
    show(COLUMNS, ROWS, how)
    return capsys.readouterr().out


def test_json_and_csv_keep_values_unchanged(capsys):
    assert json.loads(printed(capsys, Format.JSON)) == [
        dict(zip(COLUMNS, r, strict=True)) for r in ROWS
    ]
    lines = list(csv.reader(io.StringIO(printed(capsys, Format.CSV))))
    assert lines[0] == list(COLUMNS)
    assert lines[1] == ["f" * 32, "a, b", "1234567", "true"]


def test_csv_output_tells_null_from_empty_text(capsys):
    """PostgreSQL and DuckDB read an empty field as null, and a quoted one as an empty text."""
    show(("a", "b"), [(None, ""), ("", None), ('x"y', "line\nline")], Format.CSV)
    assert capsys.readouterr().out == 'a,b\n,""\n"",\n"x""y","line\nline"\n'


def test_table_output_has_complete_ids_and_readable_numbers(capsys):
    text = printed(capsys, Format.TABLE)
    assert "f" * 32 in text
    assert "0" * 32 in text
    assert "1,234,567" in text
    assert "yes" in text
    assert "None" not in text


def test_table_output_has_no_control_characters_but_new_lines(capsys):
    value = "\x1b[31mred\x1b]0;title\x07\x9b1m one\ntwo é"
    show(("data",), [(value,)], Format.TABLE)
    text = capsys.readouterr().out
    assert not {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160} - {"\n"}
    assert r"\x1b[31mred\x1b]0;title\x07\x9b1m one" in text
    assert "two é" in text
    show(("data",), [(value,)], Format.JSON)
    assert json.loads(capsys.readouterr().out) == [{"data": value}]


def test_ids_are_not_truncated_beside_wide_columns(capsys):
    show(("tablet", "replicas"), [("e" * 32, "127.0.0.1:7050, " * 20)], Format.TABLE)
    assert "e" * 32 in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (NotFound("no table 'x'"), 5),
        (InvalidArgument("wrong"), 2),
        (Unavailable("nobody"), 3),
        (TimedOut("late"), 7),
        (NyalaError("else"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
)
def test_error_prints_one_line_and_sets_exit_status(raised, status, capsys):
    @verb
    def fails():
        raise raised

    with pytest.raises(typer.Exit) as caught:
        fails()
    assert caught.value.exit_code == status
    expected = capsys.readouterr()
    assert expected.out == ""
    assert len(expected.err.splitlines()) == (0 if status == 141 else 1)


def at_a_question(raised: BaseException) -> typer.Abort:
    """Return the error of a question during which another one was raised."""
    abort = typer.Abort()
    abort.__context__ = raised
    return abort


def test_unconfirmed_command_ends_as_typer_does():
    @verb
    def changes():
        raise at_a_question(EOFError())

    with pytest.raises(typer.Abort):
        changes()


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), at_a_question(KeyboardInterrupt())])
def test_interrupt_tells_what_stays_under_way(raised, capsys):
    @verb
    @stays("a copy continues")
    def changes():
        raise raised

    @verb
    def reads():
        raise raised

    for command, sentence in ((changes, "a copy continues"), (reads, READS)):
        with pytest.raises(typer.Exit) as caught:
            command()
        assert caught.value.exit_code == INTERRUPTED
        assert capsys.readouterr().err == f"nyala: interrupted; {sentence}\n"


READERS = frozenset([
    "check", "describe", "dump", "follow", "get", "grants", "holds", "key", "keys", "ksck", "list",
    "locate_row", "log", "logs", "members", "ops", "print_replica_uuids", "read", "revoked", "run", "scan",
    "servers", "show", "sql", "statistics", "status", "survivors", "table_scan", "tables", "tail", "uuid",
    "verify", "version", "web", "will",
])  # fmt: skip
"""Commands that change nothing; those that run a server end as it does."""


def commands(group: Any) -> Iterator[tuple[str, Any]]:
    for command in group.registered_commands:
        yield command.name or command.callback.__name__, command.callback
    for below in group.registered_groups:
        yield from commands(below.typer_instance)


def test_every_command_that_changes_something_tells_what_stays_under_way():
    silent = {name for name, callback in commands(app) if not hasattr(callback, STAYS)}
    assert silent <= READERS, "add @stays(...) below @verb"


def test_exit_statuses_equal_documentation():
    table = {code: cls.exit_status for code, cls in BY_CODE.items()}
    assert set(table.values()) <= {1, 2, 3, 4, 5, 6, 7}
    assert (table["UNAUTHENTICATED"], table["ALREADY_PRESENT"], table["NOT_LEADER"]) == (4, 6, 3)


def run(*words, **environ):
    return CliRunner().invoke(app, list(words), env=environ or {"NYALA_MASTERS": ""})


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """The verb runs in a folder without a local cluster."""
    monkeypatch.chdir(tmp_path)


AT = ["--address", "127.0.0.1:2", "--masters", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["table", "list"], 2, "no master address: --masters is not given, NYALA_MASTERS is not set"),
        (["table", "list"], 2, "start a local cluster with: nyala up"),
        (["table", "list", "--masters", "nonsense"], 2, "'nonsense' is not an address"),
        (["table", "list", "--format", "xml"], 2, "xml"),
        (["tabel"], 2, "Did you mean 'table', 'tablet'?"),
        (["tables"], 2, "table list'?"),
        (["table", "scan", "t", "--at", "yesterday", *AT[2:]], 2, "'yesterday' is no time"),
        (["ksck"], 2, "cluster ksck'?"),
        (["table", "list", "--formt", "csv"], 2, "--format"),
        (["up", "--dir", "/dev/null"], 1, "name another path"),
        (["up", "--dir", "/dev/null/x"], 1, "name a folder"),
        (["up", "--masters", "2", "--dir", "/nonexistent/x"], 2, "choose an odd number"),
        (["up", "--tservers", "0", "--dir", "/nonexistent/x"], 2, "at least one tablet server"),
        (["up", "--base-port", "80", "--dir", "/nonexistent/x"], 2, "base port 80"),
        (["up", "--set", "flush_bytes", "--dir", "/nonexistent/x"], 2, "write --set name=value"),
        (["up", "--set", "no_such=1", "--dir", "/nonexistent/x"], 2, "no_such"),
        (["up", "--set", "flush_bytes=lots", "--dir", "/nonexistent/x"], 2, "flush_bytes"),
        (["status", "--dir", "/nonexistent/x"], 5, "no local cluster in /nonexistent/x"),
        (["down", "--dir", "/nonexistent/x"], 5, "no local cluster in /nonexistent/x"),
        (["ram", "up", "--dir", "/nonexistent/x"], 5, "start one with: nyala up --dir /nonexistent/x"),
        (["ram", "status", "--dir", "/nonexistent/x"], 5, "nyala ram up --dir /nonexistent/x"),
        (["ram", "split", "t", "12ab", "--masters", "127.0.0.1:1"], 2, "'12ab' is no hash below 2^64"),
        (["ram", "split", "t", "0x1ffffffffffffffff", "--masters", "127.0.0.1:1"], 2, "no hash below 2^64"),
        (["ram", "server", "run", *AT, "--roles", "bogus"], 2, "give master or backup, or both"),
        (["ram", "coordinator", "run", *AT, "--ensemble", ""], 2, "no name of an ensemble"),
        (["ram", "split", "t", "0xff", "--masters", "127.0.0.1:1"], 3, "127.0.0.1:1"),
        (["master", "run", "--dir", "/nonexistent/x", "--address", "10.0.0.1:1"], 4, "refusing to bind"),
        (["tserver", "run", "--dir", "/nonexistent/x"], 2, "--master-addresses"),
    ],
)  # fmt: skip
def test_usage_error_prints_message_and_sets_exit_status(words, status, expected):
    done = run(*words)
    assert done.exit_code == status, done.output
    assert expected in done.output.replace("\n", " ") + done.stderr
    assert "Traceback" not in done.output


def test_option_listing_has_defaults_and_descriptions():
    done = run("config", "list", "--format", "json")
    found = {o["name"]: o for o in json.loads(done.stdout)}
    assert found["wal_sync"]["default"] == "always"
    assert all(o["what it is for"].endswith(".") for o in found.values())


def test_version_option_prints_only_version():
    from nyala.common.version import VERSION

    assert run("version").stdout.strip() == VERSION
    assert run("--version").stdout.strip() == VERSION


def test_missing_masters_option_selects_local_cluster():
    Path(DEFAULT_DIR).mkdir()
    master = layout.ServerSpec("master-0", "master", "m", "there:1", "there:2", "there:3")
    layout.Layout(DEFAULT_DIR, (master,), {}).save()
    assert local_masters("elsewhere:1") == "elsewhere:1"
    assert local_masters("") == "there:1"


def test_table_values_and_pids_are_printed_unformatted(capsys):
    show(("id", "pid", "text"), [(1_234_567, 7_654_321, "[red]x[/red]")], Format.TABLE)
    text = capsys.readouterr().out
    assert "1,234,567" in text
    assert "7654321" in text
    assert "[red]x[/red]" in text
    show(("id",), [(1_234_567,)], Format.TABLE, data=True)
    assert "1234567" in capsys.readouterr().out


@pytest.mark.parametrize("number", [*HINTS, errno.EBUSY])
def test_os_errors_are_reported_with_path_and_remedy(number, capsys):
    @verb
    def fails():
        raise OSError(number, os.strerror(number), "/some/path")

    with pytest.raises(typer.Exit) as caught:
        fails()
    assert caught.value.exit_code == 1
    expected = capsys.readouterr().err
    assert expected.startswith(f"nyala: /some/path: {os.strerror(number)}; ")
    assert len(expected.splitlines()) == 1


@pytest.mark.parametrize("folder", ["a b", "it's", "$x"])
def test_proposed_command_quotes_the_folder(folder):
    done = CliRunner().invoke(app, ["status", "--dir", folder])
    proposed = done.stderr.rpartition("start one with: ")[2].strip()
    assert shlex.split(proposed) == ["nyala", "up", "--dir", folder]
