"""Outgoing messages of all groups, gathered into one batch per server and loop iteration.

Messages to an unknown address, or that cannot be sent, are dropped: Raft retries. Event loop only.
"""

from collections.abc import Callable, Iterable

from nyala.common.ids import ServerUuid, TabletId
from nyala.env.server_clock import ServerClock
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, PeerBatch
from nyala.replica.multiraft.failure_detector import FailureDetector
from nyala.replica.state_machine import Transport

ADDRESSES = 1024
"""Maximum number of remembered addresses of servers; a dropped one is set again by the next message."""


class Outbox:
    """Queues messages until `flush`.

    Args:
        uuid: id of this server.
        transport: sends the batches.
        clock: gives the hybrid time of each batch, which is not below any time in its messages.
        failure_detector: gives the incarnation and the stopped groups of this server for each batch.
        log_ms: returns the latency of this server's log, which is sent in each batch.
    """

    def __init__(
        self,
        uuid: ServerUuid,
        transport: Transport,
        clock: ServerClock,
        failure_detector: FailureDetector,
        log_ms: Callable[[], int],
    ) -> None:
        self.uuid = uuid
        self._log_ms = log_ms
        self._transport = transport
        self._clock = clock
        self._failure_detector = failure_detector
        self._address = ""  # of this server, from the configurations of its groups
        self._addresses: dict[ServerUuid, str] = {}
        self._messages: dict[ServerUuid, list[tuple[TabletId, AnyMessage]]] = {}

    def add(self, config: Configuration, group: TabletId, message: AnyMessage) -> None:
        """Queue a message of a group.

        Args:
            config: configuration of the group; a receiver that is not in it keeps its last known address.
            group: id of the group.
            message: the message, with its receiver.
        """
        own, member = config.get(self.uuid), config.get(message.to)
        if own is not None:
            self._address = own.peer_address
        if member is not None:
            self._set_address(message.to, member.peer_address)
        self._messages.setdefault(message.to, []).append((group, message))

    def send_keepalive(self, to: ServerUuid, configs: Iterable[Configuration]) -> None:
        """Queue a batch for a server, empty if there are no messages.

        Args:
            to: the receiving server.
            configs: configurations of all groups, in which to look for an address that is not known yet.
        """
        if to not in self._addresses:
            found = next((m for c in configs if (m := c.get(to)) is not None), None)
            if found is None:
                return
            self._set_address(to, found.peer_address)
        self._messages.setdefault(to, [])

    def learn(self, server: ServerUuid, address: str) -> None:
        """Learn a server's address from its own batch where no configuration has named one.

        A replica that was copied or lags behind may get messages of a leader that its configuration lacks:
        without an answer the leader would never learn which entries it lacks.
        """
        if address and server not in self._addresses:
            self._set_address(server, address)

    def _set_address(self, server: ServerUuid, address: str) -> None:
        self._addresses[server] = address
        if len(self._addresses) > ADDRESSES:  # drop the oldest one without queued messages
            idle = next(
                (s for s in self._addresses if s not in self._messages and s != server), None
            )
            if idle is not None:
                del self._addresses[idle]

    def address(self, server: ServerUuid) -> str:
        """Return the last known peer address of a server; empty: not known."""
        return self._addresses.get(server, "")

    def drop(self, group: TabletId) -> None:
        """Drop a group's queued messages: its replica has ended."""
        for to, gathered in self._messages.items():
            self._messages[to] = [m for m in gathered if m[0] != group]

    def flush(self) -> None:
        """Send all queued messages."""
        if not self._messages:
            return
        messages, self._messages = self._messages, {}
        hlc, own = self._clock.peek(), self._failure_detector
        log_ms = self._log_ms()
        for to, gathered in messages.items():
            address = self._addresses.get(to)
            if address is not None:
                batch = PeerBatch(
                    self.uuid, to, hlc, tuple(gathered),
                    incarnation=own.incarnation, stopped_count=own.stopped_count,
                    stopped_groups=own.stopped_groups, log_ms=log_ms, address=self._address,
                )  # fmt: skip
                self._transport.send(address, batch)
