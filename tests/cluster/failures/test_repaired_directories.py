"""Directories of stopped servers, repaired with `nyala local_replica` and `nyala fs`."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nyala.common.hybrid_time import from_micros
from nyala.env.clock import write_ceiling
from nyala.env.files import SystemFiles
from nyala.testing import MiniCluster
from tests.cluster.support.damage import ROWS, SCHEMA, figures
from tests.cluster.support.ksck import ksck, wait_equal, wait_ksck
from tests.docs.quick import Quick
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

SERVERS = [f"tserver-{n}" for n in range(3)]
YEAR_US = 365 * 86_400 * 1_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster(1, options={"flush_bytes": "1"}) as made:
        yield made


@pytest.fixture(scope="module")
def nyala(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Run a command in a process of its own, which holds the lock of its directory until it ends."""
    folder = tmp_path_factory.mktemp("programs")
    quick = Quick(folder)

    def run(*words: str) -> tuple[int, str, str]:
        """(exit status, standard output, standard error)"""
        done = subprocess.run(
            [folder / "nyala", *words],
            capture_output=True, text=True, timeout=within(240), check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    yield run
    quick.close()


@pytest.fixture
def offline(nyala) -> Callable[..., Any]:
    """Return the answer of a command, which succeeds."""

    def run(*words: str) -> Any:
        status, stdout, stderr = nyala(*words, "--format", "json")
        assert status == 0, stderr
        return json.loads(stdout)

    return run


def filled(cluster: MiniCluster, name: str) -> str:
    """Make a table of one tablet whose rows are in the files of all three servers; return the tablet's id."""
    with cluster.connect() as client:
        table = client.create_table(name, SCHEMA, ["k"])
        table.insert(ROWS).raise_for_errors()
        (place,) = table.tablets()
    for server in SERVERS:
        wait_in_files(cluster, server, place.id, name)
    return place.id


def wait_in_files(cluster: MiniCluster, server: str, tablet: str, name: str) -> None:
    """Wait until a server has all rows in files."""

    def all_in_files() -> bool:
        seen = figures(cluster, server, tablet, name)
        return seen.get("live_versions") == len(ROWS) and seen.get("memory_bytes") == 0

    assert wait_until(all_in_files, f"{server} has flushed {name}")


def rows(cluster: MiniCluster, name: str) -> list[dict[str, object]]:
    with cluster.connect() as client:
        found = client.table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda r: r["k"])


def problems(cluster: MiniCluster, *words: str) -> list[str]:
    return [p for p in ksck(cluster).problems if all(w in p for w in words)]


def test_tablet_with_log_lost_on_all_servers_is_recovered_from_one_replica(cluster, nyala):
    tablet = filled(cluster, "lost")
    for server in SERVERS:
        cluster.kill(server)
        shutil.rmtree(f"{cluster.data_dir(server)}/wal")
    for server in SERVERS:
        cluster.start(server, wait=False)
    cluster.wait_healthy()
    assert wait_until(
        lambda: len(problems(cluster, tablet, "is FAILED", "local_replica unsafe_recover")) == 3,
        "ksck names the three servers and the next step",
    )
    assert problems(cluster, tablet, "0 replicas lead it")
    chosen, others = SERVERS[0], SERVERS[1:]
    words = ("local_replica", "unsafe_recover", tablet, "--dir", cluster.data_dir(chosen))
    status, _, stderr = nyala(*words, "--yes")
    assert (status, "in use by a running process" in stderr) == (4, True), stderr
    cluster.stop(chosen)
    for more, end in ((("--dry-run",), 0), ((), 1)):
        status, stdout, stderr = nyala(*words, *more)
        assert status == end, stderr
        assert f"its files are intact and have {len(ROWS):,} rows, as of entry " in stderr
        assert "LOST FOR GOOD: every write after entry " in stderr
        assert stderr.count("  removed: ") == 2
        assert bool(more) == ("nothing was changed: --dry-run" in stdout)
    status, stdout, stderr = nyala(*words, "--yes", "--format", "json")
    answer = json.loads(stdout)
    assert (status, answer["changed"], answer["rows"]) == (0, True, len(ROWS)), stderr
    status, stdout, _ = nyala(*words, "--yes")
    assert (status, "nothing to do: it is the only member" in stdout) == (0, True)
    cluster.start(chosen, wait=False)
    wait_ksck(cluster)
    assert rows(cluster, "lost") == ROWS
    with cluster.connect() as client:
        table = client.table("lost")
        (place,) = table.tablets()
        assert place.id == tablet
        table.upsert([ROWS[0] | {"v": "changed"}]).raise_for_errors()
    for server in others:
        wait_in_files(cluster, server, tablet, "lost")
    wait_equal(cluster)
    for server in SERVERS:  # the written rows are in the logs of all three again
        cluster.kill(server)
    for server in SERVERS:
        cluster.start(server, wait=False)
    wait_equal(cluster)
    assert rows(cluster, "lost")[0]["v"] == "changed"


