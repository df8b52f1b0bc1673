"""Masters of a real cluster: one, three, five and three again, under definitions, writes and kills."""

import json
import signal

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import nyala
from nyala.cli.main import app
from nyala.common.errors import OutcomeUnknown, TimedOut
from nyala.testing import MiniCluster, layout, processes
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import HOST, Layout, ServerSpec
from tests.cluster.support.layouts import layout_of
from tests.cluster.support.workload import Inserts, Worker, create
from tests.waiting import wait_until

pytestmark = pytest.mark.full

SCHEMA = pa.schema([("k", pa.int64())])


class Definitions(Worker):
    """Creates tables; exactly these must exist."""

    def step(self, client, table):
        name = f"{self.name}-{self.acknowledged}"
        made = client.create_table(name, SCHEMA, ["k"], replicas=1)
        made.alter().rename(f"{name}-renamed").commit()
        client.drop_table(f"{name}-renamed")


class Masters:
    """The masters of a cluster that began with one."""

    def __init__(self, cluster: MiniCluster, parent: ForkServer) -> None:
        self.first = layout_of(cluster).server("master-0")
        self.specs = {self.first.address: self.first}
        self._cluster, self._parent = cluster, parent

    def new(self) -> str:
        """Start one more master with its own address and that of the first."""
        name = f"master-{len(self.specs)}"
        ports = [f"{HOST}:{p}" for p in layout.free_ports(3)]
        spec = ServerSpec(name, "master", f"{self._cluster.dir}/{name}", *ports)
        self.specs[spec.address] = spec
        self.start(spec.address)
        return spec.address

    def start(self, address: str) -> None:
        spec = self.specs[address]
        answer = dict.fromkeys((self.first, spec))
        options = layout_of(self._cluster).options
        self._parent.start(Layout(self._cluster.dir, tuple(answer), options), [spec])

    def end(self, address: str, what: signal.Signals) -> None:
        processes.end(self.specs[address], what)

    def run_nyala(self, *words: str, status: int = 0) -> str:
        done = CliRunner().invoke(app, ["master", *words, "--masters", ",".join(self.specs)])
        assert done.exit_code == status, (words, done.output, done.exception)
        return done.stdout

    def until_well(self, count: int) -> None:
        """Check that all masters are running by their own status."""

        def well() -> bool:
            done = CliRunner().invoke(app, ["master", "status", "--masters", ",".join(self.specs)])
            return done.exit_code == 0 and done.stdout.count("RUNNING") == count

        wait_until(well, f"{count} masters run", poll_s=0.2)

    def leader(self) -> str:
        def found() -> str:
            return next((m["address"] for m in self.listed() if m["role"] == "LEADER"), "")

        return wait_until(found, "a master leads", poll_s=0.2)

    def listed(self) -> list[dict[str, str]]:
        answer: list[dict[str, str]] = json.loads(self.run_nyala("list", "--format", "json"))
        return answer


@pytest.mark.row("S0.85", "S0.1")
def test_master_group_grows_and_shrinks_while_tables_are_defined_and_written(tmp_path):
    options = {"tserver_unresponsive_ms": "3000"}
    with MiniCluster(1, 3, str(tmp_path), options) as cluster, ForkServer() as parent:
        masters = Masters(cluster, parent)
        with cluster.connect() as client:
            create(client, "t", buckets=2)
        workers: list[Worker] = [
            kind(kind.__name__.lower(), cluster.connect, "t", 1) for kind in (Inserts, Definitions)
        ]
        for worker in workers:
            worker.start()
        try:
            change_all(cluster, masters, workers)
        finally:
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join(120)
            for spec in masters.specs.values():
                processes.send(spec, signal.SIGTERM)
        assert [w.error for w in workers] == [None, None]
        assert all(w.acknowledged > 5 for w in workers)


def change_all(cluster: MiniCluster, masters: Masters, workers: list[Worker]) -> None:
    for size in (2, 3, 4, 5):
        answer = json.loads(masters.run_nyala("add", masters.new(), "--format", "json"))
        assert len(answer["masters"]) == size
    masters.until_well(5)
    leader = masters.leader()
    follower, third, *_ = (a for a in masters.specs if a != leader)
    dead = [follower, leader]
    for address in dead:
        masters.end(address, signal.SIGKILL)
    until_more(workers[1], "definitions go on with two of five down")
    masters.end(third, signal.SIGKILL)
    hurried = nyala.connect(",".join(masters.specs), timeout_ms=2_000)
    with hurried, pytest.raises((TimedOut, OutcomeUnknown)):
        hurried.create_table("never", SCHEMA, ["k"], replicas=1)
    for address in (third, *dead):
        masters.start(address)
    until_more(workers[1], "definitions resume")
    masters.until_well(5)
    leader = masters.leader()
    removed = [leader, next(a for a in masters.specs if a != leader)]
    for address in removed:
        answer = json.loads(masters.run_nyala("remove", address, "--format", "json"))
        masters.end(address, signal.SIGTERM)
    assert len(answer["masters"]) == 3
    assert sorted(m["address"] for m in masters.listed()) == sorted(
        set(masters.specs) - set(removed)
    )
    for worker in workers:
        until_more(worker, "all goes on")


def until_more(worker: Worker, what: str) -> None:
    begun = worker.acknowledged
    wait_until(lambda: worker.acknowledged > begun, what)
