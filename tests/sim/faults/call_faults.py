"""A fault at one step of one call: the messages of a client are counted, and one of them is disturbed.

A step is a request: a call, or a message on a stream. The fault comes before it is sent, while it is in
flight or executed, or after its execution and before the answer arrives. Steps are counted in a run without a
fault, so that each message of a call is disturbed once.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from nyala.common.errors import TimedOut, Unavailable
from nyala.env.request_stream import OnResponse, QueuedRequestStream, RequestStream
from nyala.env.rpc import Method, Rpc, Shape
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.process import SimProcess

PHASES = ("before", "during", "after")
KINDS = ("kill", "pause", "cut")
DURING_US = 600.0
"""Microseconds after its sending at which a request is in flight or has just arrived."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """Fault at one step of a call.

    Attributes:
        at: number of the step.
        phase: phase of the step.
        kind: kill, pause, or cut between the client and the server.
        wide: whether it affects all masters, or all tablet servers.
    """

    at: int
    phase: str
    kind: str
    wide: bool


class Steps:
    """Transport of a client, with a fault at one step. An `env.rpc.Rpc`.

    Args:
        cluster: cluster of the servers.
        client: process that makes the calls.
        inner: transport that carries them.

    Attributes:
        count: steps so far.
        fault: to inject; None: none.
        struck: servers that had the fault.
    """

    def __init__(self, cluster: SimCluster, client: SimProcess, inner: Rpc) -> None:
        self._cluster = cluster
        self._client = client
        self._inner = inner
        self.count = 0
        self.fault: CallFault | None = None
        self.struck: list[SimProcess] = []

    async def call(self, address: str, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """See `Rpc.call`."""
        phase = self._step(address)
        answer = await self._inner.call(address, method, request, timeout_ms=timeout_ms)
        fault = self.fault
        if phase == "after" and fault is not None:
            self._strike(address)
            if fault.kind == "kill":
                raise Unavailable(f"the connection to {address} broke")
            await self._cluster.loop.delay(timeout_ms * 1000)
            raise TimedOut(f"no answer from {address}")
        return answer

    async def stream(
        self, address: str, method: Method, request: Any, *, timeout_ms: int | None = None
    ) -> AsyncIterator[Any]:
        """See `Rpc.stream`."""
        lost: list[bool] = []

        async def outgoing() -> AsyncIterator[Any]:
            async for message in request:
                if self._step(address) == "after":
                    lost.append(True)
                yield message

        sent = outgoing()
        if method.shape is Shape.SERVER_STREAM:
            sent = request
            if self._step(address) == "after":
                lost.append(True)
        async for answer in self._inner.stream(address, method, sent, timeout_ms=timeout_ms):
            if lost:
                self._strike(address)
                raise Unavailable(f"the connection to {address} broke")
            yield answer

    def request_stream(
        self, address: str, method: Method, on_response: OnResponse
    ) -> RequestStream:
        """See `Rpc.request_stream`."""
        return QueuedRequestStream(
            lambda requests: self.stream(address, method, requests), on_response
        )

    def _step(self, address: str) -> str:
        """Count a step; return the phase of the fault, which may have been injected already."""
        self.count += 1
        if self.fault is None or self.fault.at != self.count:
            return ""
        if self.fault.phase == "before":
            self._strike(address)
        elif self.fault.phase == "during":
            self._cluster.network.after(DURING_US, self._strike, address)
        return self.fault.phase

    def _strike(self, address: str) -> None:
        cluster, fault = self._cluster, self.fault
        if fault is None or self.struck:
            return
        one = next(s for s in cluster.servers if s.address == address)
        role = cluster.masters if one in cluster.masters else cluster.tservers
        self.struck = list(role) if fault.wide else [one]
        if fault.kind == "cut":
            cluster.network.partition([self._client.name], [s.name for s in self.struck])
            return
        for server in self.struck:
            if fault.kind == "kill":
                server.kill()
            else:
                server.pause()

    def mend(self) -> None:
        """Undo the fault: killed servers are started again."""
        fault, self.fault = self.fault, None
        struck, self.struck = self.struck, []
        self._cluster.network.heal()
        for server in struck:
            if fault is not None and fault.kind == "kill":
                server.start()
            elif fault is not None and fault.kind == "pause":
                server.resume()
