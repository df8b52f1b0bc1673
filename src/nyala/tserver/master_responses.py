"""Responses of masters: cluster id, leader, and server list."""

import logging

from nyala.admin.fencing import Fence
from nyala.common import addresses
from nyala.common.errors import InvalidArgument, NyalaError
from nyala.datadir.identity import Identity
from nyala.replica.clock_offsets import MasterClocks
from nyala.tserver.masters import MasterList
from nyala.tserver.quotas.hosted_quotas import HostedQuotas
from nyala.web.pages import Listing
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.server_list import ServerList

log = logging.getLogger(__name__)


class MasterResponses:
    """Processes the responses to heartbeats. Used on the event loop only.

    Args:
        identity: identity of this server; stores the cluster id.
        fence: the newest term of the masters.
        masters: addresses of the masters.
        clocks: gets the wall clocks of the masters.
        quotas: gets the tables that are over their quotas.
    """

    def __init__(
        self,
        identity: Identity,
        fence: Fence,
        masters: MasterList,
        clocks: MasterClocks,
        quotas: HostedQuotas,
    ) -> None:
        self._identity = identity
        self._fence = fence
        self._masters = masters
        self._clocks = clocks
        self._quotas = quotas
        self._refused: dict[str, NyalaError] = {}
        self.servers = ServerList()

    async def take(self, address: str, response: pb.HeartbeatResponse) -> None:
        """Process a master's response; its cluster id and its list of masters are durable on return.

        Raises:
            OSError: one of them was not written.
        """
        instance = self._identity.instance
        if response.cluster_id and response.cluster_id != instance.cluster_id:
            try:
                await self._identity.learn(cluster_id=response.cluster_id)
            except InvalidArgument as err:
                self.refuse(address, err)
                return
        self._refused.pop(address, None)
        self._clocks.note(response.master_uuid or address, response.wall_us)
        addresses = response.master_addresses
        self._fence.learn(address, addresses, response.catalog_incarnation, response.term)
        await self._masters.update(response, self._fence.term)
        if response.HasField("server_list"):
            self.servers.take(response.server_list)
        said_in = response.catalog_incarnation, response.term
        if response.leader and said_in == (self._fence.incarnation, self._fence.term):
            self._quotas.take(response.quotas)

    def refuse(self, address: str, err: NyalaError) -> None:
        """Record that this server and a master belong to different clusters."""
        if address not in self._refused:
            log.error("master %s: %s", address, err)
        addresses.keep_newest(self._refused, address, err)

    @property
    def failure(self) -> NyalaError | None:
        """Why this server does not belong to its masters' cluster, according to a majority; None: it does."""
        masters = self._masters.current() if self._refused else ()
        refused = [err for address, err in self._refused.items() if address in masters]
        return refused[0] if 2 * len(refused) > len(masters) else None

    def page(self) -> Listing:
        """Return the page of this server's copy of the server list."""
        rows = [
            (s.uuid, s.address, "yes" if s.alive else "no", "yes" if s.maintenance else "no",
             "yes" if s.decommission else "no", str(s.version))
            for s in self.servers.all()
            if not s.unregistered
        ]  # fmt: skip
        columns = ("uuid", "address", "alive", "maintenance", "decommission", "changed in version")
        return Listing(f"server list, version {self.servers.version}", columns, rows)
