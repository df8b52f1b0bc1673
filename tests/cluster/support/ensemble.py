"""An ensemble of real processes beside a cluster, which end with this process."""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from nyala.client import Client
from nyala.common.errors import Unavailable
from nyala.ram.calls import range_of
from nyala.ram.ids import HashRange, ServerId
from nyala.recipes import Leader
from nyala.testing import MiniCluster, layout, processes, ram_ensemble
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import Layout, ServerSpec
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.cluster.support.direct import Direct
from tests.waiting import wait_until, within


class RealEnsemble:
    """Processes of an ensemble.

    Args:
        planned: the processes.
        parent: forks them.
        client: of the cluster with its journal.
        ask: sends requests to the coordinator that leads.
        direct: sends requests to a server.
    """

    def __init__(
        self,
        planned: Layout,
        parent: ForkServer,
        client: Client,
        ask: ram_ensemble.Ask,
        direct: Direct,
    ) -> None:
        self.layout = planned
        self.ask = ask
        self._parent = parent
        self._client = client
        self._direct = direct

    def server(self, name: str) -> ServerSpec:
        return self.layout.server(name)

    def servers(self) -> list[ServerSpec]:
        """Return the servers, without the coordinators."""
        return [s for s in self.layout.servers if s.role == ram_ensemble.SERVER]

    def create(self, name: str, span: int) -> None:
        operation = pb.OperationId(client=name, sequence=1)
        request = pb.CreateTableRequest(name=name, server_span=span, operation=operation)
        self.ask(methods.RAM_CREATE_TABLE, request)

    def tables(self) -> list[pb.Table]:
        """Return all tables with their tablets."""
        return list(self.ask(methods.RAM_TABLET_MAP, pb.TabletMapRequest()).tables)

    def dump(self) -> tuple[int, Any]:
        found = self.ask(methods.RAM_DUMP, pb.DumpRequest())
        return found.epoch, json.loads(found.json)

    def leader(self) -> ServerSpec:
        """Return the coordinator that leads."""
        self.dump()
        found = Leader.current(self._client.journal(ram_ensemble.JOURNAL), ram_ensemble.ENSEMBLE)
        assert found is not None
        return next(s for s in self.layout.servers if s.address == found.locator)

    def journal_leader(self) -> str:
        """Return the address of the tablet server that leads the journal."""
        location = self._client.journal(ram_ensemble.JOURNAL).location
        return wait_until(lambda: location().leader, "the journal has a leader")

    def start(self, name: str) -> None:
        """Start a process, unless it runs."""
        if processes.running_pid(self.server(name)) is None:
            self._parent.fork([ram_ensemble.job(self.layout, self.server(name), bound=True)])

    def settled(self, without: Collection[str] = ()) -> bool:
        """Return True if each server that runs is up, all know it, and each owns the tablets of the map.

        Args:
            without: names of servers that run and are paused: they are not up.
        """
        found = self.ask(methods.RAM_SERVER_LIST, pb.ServerListRequest())
        running = {
            s.address
            for s in self.servers()
            if s.name not in without and processes.running_pid(s) is not None
        }
        if {s.address for s in found.servers if s.status == "UP"} != running:
            return False
        if len(found.servers) != len(running) or found.confirmed != found.version:
            return False
        try:
            owned = {(ServerId.of(s.id), t) for s in found.servers for t in self._owned(s.address)}
        except Unavailable:  # it starts, or has not enlisted again
            return False
        return owned == {
            (ServerId.of(t.master), HashRange(table.id, t.first, t.last))
            for table in self.tables()
            for t in table.tablets
        }

    def _owned(self, address: str) -> list[HashRange]:
        """Return the tablets that a server says it owns."""
        found = self._direct.ask(address, methods.RAM_SERVER_STATUS, pb.ServerStatusRequest())
        return [range_of(t) for t in found.tablets]

    def wait_settled(self, without: Collection[str] = ()) -> None:
        """Wait until `settled`."""
        wait_until(lambda: self.settled(without), "the ensemble is settled")


@contextmanager
def real_ensemble(
    cluster: MiniCluster,
    coordinators: int,
    servers: int,
    prepare: Callable[[Layout], object] = lambda planned: None,
) -> Iterator[RealEnsemble]:
    """Start an ensemble beside a cluster; it is stopped at the end.

    Args:
        cluster: the cluster.
        coordinators: number of coordinators.
        servers: number of servers.
        prepare: called before the processes are started.
    """
    found = layout.load(cluster.dir)
    assert found is not None
    with ExitStack() as held:
        parent = held.enter_context(ForkServer(bound=True))
        planned = ram_ensemble.plan(found, coordinators, servers)
        prepare(planned)
        held.callback(ram_ensemble.stop, planned)
        ram_ensemble.start(planned, parent, bound=True)
        client = held.enter_context(cluster.connect())
        timeout_ms = round(within(60) * 1000)
        ask = held.enter_context(ram_ensemble.connected(planned, timeout_ms))
        direct = held.enter_context(Direct(cluster.masters if found.secure else ""))
        yield RealEnsemble(planned, parent, client, ask, direct)
