"""One cluster for all modules that restore its state; the others create their own.

A failed test's report ends with the servers of its cluster: their states, the problems that ksck
finds, and the end of each log.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nyala.common.errors import NyalaError
from nyala.testing import MiniCluster
from tests.cluster.support.ksck import ksck, wait_equal

LOG_LINES = 12


@pytest.fixture(scope="session")
def cluster() -> Iterator[MiniCluster]:
    """Three masters and three tablet servers; a test that stops one starts it again."""
    with MiniCluster() as made:
        yield made
        wait_equal(made)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for made in getattr(item, "funcargs", {}).values():
            if isinstance(made, MiniCluster):
                report.sections.append(("servers of the cluster", describe(made)))
    return report


def describe(cluster: MiniCluster) -> str:
    """Return the state of each server, the end of its log, and the findings of ksck."""
    lines = []
    for name in cluster.names:
        log = Path(f"{cluster.data_dir(name)}.log")
        text = log.read_text(errors="replace") if log.exists() else "no log"
        state = "runs" if cluster.running(name) else "DOES NOT RUN"
        lines += [f"{name} {state}", *(f"    {one}" for one in text.splitlines()[-LOG_LINES:])]
    try:
        lines += ["ksck:", *ksck(cluster).problems]
    except NyalaError as err:
        lines.append(f"ksck: {err.message}")
    return "\n".join(lines)
