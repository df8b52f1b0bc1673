"""The pages about recovery, command by command, on real processes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nyala.env.env import Env
from nyala.operate.run import run_alone
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.docs.pages import FOLDER, Step, run_page
from tests.docs.support.recovery_pages import ROWS, SCHEMA, fill, some_table
from tests.waiting import wait_until

pytestmark = pytest.mark.full

OPERATE = Path(__file__).parents[2] / "docs" / "operate"


def rows(cluster: MiniCluster) -> int:
    """Return the number of rows of the table."""
    with cluster.connect() as client:
        return client.table("metrics").count()


def masters_of(cluster: MiniCluster, tserver: str) -> set[str]:
    """Return the addresses of the masters to which a tablet server reports."""

    async def ask(env: Env) -> set[str]:
        info: pb.ServerInfoResponse = await env.rpc.call(
            cluster.address(tserver),
            methods.SERVER_INFO,
            pb.ServerInfoRequest(),
            timeout_ms=10_000,
        )
        return set(info.master_addresses)

    return run_alone(ask, cluster.masters)


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
        except BaseException as err:  # raised by the test
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
    with MiniCluster(1, 3, dir=str(tmp_path / FOLDER), secure=True) as cluster:
        some_table(cluster)
        before: list[int] = []

        def look(step: Step) -> None:
            if step.refused and "unsafe_replace_tablet" in step.commands:
                before.append(rows(cluster))  # the last part of the page abandons one tablet

        run_page(OPERATE / "lost-majority.md", cluster, look)
        assert before == [ROWS]
        assert 0 < rows(cluster) < ROWS
        fill(cluster)
        assert rows(cluster) == ROWS


@pytest.mark.row("S2.9", "S2.11", "S2.14")
def test_master_replacement_page_commands_run_under_writes(tmp_path):
    with MiniCluster(3, 1, dir=str(tmp_path / FOLDER), secure=True) as cluster:
        some_table(cluster, replicas=1)
        seen: list[int] = []

        def look(step: Step) -> None:
            seen.append(len(done))

        def still_whole() -> None:
            with cluster.connect() as client:
                client.create_table("more", SCHEMA, primary_key=["id"], replicas=1)
                assert client.tables() == ["metrics", "more"]
            kept = {cluster.address("master-0"), cluster.address("master-2")}
            wait_until(
                lambda: (
                    kept < (now := masters_of(cluster, "tserver-0"))
                    and len(now) == 3
                    and cluster.address("master-1") not in now
                ),
                "the tablet server knows the new list of masters, without a restart",
            )

        with writing(cluster) as done:
            run_page(OPERATE / "dead-master.md", cluster, look, still_whole)
        assert seen[-1] > seen[0]


@pytest.mark.row("S2.17", "S2.23", "S2.24")
def test_master_migration_page_commands_run(tmp_path):
    with MiniCluster(1, 1, dir=str(tmp_path / FOLDER), secure=True) as cluster:
        some_table(cluster, replicas=1)
        run_page(OPERATE / "more-masters.md", cluster)


@pytest.mark.row("A21")
@pytest.mark.timeout(600)
def test_lost_masters_page_commands_run_under_writes(tmp_path):
    with MiniCluster(3, 3, dir=str(tmp_path / FOLDER), secure=True) as cluster:
        some_table(cluster)

        def look(step: Step) -> None:
            if "--dry-run" in step.commands:
                count = len(done)
                wait_until(lambda: len(done) > count, "a client writes without any master")

        def still_whole() -> None:
            acknowledged = {*range(ROWS), *done}
            with cluster.connect() as client:
                found = client.table("metrics").scan(columns=["id"]).to_arrow()
                assert acknowledged <= set(found["id"].to_pylist())
                client.create_table("more", SCHEMA, primary_key=["id"])
                assert client.tables() == ["metrics", "more"]

        with writing(cluster) as done:
            run_page(OPERATE / "lost-masters.md", cluster, look, still_whole)
