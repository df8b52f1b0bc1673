"""Current addresses of other tablet servers, from the masters' server list.

A group's configuration has the addresses that its members had when they were added. The server list has the
current ones, so a restarted server is reachable at new addresses without a configuration change, even if a
majority of a group has moved. Without a list the configuration's addresses are used.
"""

from collections.abc import Callable

from nyala.common.ids import ServerUuid
from nyala.raft.messages import PeerBatch
from nyala.replica.state_machine import Transport
from nyala.wire.server_list import ServerList


class AddressOverrides:
    """A `Transport` that sends to the current address of a server. Used on the event loop only.

    Args:
        transport: sends the batches.
        servers: this server's copy of the server list.
    """

    def __init__(self, transport: Transport, servers: ServerList) -> None:
        self._transport = transport
        self._servers = servers

    def send(self, address: str, batch: PeerBatch) -> None:
        """Queue a batch for the listed address of its receiver; if none is listed, for `address`."""
        listed = self._servers.get(batch.to)
        self._transport.send(address if listed is None else listed.peer_address, batch)

    def receive(
        self, handler: Callable[[PeerBatch], None], lost: Callable[[ServerUuid], None]
    ) -> None:
        """Register the handlers of incoming batches, and of servers whose port refuses connections."""
        self._transport.receive(handler, lost)
