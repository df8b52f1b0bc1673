"""Last log lines and options of a process, as pages and as JSON; secrets are replaced."""

import json
import logging
import os
import subprocess
import sys

import pytest

from nyala.common.options import Options
from nyala.web.log_lines import KEPT, LONGEST, LastLines, redacted
from nyala.web.options_page import options_page
from tests.waiting import within

pytestmark = pytest.mark.row("A13")


@pytest.fixture
def lines():
    """Lines of a logger of this test."""
    logger, handler = logging.getLogger("nyala.test_log_lines"), LastLines()
    logger.addHandler(handler)
    yield logger, handler
    logger.removeHandler(handler)


def test_last_records_are_kept_the_oldest_first(lines):
    logger, handler = lines
    for number in range(KEPT + 5):
        logger.warning("record %d", number)
    rows = handler.page().rows
    assert len(rows) == KEPT
    assert rows[0][0].endswith("W nyala.test_log_lines: record 5")
    assert rows[-1][0].endswith(f"record {KEPT + 4}")


SECRETS = [
    ("login with password=hunter2 failed", "login with password=[redacted] failed"),
    ("Token: abc.def-1 is used", "Token: [redacted] is used"),
    ("at https://user:hunter2@host/x", "at https://user:[redacted]@host/x"),
    ("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\nrest", "[private key]\nrest"),
    ("-----BEGIN PRIVATE KEY-----\nAAAA", "[private key]"),
    ("the tokens of 3 tablets", "the tokens of 3 tablets"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SECRETS)
def test_secrets_are_replaced(lines, text, expected):
    logger, handler = lines
    assert redacted(text) == expected
    logger.error("%s", text)
    assert handler.page().rows[0][0].endswith(expected)


@pytest.mark.parametrize(("text", "expected"), SECRETS)
def test_redacted_json_remains_json(text, expected):
    found = json.loads(redacted(json.dumps({"rows": [{"line": text}], "after": 1})))
    assert found["after"] == 1
    assert "hunter2" not in str(found)
    assert "AAAA" not in str(found)


LONG = 1_000_000


@pytest.mark.parametrize(
    "text",
    ["a" * LONG, "a://b" * (LONG // 5), "a://" + "b" * LONG, "token " * (LONG // 6), "token" + " " * LONG,
     "-----BEGIN PRIVATE KEY" * (LONG // 22), "x://y:" * (LONG // 6)],
    ids=lambda text: text[:22],
)  # fmt: skip
def test_long_texts_of_others_do_not_stop_the_process(text):
    code = "import sys; from nyala.web.log_lines import redacted; redacted(sys.stdin.read())"
    done = subprocess.run([sys.executable, "-c", code], input=text, text=True, timeout=within(50))
    assert done.returncode == 0


def test_names_of_files_that_are_no_unicode_do_not_break_the_page(lines):
    logger, handler = lines
    name = os.fsdecode(b"\xff")
    # Not logged: pytest captures the log, and cannot send this text from a worker.
    text = f"the file {name} is of another cluster"
    handler.handle(logger.makeRecord(logger.name, logging.ERROR, __file__, 1, text, (), None))
    ((line,),) = handler.page().rows
    assert line.encode().endswith(rb"the file \udcff is of another cluster")


def test_long_record_is_cut_and_its_secrets_are_replaced(lines):
    logger, handler = lines
    logger.error("%s https://user:hunter2@host %s", "x" * (LONGEST - 100), "y" * LONG)
    (line,) = handler.page().rows[0]
    assert len(line) == LONGEST
    assert "user:[redacted]@host" in line


def test_options_that_differ_from_their_defaults_are_first():
    rows = options_page(Options(flush_bytes=1_000_000)).rows
    assert rows[0][::3] == ("flush_bytes", "yes")
    assert rows[0][1] == "1000000"
    assert {row[3] for row in rows[1:]} == {"no"}
