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
SHARED = pytest.StashKey[MiniCluster]()
"""The cluster of the modules that share one."""


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[MiniCluster]:
    """Three masters and three tablet servers; a test that stops one starts it again."""
    with MiniCluster() as made:
        pytestconfig.stash[SHARED] = made
        yield made
        del pytestconfig.stash[SHARED]
        wait_equal(made)


@pytest.fixture(scope="module", autouse=True)
def drop_what_a_module_leaves(pytestconfig: pytest.Config) -> Iterator[None]:
    """Drop the tables and journals that a module leaves in the shared cluster: others may use their names."""
    yield
    shared = pytestconfig.stash.get(SHARED, None)
    if shared is not None:
        with shared.connect() as client:
            for name in client.tables():
                client.drop_table(name)
            for name in client.journals():
                client.drop_journal(name)


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
