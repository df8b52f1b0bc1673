"""Crash points of coordinators: the process that reaches the point drawn is killed there, or paused.

The names come from the operations themselves: before and after each append and each action. A leader that is
paused at a point before a call to a server sends it after it has woken, by then perhaps replaced.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from nyala.env.request_stream import OnResponse, RequestStream
from nyala.env.rpc import Method, Rpc
from nyala.ram.ids import ServerId
from nyala.wire import methods
from tests.sim.world.loop import ProcessDied, SimLoop
from tests.sim.world.process import SimProcess

ARMED_S = 8.0
"""Time in which a point that was drawn must be reached, in seconds."""
CALLS = {
    methods.RAM_TAKE_OWNERSHIP: "take",
    methods.RAM_DROP_OWNERSHIP: "drop",
    methods.RAM_SPLIT_OWNED: "split",
    methods.RAM_SET_OWNERSHIP: "set",
    methods.RAM_UPDATE_SERVER_LIST: "list",
    methods.RAM_PING: "ping",
}
"""Names of the calls of leaders to servers."""


@dataclass(slots=True)
class CrashPoints:
    """Points that coordinators reach.

    Args:
        loop: virtual time.
        rng: draws the points.

    Attributes:
        seen: how often each point was reached.
        struck: number of crashes and pauses, by kind.
        armed: the point drawn; empty: none.
    """

    loop: SimLoop
    rng: random.Random
    seen: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    armed: str = ""
    _hit: "asyncio.Future[SimProcess] | None" = None
    _kills: bool = True

    def reached(self, process: SimProcess, name: str) -> None:
        """Crash or pause the process if this is the point drawn."""
        self.seen[name] += 1
        if name != self.armed or self._hit is None or self._hit.done():
            return
        self.armed = ""
        self._hit.set_result(process)
        self.loop.trace.note("crash_point", f"{process.name} {name}")
        if self._kills:
            self.struck["kill"] += 1
            process.kill(power_cut=False)
            raise ProcessDied(process.name)
        self.struck["pause"] += 1
        process.pause()

    async def strike(self, down_s: float, pause_s: float) -> None:
        """Draw a point, wait until a coordinator reaches it, and let it run again later.

        Args:
            down_s: mean time until a killed one is started again.
            pause_s: mean length of a pause.
        """
        if not self.seen or self.armed:
            return
        self.armed, self._kills = self.rng.choice(sorted(self.seen)), self.rng.random() < 0.6
        self._hit = self.loop.create_future()
        try:
            async with asyncio.timeout(ARMED_S):
                process = await self._hit
        except TimeoutError:
            self.armed = ""
            return
        mean_s = down_s if self._kills else pause_s
        await self.loop.delay(self.rng.expovariate(1 / mean_s) * 1e6)
        if process.alive:
            process.resume()
        else:
            process.start()


@dataclass(slots=True)
class LeaderCalls:
    """Calls that leaders have sent to servers, also those that nobody has received.

    Attributes:
        sent: servers by epoch, call and table.
    """

    sent: dict[tuple[int, str, int], set[ServerId]] = field(default_factory=dict)

    def note(self, method: Method, request: Any) -> None:
        """Take a call."""
        what = CALLS.get(method, "")
        tables = [t.table_id for t in request.tablets] if what == "take" else []
        tables += [request.table_id] if what in ("drop", "split") else []
        for table in tables:
            key = (request.fence.epoch, what, table)
            self.sent.setdefault(key, set()).add(ServerId.of(request.fence.server))


class CoordinatorRpc(Rpc):
    """Calls of a coordinator: noted; those that it has begun when it was paused are sent when it has woken.

    Args:
        inner: sends them.
        process: the coordinator's.
        calls: notes them.
    """

    def __init__(self, inner: Rpc, process: SimProcess, calls: LeaderCalls) -> None:
        self._inner = inner
        self._process = process
        self._calls = calls

    async def call(self, address: str, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """See `Rpc.call`."""
        if method in CALLS:
            incarnation = self._process.incarnation
            if incarnation is not None and incarnation.held:
                await self._process.loop.delay(1)
            self._calls.note(method, request)
        return await self._inner.call(address, method, request, timeout_ms=timeout_ms)

    def stream(
        self, address: str, method: Method, request: Any, *, timeout_ms: int | None = None
    ) -> AsyncIterator[Any]:
        """See `Rpc.stream`."""
        return self._inner.stream(address, method, request, timeout_ms=timeout_ms)

    def request_stream(
        self, address: str, method: Method, on_response: OnResponse
    ) -> RequestStream:
        """See `Rpc.request_stream`."""
        return self._inner.request_stream(address, method, on_response)
