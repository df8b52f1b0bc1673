"""Setup of all tests: hypothesis profiles, the three-rows rule, ends of tiers, no silent skips as root."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.waiting import within

# A shell starts background jobs with SIGINT ignored; the tests, and the processes that they start, need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

SLOWER = float(os.environ.get("TESTS_SLOWER", "1"))
"""Factor by which the machine is slower than the reference machine (scripts/test.py)."""
END = float(os.environ.get("TESTS_END", "inf"))
"""Unix time after which no test starts."""
NOT_RUN = "the time of this tier is over"
OWN_LIMIT = pytest.StashKey[float]()
"""Time-out of a test that has one of its own, in seconds on the reference machine."""

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile(
    "ci",
    max_examples=max(10, round(50 / SLOWER)),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(  # for scripts/mutants.py, to which every failure is as good as the smallest
    "mutants",
    settings.get_profile("ci"),
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

CAPABILITIES = Path(__file__).parent.parent / "docs" / "internals" / "capabilities.md"
_skipped: list[str] = []
_left: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        rows = [r for mark in item.iter_markers("row") for r in mark.args]
        if len(rows) > 3:
            raise pytest.UsageError(f"{item.nodeid} names {len(rows)} rows; a test holds at most 3")
        if own := item.get_closest_marker("timeout"):
            item.stash[OWN_LIMIT] = float(own.args[0])
        if limit := item.stash.get(OWN_LIMIT, limit_of_all(item.config)):
            item.add_marker(pytest.mark.timeout(within(limit)), append=False)
    begin_elsewhere(items)


def limit_of_all(config: pytest.Config) -> float:
    """Return the time-out of a test without one of its own, in seconds on the reference machine; 0: none."""
    asked = config.getoption("timeout")
    return float((config.getini("timeout") if asked is None else asked) or 0)


def begin_elsewhere(items: list[pytest.Item]) -> None:
    """Move the files before the first one of this commit to the end: each commit leaves other tests."""
    paths = sorted({item.path for item in items})
    first = int(os.environ.get("TESTS_FIRST", "0"), 16) % max(1, len(paths))
    place = {path: (number - first) % len(paths) for number, path in enumerate(paths)}
    if first:
        items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test after its tier's end; one with a limit of its own already that time before the end."""
    if time.time() + item.stash.get(OWN_LIMIT, 0.0) > END:
        pytest.skip(NOT_RUN)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        late = isinstance(report.longrepr, tuple) and NOT_RUN in report.longrepr[2]
        (_left if late else _skipped).append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """As root on Linux nothing may be skipped, unless the docs list the capability as unavailable."""
    if _left and not hasattr(session.config, "workerinput"):
        print(f"\nnot run, since {NOT_RUN}: {len(_left)} tests")
        with Path(os.environ["TESTS_LEFT"]).open("a") as left:
            left.write(f"{len(_left)}\n")
    if sys.platform != "linux" or os.geteuid() != 0 or not _skipped:
        return
    listed = CAPABILITIES.read_text() if CAPABILITIES.exists() else ""
    silent = [n for n in _skipped if n.split("::")[-1].split("[")[0] not in listed]
    if silent:
        print(f"\nskipped, and not listed in docs/internals/capabilities.md: {silent}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
