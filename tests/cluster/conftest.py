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
from tests.waiting import within

LOG_LINES = 12
FIRST = (
    "test_repaired_directories.py", "test_interrupts.py", "test_copy.py", "test_members.py",
    "test_restarts.py", "test_masters.py", "test_processes.py", "test_repair.py",
    "test_stream_memory.py", "test_full_disk.py", "test_follower_memory.py",
    "test_replaced_in_place.py", "test_journal_failures.py", "test_damage.py", "test_kills.py",
    "test_journals.py", "test_cluster_services.py", "test_ensemble.py", "test_ddl.py",
    "test_change_faults.py", "test_stream_faults.py", "test_sql_and_frames.py",
    "test_where_forms.py", "test_pauses.py",
)  # fmt: skip
"""Files that begin before all others: those with clusters of their own, before a shared cluster runs beside
them, and then those that take longest, so that no worker has to wait at the end for another one."""
SHARED = pytest.StashKey[MiniCluster]()
"""The cluster of the modules that share one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; the tests of a file stay in their order."""
    place = {name: number for number, name in enumerate(FIRST)}
    here = Path(__file__).parent

    def of(item: pytest.Item) -> int:
        return place.get(item.path.name, len(FIRST)) if item.path.is_relative_to(here) else -1

    items.sort(key=of)


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[MiniCluster]:
    """Three masters and three tablet servers; a test that stops one starts it again."""
    with MiniCluster() as made:
        pytestconfig.stash[SHARED] = made
        yield made
        del pytestconfig.stash[SHARED]
        wait_equal(made)


@pytest.fixture(scope="module", autouse=True)
def restore_shared_cluster(pytestconfig: pytest.Config) -> Iterator[None]:
    """Drop the tables and journals that a module leaves in the shared cluster: others may use their names.

    A server that a test has paused or started may not be alive for the masters yet: it is waited for.
    """
    yield
    shared = pytestconfig.stash.get(SHARED, None)
    if shared is not None:
        shared.wait_healthy()
        with shared.connect(timeout_ms=int(within(120) * 1000)) as client:
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
