"""The simulated network: calls, streams, loss, duplication, partitions, crashes; incarnations."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from nyala.common.errors import NotFound, NyalaError, TimedOut, Unavailable
from nyala.env.rpc import Handlers, Method, Shape
from tests.sim.world.loop import Incarnation, SimLoop, run, seeded
from tests.sim.world.network import Endpoint, SimNetwork
from tests.sim.world.rpc import SimRpc


def method(name: str, shape: Shape) -> Method:
    return Method(name, shape, _encode, json.loads, _encode, json.loads)


def _encode(message: Any) -> bytes:
    return json.dumps(message).encode()


ECHO = method("test/Echo", Shape.UNARY)
COUNT = method("test/Count", Shape.SERVER_STREAM)
DOUBLE = method("test/Double", Shape.BIDI)


class EchoService:
    """A server with one method of each shape."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.calls = 0
        self.cancelled = 0

    async def echo(self, request: Any) -> Any:
        self.calls += 1
        if request == "once" and self.calls % 2:
            raise Unavailable("not yet")
        if request == "missing":
            raise NotFound("no such thing", {"name": "thing"})
        if request == "slow":
            try:
                await self.loop.delay(5_000_000)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return request

    async def count(self, request: int) -> AsyncIterator[int]:
        try:
            for number in range(request):
                yield number
        finally:
            self.cancelled += 1

    async def double(self, requests: AsyncIterator[int]) -> AsyncIterator[int]:
        async for number in requests:
            yield 2 * number

    def handlers(self) -> Handlers:
        return {ECHO: self.echo, COUNT: self.count, DOUBLE: self.double}


Body = Callable[[SimNetwork, SimRpc, EchoService, Incarnation], Coroutine[Any, Any, Any]]


def on_network(body: Body, seed: int = 1) -> Any:
    """Run `body` with one server at a:1 and one caller."""

    async def main(loop: SimLoop) -> Any:
        network = SimNetwork(loop, seeded(seed, "network"))
        service, incarnation = EchoService(loop), Incarnation("server")
        network.bind("a:1", Endpoint("server", incarnation, service.handlers()))
        return await body(
            network, SimRpc(network, "client", Incarnation("client")), service, incarnation
        )

    return run(main)


def test_call_returns_response_or_error():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        assert await rpc.call("a:1", ECHO, {"x": 1}, timeout_ms=1000) == {"x": 1}
        with pytest.raises(NotFound, match="no such thing") as raised:
            await rpc.call("a:1", ECHO, "missing", timeout_ms=1000)
        assert raised.value.details == {"name": "thing"}

    on_network(body)


def test_missing_server_is_unavailable_and_lost_response_times_out():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        with pytest.raises(Unavailable):
            await rpc.call("b:1", ECHO, 1, timeout_ms=1000)
        with pytest.raises(TimedOut):
            await rpc.call("a:1", ECHO, "slow", timeout_ms=1000)
        await network.loop.delay(100_000)
        assert service.cancelled == 1

    on_network(body)


def test_link_failure_in_either_direction_times_out_and_only_one_reaches_handler():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        network.cut(["client"], ["server"])
        with pytest.raises(TimedOut):
            await rpc.call("a:1", ECHO, 1, timeout_ms=1000)
        assert service.calls == 0
        network.heal()
        network.cut(["server"], ["client"])
        with pytest.raises(TimedOut):
            await rpc.call("a:1", ECHO, 1, timeout_ms=1000)
        assert service.calls == 1
        network.heal()
        assert await rpc.call("a:1", ECHO, 1, timeout_ms=1000) == 1

    on_network(body)


def test_callers_detect_server_exit():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        def die() -> None:
            incarnation.end()
            network.died(incarnation)

        network.after(1_000_000, die)
        with pytest.raises(Unavailable):
            await rpc.call("a:1", ECHO, "slow", timeout_ms=10_000)
        assert network.loop.time() < 1.1

    on_network(body)


def test_messages_are_lost_and_duplicated_at_configured_rates():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> int:
        network.faults.loss_rate = 0.2
        network.faults.duplicate_rate = 0.2
        failed = 0
        for n in range(200):
            try:
                await rpc.call("a:1", ECHO, n, timeout_ms=100)
            except NyalaError:
                failed += 1
        counts = network.trace.counts
        assert counts["call_lost"] > 20
        assert counts["call_doubled"] > 20
        assert counts["answer_lost"] > 20
        assert service.calls + counts["call_lost"] >= 200
        return failed

    assert 40 < on_network(body) < 120


def test_refusal_of_a_doubled_call_arrives_only_if_no_copy_is_executed():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        network.faults.duplicate_rate = 1.0
        for _ in range(50):
            assert await rpc.call("a:1", ECHO, "once", timeout_ms=10_000) == "once"
        assert service.calls == 100, "one copy of each was refused"
        with pytest.raises(NotFound):
            await rpc.call("a:1", ECHO, "missing", timeout_ms=10_000)

    on_network(body)


def test_streams_keep_their_order_through_loss():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        network.faults.loss_rate = 0.3
        got = [n async for n in rpc.stream("a:1", COUNT, 50)]
        assert got == list(range(50))

        async def requests() -> AsyncIterator[int]:
            for n in range(40):
                yield n

        assert [n async for n in rpc.stream("a:1", DOUBLE, requests())] == [
            2 * n for n in range(40)
        ]

    on_network(body)


def test_leaving_reader_ends_handler_and_window_bounds_stream():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        stream = rpc.stream("a:1", COUNT, 1_000_000)
        assert await anext(stream) == 0
        await network.loop.delay(1_000_000)
        await stream.aclose()  # type: ignore[attr-defined]
        await network.loop.delay(100_000)
        assert service.cancelled == 1
        assert network.trace.counts["stream_message"] < 40

    on_network(body)


def test_stream_fails_when_server_exits_or_link_stays_down():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        stream = rpc.stream("a:1", COUNT, 1_000_000)
        await anext(stream)
        network.partition(["client"], ["server"])
        with pytest.raises(Unavailable):
            async for _ in stream:
                pass
        assert network.loop.time() > 10
        network.heal()
        stream = rpc.stream("a:1", COUNT, 1_000_000)
        await anext(stream)
        incarnation.end()
        network.died(incarnation)
        with pytest.raises(Unavailable):
            async for _ in stream:
                pass
        with pytest.raises(Unavailable):
            await anext(rpc.stream("a:1", COUNT, 1))

    on_network(body)


async def _never(loop: SimLoop) -> AsyncIterator[int]:
    await loop.create_future()
    yield 0


def test_stream_without_answer_times_out():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> None:
        with pytest.raises(TimedOut):
            await anext(rpc.stream("a:1", DOUBLE, _never(network.loop), timeout_ms=100))

    on_network(body)


def test_same_seed_gives_the_same_network_trace():
    async def body(
        network: SimNetwork, rpc: SimRpc, service: EchoService, incarnation: Incarnation
    ) -> str:
        network.faults.loss_rate = network.faults.straggler_rate = 0.1
        network.faults.duplicate_rate = 0.1
        for n in range(50):
            try:
                await rpc.call("a:1", ECHO, n, timeout_ms=100)
            except NyalaError:
                continue
        return network.trace.digest()

    assert on_network(body, 3) == on_network(body, 3)
    assert on_network(body, 3) != on_network(body, 4)
