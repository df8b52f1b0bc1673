"""Outgoing messages of all groups, gathered into one batch per server and loop turn.

Rules: on the loop only. What cannot be addressed or reached is dropped: Raft asks again.
"""

from nyala.common.ids import ServerUuid, TabletId
from nyala.env.clock import HybridClock
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, PeerBatch
from nyala.replica.state_machine import Transport


class Outbox:
    """Gathers messages until `flush`.

    Args:
        uuid: this server.
        transport: carries the batches.
        clock: its reading goes with each batch; never below what a message in it asserts.
    """

    def __init__(self, uuid: ServerUuid, transport: Transport, clock: HybridClock) -> None:
        self._uuid = uuid
        self._transport = transport
        self._clock = clock
        self._addresses: dict[ServerUuid, str] = {}
        self._messages: dict[ServerUuid, list[tuple[TabletId, AnyMessage]]] = {}

    def add(self, config: Configuration, group: TabletId, message: AnyMessage) -> None:
        """Take a message of a group.

        Args:
            config: of the group; a receiver that is not in it keeps the address that was known last.
            group: whose message it is.
            message: names its receiver.
        """
        member = config.get(message.to)
        if member is not None:
            self._addresses[message.to] = member.peer_address
        self._messages.setdefault(message.to, []).append((group, message))

    def flush(self) -> None:
        """Send everything that was gathered."""
        if not self._messages:
            return
        messages, self._messages = self._messages, {}
        hlc = self._clock.peek()
        for to, gathered in messages.items():
            address = self._addresses.get(to)
            if address is not None:
                self._transport.send(address, PeerBatch(self._uuid, to, hlc, tuple(gathered)))
