"""The simulated peer port: Raft frames through the real codec, lost, doubled and reordered."""

from collections.abc import Callable
from zlib import crc32

from nyala.common.ids import ServerUuid
from nyala.raft.messages import PeerBatch
from nyala.wire.frames import decode_frame, encode_frame
from tests.sim.world.loop import Incarnation
from tests.sim.world.network import Endpoint, SimNetwork

FALSE_ALARM_RATE = 0.05
"""Microseconds after which a sender of lost frames considers the receiver lost."""


class SimTransport:
    """`Transport` of one process.

    Args:
        network: carries the frames.
        name: of the process.
        incarnation: whose callbacks receive.
        address: the process's peer address.
    """

    def __init__(
        self, network: SimNetwork, name: str, incarnation: Incarnation, address: str
    ) -> None:
        self._network = network
        self._name = name
        self._incarnation = incarnation
        self._address = address
        self._lost: Callable[[ServerUuid], None] = lambda server: None

    def send(self, address: str, batch: PeerBatch) -> None:
        """Queue a batch for the peer port at `address`."""
        if self._incarnation.dead:
            return
        network = self._network
        network.touched[self._name] = None
        if network.on_send is not None:
            network.on_send(self._name, batch)
        frame = encode_frame(batch, "")
        copies = network.copies()
        note = f"{self._name} -> {address} {len(frame)} {crc32(frame):08x}"
        network.trace.note(("peer_lost", "peer_sent", "peer_doubled")[copies], note)
        if network.trace.recorder is not None:
            network.trace.recorder.sent(network.loop.now_us(), self._name, address, batch, copies)
        for _ in range(copies):
            network.after(network.draw_delay_us(), self._arrive, address, batch.to, frame)
        if not copies and network.rng.random() < FALSE_ALARM_RATE:
            self._tell(batch.to, "peer_false_alarm")

    def _arrive(self, address: str, to: ServerUuid, frame: bytes) -> None:
        network = self._network
        endpoint = network.endpoint(address)
        if endpoint is None or endpoint.receive is None:
            self._refused(address, to)
            return
        if not network.passes(self._name, endpoint.name):
            network.trace.note("peer_cut", f"{self._name} -> {endpoint.name}")
            return
        network.touched[endpoint.name] = None
        network.when_dead(
            endpoint.incarnation, (self._incarnation, to), lambda: self._refused(address, to)
        )
        network.into(
            endpoint.incarnation, endpoint.receive, decode_frame(frame).batch, connection=self._name
        )

    def _refused(self, address: str, to: ServerUuid) -> None:
        """Connect to a process that has ended: refused, if the link is up and no other process listens."""
        network, name = self._network, self._network.owner(address)
        if name is None or network.endpoint(address) is not None:
            return
        if network.passes(self._name, name) and network.passes(name, self._name):
            self._tell(to, "peer_refused")

    def _tell(self, to: ServerUuid, kind: str) -> None:
        network = self._network
        if not self._incarnation.dead:
            network.trace.note(kind, f"{self._name} -> {to[:8]}")
            network.touched[self._name] = None
            network.into(self._incarnation, self._lost, to)

    def receive(
        self,
        handler: Callable[[PeerBatch], None],
        lost: Callable[[ServerUuid], None] = lambda server: None,
    ) -> None:
        """Register the callbacks for incoming batches and for refused connections."""
        self._lost = lost
        self._network.bind(self._address, Endpoint(self._name, self._incarnation, {}, handler))
