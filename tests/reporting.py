"""A pytest plugin: writes what a run of tests came to as JSON lines, for scripts/test.py.

The file is named by TESTS_REPORT. Only the process that the user started writes, also if workers run the
tests. A line is {"test": id} when a test begins, and {"test": id, "outcome": ..., "seconds": ..., "error":
[...]} for each phase of it; a failed one has the last warnings of its servers too. A test that its time
limit ends also shows the stacks of the processes that it started. If that does not end it, for instance in a
call that does not return to Python, its process shows its own stacks and exits `GRACE_S` later.
"""

import faulthandler
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

import pytest

ERROR_LINES = 6
"""Lines of an error that are kept."""
SERVER_LINES = 5
"""Lines with warnings and errors of servers that are kept."""
SERVERS = "last warnings of the servers"
WARNS = re.compile(r"^\S+ \S+ [WEC] |Traceback|Error\b")
"""Lines of a server's log with warnings and errors."""
LOG_TAIL = 2_000
GRACE_S = 60.0
STDERR = pytest.StashKey[TextIO]()
"""Standard error of the process, also while that of a test is captured."""
STACKS = pytest.StashKey[str]()
STACKS_LIMIT_S = 60
LATE = 0.8
"""Part of a test's time limit after which the stacks of its processes are taken: its end may end them."""
LONGEST_LINE = 220


class Report:
    """The lines of one run."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("a", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write that a test begins."""
        self._write({"test": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write how a phase of a test ended."""
        line: dict[str, Any] = {
            "test": report.nodeid, "outcome": report.outcome,
            "phase": report.when, "seconds": round(report.duration, 3),
        }  # fmt: skip
        if report.failed:
            line["error"] = first_lines(report)
        self._write(line)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write which file cannot be imported."""
        if report.failed:
            name = report.nodeid or "collection"
            self._write({"test": name, "outcome": "failed", "phase": "collect", "seconds": 0.0,
                         "error": last_lines(str(report.longrepr))})  # fmt: skip

    def _write(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")


def first_lines(report: pytest.TestReport) -> list[str]:
    """Return the first lines of an error, and those of servers' logs that warn."""
    crash = getattr(report.longrepr, "reprcrash", None)
    error = crash.message.splitlines()[:ERROR_LINES] if crash else last_lines(str(report.longrepr))
    warned = [
        line for title, text in report.sections if title == SERVERS for line in text.splitlines()
    ]
    return [line[:LONGEST_LINE] for line in (*error, *warned)]


def warnings(item: pytest.Item) -> list[str]:
    """Return the last lines with warnings in the logs below the folders of a test and of its clusters."""
    values = list(getattr(item, "funcargs", {}).values())
    folders = {value for value in values if isinstance(value, Path)}
    folders |= {Path(v.dir) for v in values if isinstance(getattr(v, "dir", None), str)}
    found = []
    for log in sorted(path for folder in folders for path in folder.rglob("*.log")):
        if log.is_file():
            lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL:]
            found += [f"{log.name}: {line}" for line in lines if WARNS.search(line)]
    return sorted(found, key=lambda line: line.partition(": ")[2])[-SERVER_LINES:]


def noted(call: pytest.CallInfo[None]) -> list[str]:
    """Return the warnings that a cluster, which ended within the test, has noted on its error."""
    notes = getattr(call.excinfo.value, "__notes__", ()) if call.excinfo else ()
    return [line for n in notes if n.startswith(f"{SERVERS}:") for line in n.splitlines()[1:]]


def last_lines(text: str) -> list[str]:
    """Return the last lines of a text."""
    return [line[:LONGEST_LINE] for line in text.strip().splitlines()[-ERROR_LINES:]]


def pytest_configure(config: pytest.Config) -> None:
    """Begin to report, in the process that the user started."""
    config.stash[STDERR] = os.fdopen(os.dup(sys.stderr.fileno()), "w")
    path = os.environ.get("TESTS_REPORT")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(Path(path)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Take the stacks of a test's processes when little of its time is left; bound the time after it."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0]) if marker and marker.args else 0.0
    timer = threading.Timer(
        LATE * seconds, lambda: item.stash.setdefault(STACKS, stacks(os.getpid()))
    )
    timer.daemon = True
    if seconds:
        timer.start()
        faulthandler.dump_traceback_later(
            seconds + GRACE_S, exit=True, file=item.config.stash[STDERR]
        )
    try:
        return (yield)
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add the warnings of its servers to the report of a failed test, and the stacks if it was late."""
    report = yield
    if report.failed and (lines := warnings(item) or noted(call)):
        report.sections.append((SERVERS, "\n".join(lines)))
    if report.failed and STACKS in item.stash:
        report.sections.append(("stacks of the processes of a late test", item.stash[STACKS]))
    return report


def stacks(pid: int) -> str:
    """Return the stacks of all descendants of a process, as far as py-spy shows them."""
    tool, parts = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy")), []
    for child in descendants(pid):
        try:
            seen = subprocess.run(
                [tool, "dump", "--nonblocking", "--pid", str(child)],
                capture_output=True, text=True, check=False, timeout=STACKS_LIMIT_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as err:
            parts.append(f"process {child}: {err}")
        else:
            parts.append(seen.stdout or f"process {child}: {seen.stderr.strip()}")
    return "\n".join(parts)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if stat[0] != "Z":
            parents.setdefault(int(stat[1]), []).append(int(folder.name))
    found, left = [], [pid]
    while left:
        mine = parents.get(left.pop(), [])
        found += mine
        left += mine
    return found
