"""Answers of a tablet server: keep-alives, results, heartbeats, orders executed."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from nyala.admin.fencing import Fence, OrderFence
from nyala.client.cluster.leader_watch import SILENT_MS
from nyala.common.errors import NotFound
from nyala.common.ids import ServerUuid, TabletId
from nyala.env.env import Env, system_env
from nyala.security.limits.shares import Shares
from nyala.tserver import flight_service
from nyala.tserver.flight_service import FlightService
from nyala.tserver.heartbeater import Heartbeater, Reporter
from nyala.wire import flight
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb

SHARES = Shares("open scans", 9, "user_scans_max")

SCHEMA = pa.schema([pa.field("n", pa.int64())])
BATCH = pa.record_batch([pa.array([1, 2])], schema=SCHEMA)


class Rpc:
    def __init__(self) -> None:
        self.heartbeats: asyncio.Queue[Any] = asyncio.Queue()

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        self.heartbeats.put_nowait(request)
        return pb.HeartbeatResponse(acknowledged_sequence=request.report_sequence)

    def stream(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("no streams here")

    def request_stream(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("unexpected call")


def with_env(scenario: Any) -> Any:
    async def run() -> Any:
        env = system_env(Rpc())
        try:
            async with asyncio.timeout(20):
                return await scenario(env)
        finally:
            await env.tasks.close()

    return asyncio.run(run())


@pytest.mark.row("A5")
def test_long_computing_scan_sends_keepalives(monkeypatch):
    assert 2 * flight_service.KEEPALIVE_MS <= SILENT_MS, (
        "a client does not take it for a silent server"
    )
    monkeypatch.setattr(flight_service, "KEEPALIVE_MS", 1)

    async def scenario(env: Env) -> None:
        ready = asyncio.Event()

        class SlowScanners:
            async def run(self, token: pb.ScanToken) -> Any:
                yield flight.schema_data(SCHEMA)
                await ready.wait()
                yield flight.batch_data(BATCH)

        service = FlightService(env, None, SlowScanners(), SHARES)  # type: ignore[arg-type]
        scan = service.do_get(flight_pb2.Ticket())
        assert flight.read_schema((await anext(scan)).header) == SCHEMA
        for _ in range(3):
            sign = await anext(scan)
            assert flight.read_batch(SCHEMA, sign.header, sign.body).num_rows == 0
        ready.set()
        rest = [flight.read_batch(SCHEMA, d.header, d.body) async for d in scan]
        assert [b for b in rest if b.num_rows] == [BATCH]

    with_env(scenario)


def test_error_during_scan_is_raised_and_scan_closed():
    async def scenario(env: Env) -> list[str]:
        seen = []

        class FailingScanners:
            async def run(self, token: pb.ScanToken) -> Any:
                try:
                    yield flight.schema_data(SCHEMA)
                    raise NotFound("gone")
                finally:
                    seen.append("closed")

        service = FlightService(env, None, FailingScanners(), SHARES)  # type: ignore[arg-type]
        with pytest.raises(NotFound, match="gone"):
            async for _ in service.do_get(flight_pb2.Ticket()):
                pass
        return seen

    assert with_env(scenario) == ["closed"]


def test_internal_error_in_batch_is_answered():
    async def scenario(env: Env) -> pb.WriteResult:
        class FailingWrites:
            async def write(self, schema: pa.Schema, data: FlightData) -> pb.WriteResult:
                raise ZeroDivisionError("a bug")

        async def requests() -> Any:
            yield flight.schema_data(SCHEMA)
            header = pb.WriteHeader(tablet_id="t", request=7)
            yield flight.batch_data(BATCH, header.SerializeToString())

        service = FlightService(env, FailingWrites(), None, SHARES)  # type: ignore[arg-type]
        answers = [a async for a in service.do_put(requests())]
        return pb.WriteResult.FromString(answers[0].app_metadata)

    result = with_env(scenario)
    assert (result.request, result.error.code) == (7, "OUTCOME_UNKNOWN")


def test_heartbeats_continue_when_their_content_cannot_be_saved():
    async def scenario(env: Env) -> None:
        async def on_response(address: str, response: pb.HeartbeatResponse) -> None:
            raise OSError(28, "no space left on device")

        reporter = Reporter(pb.ServerInfoResponse, lambda only: [], on_response)
        Heartbeater(env, lambda: ["m:1"], reporter, interval_ms=1, unresponsive_ms=10).start()
        for _ in range(3):
            await env.rpc.heartbeats.get()  # type: ignore[attr-defined]

    with_env(scenario)


def test_order_completes_after_sender_disconnects():
    async def scenario(env: Env) -> list[str]:
        begun, go_on, steps = asyncio.Event(), asyncio.Event(), []

        class Host:
            def find(self, group: TabletId) -> None:
                return None

            async def create_replica(self, *_: Any) -> None:
                begun.set()
                await go_on.wait()
                steps.append("created")

        class Self:
            uuid = ServerUuid("a" * 32)

        orders = OrderFence(env, Self(), Fence())  # type: ignore[arg-type]
        work = orders.run_to_completion(Host().create_replica())
        order = asyncio.ensure_future(work)
        await begun.wait()
        order.cancel()
        with pytest.raises(asyncio.CancelledError):
            await order
        go_on.set()
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn
        return steps

    assert with_env(scenario) == ["created"]
