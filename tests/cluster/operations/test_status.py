"""States and roles of replicas, as operators see them: metrics, the web page, the status call, ksck."""

import json
import subprocess
import sys
import urllib.request
from functools import partial

import pyarrow as pa
import pytest

from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import leading
from tests.cluster.support.direct import Direct
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def fetch(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=within(60)) as answer:
        return answer.read().decode()


def ksck(cluster):
    words = ["cluster", "ksck", "--masters", cluster.masters, "--format", "json"]
    command = [sys.executable, "-m", "nyala.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within(120), check=False)
    return json.loads(done.stdout)


def of_table(report, name):
    return [r for r in report["replicas"] if r["table"] == name]


@pytest.mark.row("S4.40")
def test_states_and_roles_are_visible_everywhere(cluster):
    with cluster.connect() as client, Direct() as direct:
        table = client.create_table("states", SCHEMA, ["k"])
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()

        def roles():
            return sorted((r["state"], r["role"]) for r in of_table(ksck(cluster), "states"))

        well = [("RUNNING", "FOLLOWER"), ("RUNNING", "FOLLOWER"), ("RUNNING", "LEADER")]
        wait_until(lambda: roles() == well, "all replicas run")
        leader = leading.leader(cluster, "states")
        (tablet,) = (t.id for t in table.tablets())
        request = pb.ListTabletsRequest(tablet_ids=[tablet])

        def status(name):
            (found,) = direct.ask(cluster.address(name), methods.LIST_TABLETS, request).tablets
            return found

        def leads(name):
            found = status(name)
            return found if found.report.role == "LEADER" else None

        led = wait_until(lambda: leads(leader), f"{leader} leads")
        assert led.report.state == "RUNNING"
        assert len(led.peers) == 2
        assert led.durable_index >= led.commit_index > 0
        assert [m.voter for m in led.active.members] == [True] * 3
        body = fetch(cluster.web_address(leader), "/metrics")
        assert 'nyala_replica_state_count{state="RUNNING"}' in body
        assert 'nyala_replica_role_count{role="LEADER"}' in body
        assert "RUNNING LEADER" in fetch(cluster.web_address(leader), "/")
        names = [n for n in cluster.names if n.startswith("tserver")]
        left = next(n for n in names if n != leader)
        others = [n for n in names if n != left]
        for name in others:
            cluster.pause(name)
        try:
            wait_until(lambda: status(left).report.state == "CONFIGURING", "no leader, no requests")
            body = fetch(cluster.web_address(left), "/metrics")
            line = next(x for x in body.splitlines() if 'count{state="CONFIGURING"}' in x)
            assert float(line.split()[-1]) >= 1
            assert "CONFIGURING" in fetch(cluster.web_address(left), "/")
        finally:
            for name in others:
                cluster.resume(name)
        wait_until(lambda: roles() == well, "all replicas run again")


@pytest.mark.row("A18")
def test_prometheus_and_pages_of_processes_are_served_by_real_servers(cluster):
    masters = [n for n in cluster.names if n.startswith("master")]
    expected = sorted(cluster.web_address(n) for n in cluster.names)

    def all_listed(name):
        found = json.loads(fetch(cluster.web_address(name), "/prometheus-sd"))
        return sorted(one["targets"][0] for one in found) == expected

    for name in masters:
        wait_until(partial(all_listed, name), f"{name} lists all servers")
    for name in cluster.names:
        assert "MainThread" in fetch(cluster.web_address(name), "/threads")
        assert "anchors of the log" in fetch(cluster.web_address(name), "/anchors")
