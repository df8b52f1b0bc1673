"""An ensemble of real processes: kills and pauses of coordinators, servers and journal servers."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nyala.client import connect
from nyala.env.rpc import Method
from nyala.recipes import Leader
from nyala.testing import MiniCluster, layout, processes, ram_ensemble
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import Layout, ServerSpec
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.waiting import wait_until


class RealEnsemble:
    """Processes of an ensemble, which end with this one."""

    def __init__(self, planned: Layout, parent: ForkServer) -> None:
        self.layout = planned
        self._parent = parent

    def server(self, name: str) -> ServerSpec:
        return self.layout.server(name)

    def ask(self, method: Method, request: Any) -> Any:
        return ram_ensemble.ask(self.layout, method, request, 60_000)

    def create(self, name: str, span: int) -> None:
        operation = pb.OperationId(client=name, sequence=1)
        request = pb.CreateTableRequest(name=name, server_span=span, operation=operation)
        self.ask(methods.RAM_CREATE_TABLE, request)

    def dump(self) -> tuple[int, Any]:
        found = self.ask(methods.RAM_DUMP, pb.DumpRequest())
        return found.epoch, json.loads(found.json)

    def leader(self) -> ServerSpec:
        """Return the coordinator that leads."""
        self.dump()
        with connect(self.layout.options["masters"]) as client:
            found = Leader.current(client.journal(ram_ensemble.JOURNAL), ram_ensemble.ENSEMBLE)
        assert found is not None
        return next(s for s in self.layout.servers if s.address == found.locator)

    def start(self, name: str) -> None:
        self._parent.fork([ram_ensemble.job(self.layout, self.server(name), bound=True)])

    def settled(self) -> bool:
        """Return True if each server that runs is up, all know it, and only they own tablets."""
        found = self.ask(methods.RAM_SERVER_LIST, pb.ServerListRequest())
        running = {
            s.address
            for s in self.layout.servers
            if s.role == "server" and processes.running_pid(s) is not None
        }
        tables = self.ask(methods.RAM_TABLET_MAP, pb.TabletMapRequest()).tables
        up = {(s.id.index, s.id.generation) for s in found.servers}
        owners = {(t.master.index, t.master.generation) for one in tables for t in one.tablets}
        return (
            {s.address for s in found.servers if s.status == "UP"} == running
            and len(found.servers) == len(running)
            and found.confirmed == found.version
            and owners <= up
        )


@pytest.fixture(scope="module")
def ensemble(cluster: MiniCluster) -> Iterator[RealEnsemble]:
    """Two coordinators and three servers beside the shared cluster."""
    found = layout.load(cluster.dir)
    assert found is not None
    with ExitStack() as held:
        parent = held.enter_context(ForkServer(bound=True))
        planned = ram_ensemble.plan(found, 2, 3)
        held.callback(ram_ensemble.stop, planned)
        ram_ensemble.start(planned, parent, bound=True)
        yield RealEnsemble(planned, parent)


@pytest.mark.row("S3.13")
def test_tablets_of_a_killed_server_are_recovered(ensemble):
    ensemble.create("killed", 6)
    processes.end(ensemble.server("server-1"), signal.SIGKILL)
    try:
        wait_until(ensemble.settled, "the ensemble is settled")
    finally:
        ensemble.start("server-1")
    wait_until(ensemble.settled, "the ensemble is settled")


@pytest.mark.row("S3.17", "S3.59")
def test_killed_coordinator_is_replaced_by_one_with_its_state(ensemble):
    ensemble.create("kept", 4)
    wait_until(ensemble.settled, "the ensemble is settled")
    epoch, before = ensemble.dump()
    leader = ensemble.leader()
    processes.end(leader, signal.SIGKILL)
    try:
        wait_until(ensemble.settled, "the ensemble is settled")
        later, after = ensemble.dump()
        assert later > epoch
        assert after["records"] == before["records"]
    finally:
        ensemble.start(leader.name)


@pytest.mark.row("S3.64")
def test_paused_coordinator_is_replaced_and_does_nothing_when_it_resumes(ensemble):
    leader = ensemble.leader()
    processes.send(leader, signal.SIGSTOP)
    try:
        ensemble.create("meanwhile", 2)
        epoch, _ = ensemble.dump()
    finally:
        processes.send(leader, signal.SIGCONT)
    wait_until(ensemble.settled, "the ensemble is settled")
    assert ensemble.dump()[0] >= epoch
    names = [t.name for t in ensemble.ask(methods.RAM_TABLET_MAP, pb.TabletMapRequest()).tables]
    assert names.count("meanwhile") == 1


def test_leader_of_the_journal_is_killed_under_operations(ensemble, cluster):
    with cluster.connect() as client:
        location = client.journal(ram_ensemble.JOURNAL).location
        address = wait_until(lambda: location().leader, "the journal has a leader")
    name = next(n for n in cluster.names if cluster.address(n) == address)
    cluster.kill(name)
    try:
        for number in range(5):
            ensemble.create(f"under{number}", 2)
    finally:
        cluster.start(name)
    wait_until(ensemble.settled, "the ensemble is settled")
    names = {t.name for t in ensemble.ask(methods.RAM_TABLET_MAP, pb.TabletMapRequest()).tables}
    assert {f"under{n}" for n in range(5)} <= names
