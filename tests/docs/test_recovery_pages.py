"""The pages about recovery, command by command, on real processes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nyala.testing import MiniCluster
from tests.docs.pages import FOLDER, Step, run_page
from tests.docs.support.recovery_pages import ROWS, SCHEMA, fill, some_table

OPERATE = Path(__file__).parents[2] / "docs" / "operate"


def rows(cluster: MiniCluster) -> int:
    """Return the number of rows of the table."""
    with cluster.connect() as client:
        return client.table("metrics").count()


@contextmanager
def writing(cluster: MiniCluster) -> Iterator[list[int]]:
    """Write rows concurrently, and yield the acknowledged ones; a failure is raised at the end."""
    done: list[int] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def write() -> None:
        try:
            with cluster.connect() as client:
                table = client.table("metrics")
                while not over.wait(0.05):
                    table.upsert([{"id": ROWS + len(done), "value": 1.0}])
                    done.append(ROWS + len(done))
        except BaseException as err:  # it is the test's to raise
            failed.append(err)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()
    assert not failed, failed


@pytest.mark.row("S1.36", "S1.40", "S1.42")
def test_tablet_recovery_page_commands_run(tmp_path):
    with MiniCluster(1, 3, dir=str(tmp_path / FOLDER)) as cluster:
        some_table(cluster)
        before: list[int] = []

        def look(step: Step) -> None:
            if step.refused and "unsafe_replace_tablet" in step.commands:
                before.append(rows(cluster))  # the last part of the page gives one tablet up

        run_page(OPERATE / "lost-majority.md", cluster, look)
        assert before == [ROWS]
        assert 0 < rows(cluster) < ROWS
        fill(cluster)
        assert rows(cluster) == ROWS


@pytest.mark.row("S2.9", "S2.11", "S2.14")
def test_master_replacement_page_commands_run_under_writes(tmp_path):
    with MiniCluster(3, 1, dir=str(tmp_path / FOLDER)) as cluster:
        some_table(cluster, replicas=1)
        seen: list[int] = []

        def look(step: Step) -> None:
            seen.append(len(done))

        def still_whole() -> None:
            with cluster.connect() as client:
                client.create_table("more", SCHEMA, primary_key=["id"], replicas=1)
                assert client.tables() == ["metrics", "more"]

        with writing(cluster) as done:
            run_page(OPERATE / "dead-master.md", cluster, look, still_whole)
        assert seen[-1] > seen[0]


@pytest.mark.row("S2.17", "S2.23", "S2.24")
def test_master_migration_page_commands_run(tmp_path):
    with MiniCluster(1, 1, dir=str(tmp_path / FOLDER)) as cluster:
        some_table(cluster, replicas=1)
        run_page(OPERATE / "more-masters.md", cluster)
