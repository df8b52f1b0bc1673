"""Page of recent and slow calls: their order and limits, and the size and user of a call on a real port."""

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from nyala.env.clock import SystemClock
from nyala.security.principal import AccessRole
from nyala.web.rpcz import rpcz_page
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.rpc_metrics import KEPT, SLOW_US, RpcMetrics
from nyala.wire.server import GrpcServer
from tests.unit.security.certificates import server, user

pytestmark = pytest.mark.row("A18")


class Moments(SystemClock):
    """A clock that a test sets."""

    now_us = 0

    def monotonic_us(self) -> int:
        return self.now_us


def test_slow_calls_outlive_the_recent_ones():
    clock = Moments()
    metrics = RpcMetrics(clock, CollectorRegistry())
    begin = metrics.begin()
    clock.now_us = SLOW_US
    metrics.end("slow", "OK", begin, 7)
    for number in range(KEPT + 1):
        metrics.end(f"fast-{number}", "NOT_FOUND", metrics.begin())
    rows = rpcz_page(metrics).rows
    assert rows[0] == ("slow", "slow", "OK", "-", "500.0", "7", "0.5")
    assert [row[1] for row in rows[1:3]] == [f"fast-{KEPT}", f"fast-{KEPT - 1}"]
    assert len(rows) == 1 + KEPT


def test_call_on_a_port_has_its_user_and_size_and_nothing_of_its_content():
    metrics = RpcMetrics(SystemClock(), CollectorRegistry())

    async def describe(_request):
        return pb.DescribeTableResponse()

    async def scenario():
        handlers = {methods.DESCRIBE_TABLE: describe}
        made = GrpcServer(handlers, "127.0.0.1:0", metrics=metrics, credentials=server())
        address, rpc = await made.start(), GrpcRpc(credentials=user(AccessRole.READER))
        request = pb.DescribeTableRequest(name="hidden")
        await rpc.call(address, methods.DESCRIBE_TABLE, request, timeout_ms=10_000)
        await rpc.close()
        await made.stop(0)
        return request.ByteSize()

    size = uvloop.run(scenario())
    (row,) = rpcz_page(metrics).rows
    assert (row[0], row[1], row[2], row[3]) == (
        "recent", methods.DESCRIBE_TABLE.path, "OK", "reader",
    )  # fmt: skip
    assert row[5] == str(size)
    assert "hidden" not in str(row)
