"""Sends one order to its tablet server, as the catalog has it at the moment of sending.

A superseded order is not sent. Each carries the fence of the term in which this master leads.
"""

from typing import Any

from nyala.env.env import Env
from nyala.env.rpc import Method
from nyala.master.catalog.actions import Action, WitnessAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.orders import order_requests
from nyala.master.tservers import TServer, TServers
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb


class Messenger:
    """Sender of the orders of one leader in one term. On the loop only.

    Args:
        env: calls.
        catalog: catalog of this term.
        servers: their addresses.
        term: in which this master leads.
        timeout_ms: deadline, in milliseconds, of one order.
    """

    def __init__(
        self, env: Env, catalog: Catalog, servers: TServers, term: int, timeout_ms: int
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._servers = servers
        self._term = term
        self._timeout_ms = timeout_ms

    async def send(self, action: Action, server: TServer) -> Any:
        """Send an action and return the response; None when the catalog no longer calls for it.

        Raises:
            NyalaError: of the server, or it does not answer.
        """
        if isinstance(action, WitnessAction):
            return await self._witness(action, server)
        built = order_requests.order(
            self._catalog, self._servers, action, self._fence(), self._timeout_ms
        )
        return None if built is None else await self._call(server, *built)

    async def _witness(self, action: WitnessAction, server: TServer) -> Any:
        """Get the start of a witness' log from the tablet's leader, and order the witness to be created."""
        leader = self._servers.get(action.leader)
        if leader is None:
            return None
        asked = pb.ListTabletsRequest(tablet_ids=[action.tablet])
        listed = await self._call(leader, methods.LIST_TABLETS, asked)
        request = order_requests.witness_request(action, listed, self._fence())
        return (
            None if request is None else await self._call(server, methods.CREATE_WITNESS, request)
        )

    async def _call(self, server: TServer, method: Method, request: Any) -> Any:
        address = server.registration.address
        return await self._env.rpc.call(address, method, request, timeout_ms=self._timeout_ms)

    def _fence(self) -> pb.Fence:
        cluster = self._catalog.cluster
        assert cluster is not None, "orders before the cluster has its incarnation"
        return pb.Fence(catalog_incarnation=cluster.catalog_incarnation, term=self._term)
