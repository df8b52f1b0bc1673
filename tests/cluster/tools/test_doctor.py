"""`nyala doctor` on real processes: tablets without a majority, and a dead master."""

import json
import os
import shutil
from collections.abc import Iterator

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import nyala
from nyala.cli.main import app
from nyala.testing import MiniCluster, layout
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import HOST, Layout, ServerSpec
from tests.cluster.support.ksck import wait_equal, wait_ksck
from tests.cluster.support.layouts import layout_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.row("W9")]

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
OPTIONS = {"repair_interval_ms": "100", "tserver_unresponsive_ms": "1000"}
ROWS = 500


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniCluster]:
    """Three masters and three tablet servers."""
    with MiniCluster(options=OPTIONS) as made:
        yield made


def doctor(masters, *words, status):
    """Run the command; return the steps of its plan by name."""
    done = CliRunner().invoke(app, ["doctor", *words, "--format", "json", "--masters", masters])
    assert done.exit_code == status, (words, done.output, done.exception)
    return {step["name"]: step for step in json.loads(done.stdout)["steps"]}


def steps_of(plan, kind):
    return sorted(name for name in plan if name.startswith(f"{kind}-"))


def test_plan_restores_tablets_of_which_two_of_three_servers_lost_their_data(cluster):
    with cluster.connect() as client:
        parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
        table = client.create_table("kept", SCHEMA, ["k"], parts)
        table.upsert([{"k": k, "v": k} for k in range(ROWS)]).raise_for_errors()
        wait_equal(cluster)  # the survivor has every acknowledged row
    masters = cluster.masters
    for name in ("tserver-1", "tserver-2"):
        cluster.kill(name)
        shutil.rmtree(cluster.data_dir(name))
    first = doctor(masters, status=1)
    recover = steps_of(first, "recover")
    assert len(recover) == 2
    lost = [cluster.address(n) for n in ("tserver-1", "tserver-2")]
    for name in recover:
        assert sorted(first[name]["declare_lost"]) == sorted(lost)
        assert first[name]["data_at_risk"]["acknowledged_entries_may_be_lost"]
        assert first[name]["data_at_risk"]["known_lost"] is None
        doctor_refuses(masters, name)
    declared = [word for a in lost for word in ("--lost", a)]
    wait_dead(cluster, *declared)
    doctor(masters, *declared, "--do", recover[0], "--yes", status=0)
    assert steps_of(doctor(masters, *declared, status=1), "recover") == recover[1:]
    doctor(masters, *declared, "--yes", status=0)
    with cluster.connect() as client:
        table = client.table("kept")
        assert table.count() == ROWS
        table.upsert([{"k": ROWS, "v": 0}]).raise_for_errors()
    for name in ("tserver-1", "tserver-2"):
        cluster.start(name)  # with an empty directory: a new server
    wait_ksck(cluster)  # the masters add the missing replicas
    assert doctor(masters, status=0) == {}


def wait_dead(cluster, *declared):
    """Wait until the leader master counts servers without a process as dead, so that no step waits for it."""
    wait_until(
        lambda: (
            not any(
                step["still_running"]
                for step in doctor(cluster.masters, *declared, status=1).values()
            )
        ),
        "the leader master still counts servers as alive",
    )


def test_servers_started_with_empty_directories_lose_nothing_and_their_data_return(cluster):
    with cluster.connect() as client:
        table = client.create_table("moved", SCHEMA, ["k"])
        table.upsert([{"k": k, "v": k} for k in range(ROWS)]).raise_for_errors()
    names = ("tserver-1", "tserver-2")
    for name in names:
        cluster.kill(name)
        os.rename(cluster.data_dir(name), f"{cluster.data_dir(name)}-unmounted")
        cluster.start(name)
    wait_dead(cluster)
    plan = doctor(cluster.masters, "--yes", status=1)
    assert all(len(plan[name]["declare_lost"]) == 2 for name in steps_of(plan, "recover"))
    assert steps_of(plan, "recover")
    starts = [plan[s] for s in steps_of(plan, "start")]
    assert len(starts) == 2
    assert all("not mounted" in s["command"] for s in starts)
    for name in names:
        cluster.kill(name)
        shutil.rmtree(cluster.data_dir(name))
        os.rename(f"{cluster.data_dir(name)}-unmounted", cluster.data_dir(name))
        cluster.start(name)
    wait_ksck(cluster)
    with cluster.connect() as client:
        assert client.table("moved").count() == ROWS
        client.drop_table("moved")
    assert doctor(cluster.masters, status=0) == {}


def doctor_refuses(masters, name):
    """Check that a step is not performed as long as lost servers are not declared lost."""
    done = CliRunner().invoke(app, ["doctor", "--do", name, "--yes", "--masters", masters])
    assert done.exit_code == 2, done.output
    assert "is safe only if servers that do not answer are lost for good" in done.stderr


def test_dead_master_is_replaced_step_by_step(cluster):
    dead = next(n for n in ("master-1", "master-2") if n != cluster.leader_master())
    cluster.kill(dead)
    shutil.rmtree(cluster.data_dir(dead))
    address, masters = cluster.address(dead), cluster.masters
    (start,) = steps_of(doctor(masters, status=1), "start")
    plan = doctor(masters, "--lost", address, "--yes", status=0)
    assert f"remove-{start.removeprefix('start-')}" in plan
    assert list(doctor(masters, status=1)) == ["new-master"]
    with ForkServer(bound=True) as parent:
        new = started_master(cluster, parent)
        assert list(doctor(masters, "--new-master", new, "--yes", status=0)) == [f"add-{new}"]
        assert doctor(masters, "--new-master", new, status=0) == {}
        with cluster.connect() as client:
            assert {s.address for s in client.servers() if s.role == "master"} - {new} == {
                a for a in masters.split(",") if a != address
            }


def started_master(cluster, parent):
    """Start a master with an empty directory; return its address."""
    leader = layout_of(cluster).server(cluster.leader_master())
    ports = [f"{HOST}:{p}" for p in layout.free_ports(3)]
    spec = ServerSpec("master-9", "master", f"{cluster.dir}/master-9", *ports)
    parent.start(Layout(cluster.dir, (leader, spec), layout_of(cluster).options), [spec])
    return spec.address
