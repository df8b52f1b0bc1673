"""Commands that the user interrupts: one sentence, status 130, and what it states stays under way."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.__main__ import INTERRUPTED
from nyala.cli import output
from nyala.testing import MiniCluster
from tests.waiting import wait_until, within

ROWS = 4_000
ROW_BYTES = 1_000
RATE_BYTES = 500_000
"""Bytes per second of a copy, which so takes some seconds."""
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.binary())])
SENTENCE = "nyala: interrupted; "


@pytest.fixture(scope="module")
def pair() -> Iterator[MiniCluster]:
    """One master and two tablet servers, whose copies are slow."""
    options = {"copy_rate_bytes": str(RATE_BYTES), "flush_bytes": "1000000", "repair": "off"}
    with MiniCluster(masters=1, tservers=2, options=options) as made:
        yield made


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "nyala.cli.main", *words]


def sockets(process: int) -> int:
    """Return the number of sockets of a process: none before a command runs."""
    found = 0
    for one in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(one).startswith("socket:")
    return found


def interrupted(folder: Path, *words: str, after: str = "") -> str:
    """Run a command, interrupt it once it has printed a text, or else once it runs; return its last line."""
    errors = folder / "errors"
    with errors.open("w") as file:
        process = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=file)
    try:
        ready = (lambda: after in errors.read_text()) if after else (lambda: sockets(process.pid))
        wait_until(ready, f"the start of {words}")
        process.send_signal(signal.SIGINT)
        status = process.wait(within(120))
    finally:
        process.kill()
        process.wait()
    text = errors.read_text()
    assert status == INTERRUPTED, text
    assert "Traceback" not in text
    return text.splitlines()[-1]


def place(pair: MiniCluster, table: str) -> tuple[str, str, str]:
    """Return the tablet of a table, the name of its server, and that of the other one."""
    ((tablet, owner),) = pair.leaders(table).items()
    (other,) = {"tserver-0", "tserver-1"} - {owner}
    return tablet, owner, other


@pytest.fixture
def held(pair: MiniCluster) -> Iterator[MiniCluster]:
    """A table `held` whose only server does not answer."""
    with pair.connect() as client:
        if "held" not in client.tables():
            client.create_table("held", SCHEMA, ["k"], replicas=1)
    _, owner, _ = place(pair, "held")
    pair.pause(owner)
    try:
        yield pair
    finally:
        pair.resume(owner)
        pair.wait_healthy()


@pytest.mark.parametrize(
    "words",
    [("table", "scan", "held"), ("cluster", "ksck", "--checksum"), ("table", "statistics", "held"),
     ("sql", "select count(*) from held")],
    ids=lambda words: words[1],
)  # fmt: skip
def test_interrupted_read_tells_that_nothing_stays(held, tmp_path, words):
    last = interrupted(tmp_path, *words, "--masters", held.masters)
    assert last == f"nyala: interrupted; {output.READS}"


def test_interrupted_alteration_is_still_carried_out(held, tmp_path):
    words = ("table", "add_column", "held", "extra", "int64", "--masters", held.masters)
    with held.connect() as client:
        before = client.table("held").definition.version
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
    with held.connect() as client:
        wait_until(lambda: client.table("held").definition.version > before, "the commit point")
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=within(120))
        assert (process.returncode, text) == (130, f"nyala: interrupted; {output.TABLES}\n")
        assert "extra" in client.table("held").schema.names


@pytest.mark.full
@pytest.mark.parametrize("verb", ["copy", "move"])
def test_interrupted_copy_continues_and_is_waited_for_by_the_same_command(pair, tmp_path, verb):
    with pair.connect() as client:
        table = client.create_table(verb, SCHEMA, ["k"], replicas=1)
        table.insert([{"k": k, "v": os.urandom(ROW_BYTES)} for k in range(ROWS)]).raise_for_errors()
    tablet, owner, other = place(pair, verb)
    group = (
        ("remote_replica", "copy")
        if verb == "copy"
        else ("tablet", "change_config", "move_replica")
    )
    words = (*group, tablet, pair.address(owner), pair.address(other), "--masters", pair.masters)
    last = interrupted(tmp_path, *words, after="cop")
    sentence = output.STEPS if verb == "move" else "the copy continues on its target"
    assert last.startswith(f"nyala: interrupted; {sentence}")
    again = subprocess.run(
        command(*words), capture_output=True, text=True, timeout=within(120), check=False
    )
    assert again.returncode == 0, again.stderr
    if verb == "move":
        assert pair.leaders(verb) == {tablet: other}
    with pair.connect() as client:
        assert client.table(verb).count() == ROWS