def test_server_with_ceiling_of_wrong_clock_is_refused_until_ceiling_is_lowered(cluster, nyala):
    filled(cluster, "clocked")
    wait_ksck(cluster)
    wrong, directory = SERVERS[1], cluster.data_dir(SERVERS[1])
    cluster.stop(wrong)
    far = from_micros(time.time_ns() // 1000 + 10 * YEAR_US)
    write_ceiling(SystemFiles(), f"{directory}/hybrid_clock", far)
    cluster.start(wrong, wait=False)
    assert wait_until(
        lambda: problems(cluster, "all that", "sends is refused", "10.0 years"),
        "the other servers report the replica",
    )
    assert wait_until(
        lambda: problems(
            cluster, cluster.address(wrong), "this server's hybrid clock is 10.0 years"
        ),
        "the server itself reports its clock",
    )
    with cluster.connect() as client:
        client.table("clocked").upsert([ROWS[0] | {"v": "meanwhile"}]).raise_for_errors()
    status, _, stderr = nyala("fs", "lower_clock", "--dir", directory)
    assert (status, "in use by a running process" in stderr) == (4, True), stderr
    cluster.stop(wrong)
    status, stdout, stderr = nyala("fs", "lower_clock", "--dir", directory)
    assert (status, stdout) == (0, "lowered: it was 10.0 years ahead of the wall clock\n"), stderr
    cluster.start(wrong, wait=False)
    wait_equal(cluster)
    assert [r["v"] for r in rows(cluster, "clocked")[:2]] == ["meanwhile", "row 1"]


def test_replicas_of_both_kinds_are_deleted_and_copied_in_directory_of_stopped_server(
    cluster, offline
):
    """Checked, consensus metadata rewritten, deleted, copied from another server, listed, started."""
    with cluster.connect() as client:
        journal = client.create_journal("tools")
        entries = [journal.log("a").append(b"%d" % n) for n in range(20)]
        journal.log("a").invalidate(entries[:5])
        journal.set("k", b"v")
        place = journal.location()
    wait_ksck(cluster)
    groups = [filled(cluster, "tools_table"), place.id]
    members = [uuid for uuid, _ in place.replicas]
    server, source = SERVERS[1], cluster.address(SERVERS[2])
    folder = ("--dir", cluster.data_dir(server))
    cluster.stop(server)
    assert offline("fs", "check", *folder)["problems"] == []
    for group in groups:
        rewrite = ("local_replica", "cmeta", "rewrite_raft_config", group, *members)
        assert offline(*rewrite, "--force", *folder)["changed"] is False
        assert offline("local_replica", "delete", group, *folder)["deleted"]
        offline("local_replica", "copy_from_remote", group, source, "--force", *folder)
    listed = {r["tablet"]: r["stage"] for r in offline("local_replica", "list", *folder)}
    assert [listed[group] for group in groups] == ["READY"] * 2
    cluster.start(server, wait=False)
    wait_equal(cluster)
    assert rows(cluster, "tools_table") == ROWS
    with cluster.connect() as client:
        again = client.journal("tools")
        assert [e.id for e in again.log("a").read()] == entries[5:]
        assert again.get("k").value == b"v"
        client.drop_journal("tools")
        client.drop_table("tools_table")
