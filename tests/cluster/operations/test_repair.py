"""A permanently lost tablet server: its replicas are rebuilt on others while rows are written."""

import json
import subprocess
import sys

import pytest

from nyala.common.errors import NyalaError
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import leading
from tests.cluster.support.direct import Direct
from tests.cluster.support.ksck import ksck, wait_equal
from tests.cluster.support.workload import Workload, create, rows
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

OPTIONS = {
    "member_failed_after_ms": "1500",
    "repair_interval_ms": "100",
    "tserver_unresponsive_ms": "1000",
    "flush_bytes": "200000",
}


@pytest.fixture(scope="module")
def four():
    with MiniCluster(masters=1, tservers=4, options=OPTIONS) as made:
        yield made


def reports(cluster, name):
    """Return what a server's replicas report, by tablet."""
    with Direct() as direct:
        request = pb.ListTabletsRequest()
        found = direct.ask(cluster.address(name), methods.LIST_TABLETS, request).tablets
    return {t.report.tablet_id: t.report for t in found}


def states(cluster, name):
    """Return the states of a server's replicas, by tablet."""
    return {tablet: report.state for tablet, report in reports(cluster, name).items()}


def members(cluster, address):
    """Return the addresses of all members of the tablets that have one at an address, by tablet."""
    with cluster.connect() as client:
        places = [p for name in client.tables() for p in client.table(name).tablets()]
    found = {p.id: sorted(where for _, where in p.replicas) for p in places}
    return {tablet: where for tablet, where in found.items() if not address or address in where}


def failed(cluster, address):
    """Return whether the leaders of all tablets with a member at an address have removed it."""
    steps = [
        {m.uuid: m.address for m in r.consensus.members}.get(h.uuid, "")
        for name in cluster.names
        if name.startswith("tserver") and cluster.running(name)
        for r in reports(cluster, name).values()
        for h in r.health
        if h.state == "FAILED"
    ]
    return steps.count(address) == len(members(cluster, address))


def rebuilt(cluster, dead):
    """Return whether the only problem is the lost server."""
    try:
        problems = ksck(cluster).problems
    except NyalaError:  # the masters do not answer yet
        return False
    return all(p.startswith(f"tablet server {dead}") for p in problems)


def leftovers(cluster, name):
    """The tablets of which a server has a replica that is no member any more."""
    held = {t for t, state in states(cluster, name).items() if state != "TOMBSTONED"}
    return held - members(cluster, cluster.address(name)).keys()


@pytest.mark.row("S1.1", "A9")
def test_permanently_lost_server_is_replaced_under_writes_and_its_replicas_deleted(four):
    with four.connect() as client:
        table = create(client, "repaired", buckets=6)
        with Workload(four.connect, "repaired", seed=1) as workload:
            wait_until(lambda: workload.acknowledged > 200, "further operations are acknowledged")
            victim = sorted(leading.leaders(four, "repaired").values())[0]
            lost = [t for t, state in states(four, victim).items() if state == "RUNNING"]
            assert lost
            four.kill(victim)
            dead = four.address(victim)
            wait_until(lambda: rebuilt(four, dead), "all replicas rebuilt", 120, 0.2)
            assert not set(lost) & members(four, dead).keys()
            after = workload.acknowledged
            wait_until(
                lambda: workload.acknowledged > after + 100, "further operations are acknowledged"
            )
            workload.finish()
            workload.check()
            workload.verify(table.scan().to_arrow())
        four.start(victim)
        wait_until(lambda: not leftovers(four, victim), "leftovers deleted", poll_s=0.2)
        wait_equal(four)


def command(cluster, *words):
    """Run a command; return its exit status, output and errors."""
    return subprocess.run(
        [sys.executable, "-m", "nyala.cli.main", *words, "--masters", cluster.masters],
        capture_output=True, text=True, timeout=within(120), check=False,
    )  # fmt: skip


def nyala(cluster, *words):
    """Run a command that succeeds; return its output."""
    done = command(cluster, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.row("A20", "S3.5")
def test_server_in_maintenance_keeps_replicas_and_its_standby_plan_is_followed_when_lost(four):
    with four.connect() as client:
        create(client, "maintained", buckets=2).insert(rows("all", [1, 2, 3], [1, 2, 3]))
    victim = sorted(leading.leaders(four, "maintained").values())[0]
    absent = four.address(victim)
    nyala(four, "tserver", "state", "enter_maintenance", absent)
    assert "IN MAINTENANCE" in nyala(four, "tserver", "list")
    held = members(four, absent)

    def written():
        lines = json.loads(nyala(four, "tserver", "will", absent, "--format", "json"))
        standbys = {line["tablet"]: line["address"] for line in lines}
        assert standbys.keys() == held.keys()
        return standbys if all(standbys.values()) else None

    standbys = wait_until(written, "each of its tablets has a standby server", poll_s=0.2)
    four.kill(victim)
    wait_until(lambda: failed(four, absent), "its leaders report it as failed", 60, 0.2)
    assert members(four, absent).keys() == held.keys(), "the absent server stays a member"
    nyala(four, "tserver", "state", "exit_maintenance", absent)
    wait_until(lambda: rebuilt(four, absent), "all replicas rebuilt", 120, 0.2)
    after = members(four, "")
    assert all(standbys[tablet] in after[tablet] for tablet in held), (standbys, after)
    four.start(victim)
    wait_equal(four)


@pytest.mark.row("S1.29", "S3.7")
def test_decommissioned_server_is_drained_and_all_masters_have_the_server_list(four):
    with four.connect() as client:
        create(client, "emptied", buckets=2).insert(rows("all", [1, 2, 3], [1, 2, 3]))
    name = sorted(leading.leaders(four, "emptied").values())[0]
    address = four.address(name)
    assert members(four, address)
    nyala(four, "tserver", "decommission", address)

    def listed():
        with Direct() as direct:
            answer = direct.ask(four.masters, methods.LIST_SERVERS, pb.ListServersRequest())
        return {s.address: s for s in answer.servers if s.role == "tserver"}

    wait_until(lambda: not listed()[address].replicas, "the server has no replicas", 120, 0.2)
    wait_until(
        lambda: (
            {s.known_version for s in listed().values()}
            == {max(s.list_version for s in listed().values())}
        ),
        "all servers have the last version of the list",
    )
    assert not members(four, address)
    four.kill(name)
    try:
        wait_until(lambda: not listed()[address].alive, "the server is listed as dead", poll_s=0.2)
        wait_until(lambda: unregistered(four, address), "it is unregistered", poll_s=0.2)
        assert address not in listed()
    finally:
        four.start(name)
    wait_until(lambda: address in listed(), "it is listed again", poll_s=0.2)
    assert not listed()[address].decommission
    wait_equal(four)


def unregistered(cluster, address):
    """Try to unregister a server, which is refused until its death is recorded in the list."""
    done = command(cluster, "tserver", "unregister", address)
    assert done.returncode == 0 or "is alive" in done.stderr, done.stderr
    return done.returncode == 0
