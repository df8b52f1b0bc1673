"""Setup of all tests: hypothesis profiles, the three-rows rule, time-outs, no silent skips as root."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.enough import FULL
from tests.waiting import later

# A shell starts background jobs with SIGINT ignored; the tests, and the processes that they start, need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile(
    "ci",
    max_examples=50 if FULL else 25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(  # for `./run mutants`, to which every failure is as good as the smallest
    "mutants",
    settings.get_profile("ci"),
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

CAPABILITIES = Path(__file__).parent.parent / "docs" / "internals" / "capabilities.md"
_skipped: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        rows = [r for mark in item.iter_markers("row") for r in mark.args]
        if len(rows) > 3:
            raise pytest.UsageError(f"{item.nodeid} names {len(rows)} rows; a test holds at most 3")
        own = item.get_closest_marker("timeout")
        if limit := float(own.args[0]) if own else limit_of_all(item.config):
            item.add_marker(pytest.mark.timeout(later(limit)), append=False)


def limit_of_all(config: pytest.Config) -> float:
    """Return the time-out of a test without one of its own, in seconds on the reference machine; 0: none."""
    asked = config.getoption("timeout")
    return float((config.getini("timeout") if asked is None else asked) or 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """As root on Linux, and in CI, nothing is skipped unless the docs list the capability as unavailable."""
    able = sys.platform == "linux" and os.geteuid() == 0
    if not _skipped or not (able or os.environ.get("CI")):
        return
    listed = CAPABILITIES.read_text() if CAPABILITIES.exists() else ""
    silent = [n for n in _skipped if n.split("::")[-1].split("[")[0] not in listed]
    if silent:
        print(f"\nskipped, and not listed in docs/internals/capabilities.md: {silent}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
