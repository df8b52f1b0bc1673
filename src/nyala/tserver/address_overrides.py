"""Where other tablet servers are reached: where they last told the masters that they are.

The configuration of a group has the addresses that its members had when they joined. A server that came
back at others is in the server list, which the masters send round, with those: it is heard again without a
change of members, also when a majority of a group has moved. Who has no list yet goes by the configuration.
"""

from collections.abc import Callable

from nyala.common.ids import ServerUuid
from nyala.raft.messages import PeerBatch
from nyala.replica.state_machine import Transport
from nyala.wire.server_list import ServerList


class AddressOverrides:
    """A `Transport` that sends to where a server is now. On the loop only.

    Args:
        transport: carries the batches.
        servers: this server's copy of the server list.
    """

    def __init__(self, transport: Transport, servers: ServerList) -> None:
        self._transport = transport
        self._servers = servers

    def send(self, address: str, batch: PeerBatch) -> None:
        """See `Transport.send`; `address` is where the configuration says."""
        listed = self._servers.get(batch.to)
        self._transport.send(address if listed is None else listed.peer_address, batch)

    def receive(
        self, handler: Callable[[PeerBatch], None], lost: Callable[[ServerUuid], None]
    ) -> None:
        """See `Transport.receive`."""
        self._transport.receive(handler, lost)
