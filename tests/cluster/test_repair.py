"""A tablet server that is gone for good: its replicas are rebuilt elsewhere while rows are written."""

import pytest

from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.direct import Direct
from tests.cluster.storm import ksck, wait_equal
from tests.cluster.workload import Workload, create
from tests.waiting import wait_until

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


def states(cluster, name):
    """Return the states of a server's replicas, by tablet."""
    with Direct() as direct:
        request = pb.ListTabletsRequest()
        found = direct.ask(cluster.address(name), methods.LIST_TABLETS, request).tablets
    return {t.report.tablet_id: t.report.state for t in found}


def rebuilt(cluster, dead):
    """Whether nothing is wrong but that one server is gone."""
    return all(p.startswith(f"tablet server {dead}") for p in ksck(cluster).problems)


@pytest.mark.row("S1.1", "A9")
def test_a_server_that_is_gone_for_good_is_replaced_under_writes_and_its_leftovers_deleted(four):
    with four.connect() as client:
        table = create(client, "repaired", buckets=6)
        with Workload(four.connect, "repaired", seed=1) as workload:
            wait_until(lambda: workload.acknowledged > 200, "the workload goes on")
            victim = sorted(four.leaders("repaired").values())[0]
            lost = [t for t, state in states(four, victim).items() if state == "RUNNING"]
            assert lost
            four.kill(victim)
            dead = four.address(victim)
            wait_until(lambda: rebuilt(four, dead), "all replicas rebuilt", 60, 0.2)
            after = workload.acknowledged
            wait_until(lambda: workload.acknowledged > after + 100, "the workload goes on")
            workload.finish()
            workload.check()
            workload.verify(table.scan().to_arrow())
        assert rebuilt(four, dead)
        four.start(victim)
        wait_until(
            lambda: set(states(four, victim).values()) <= {"TOMBSTONED"}, "leftovers deleted", 30
        )
        wait_equal(four)
