"""Page of calls: their order and limits, and the size and user of a call on a real port."""

from collections.abc import Sequence

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
    slow = metrics.begin("slow", 7)
    clock.now_us = SLOW_US
    metrics.end(slow, "OK")
    for number in range(KEPT + 1):
        metrics.end(metrics.begin(f"fast-{number}"), "NOT_FOUND")
    rows = rpcz_page(metrics).rows
    assert rows[0] == ("slow", "slow", "OK", "-", "500.0", "7", "0.5")
    assert [row[1] for row in rows[1:3]] == [f"fast-{KEPT}", f"fast-{KEPT - 1}"]
    assert len(rows) == 1 + KEPT


def test_calls_under_way_are_shown_the_oldest_first_until_they_end():
    clock = Moments()
    metrics = RpcMetrics(clock, CollectorRegistry())
    calls = [metrics.begin("held", 3)]
    clock.now_us = 2_000_000
    calls += [metrics.begin("others") for _ in range(KEPT + 1)]
    page = rpcz_page(metrics)
    assert page.title == "calls (2 more are under way)"
    assert page.rows[0] == ("under way", "held", "-", "-", "2000.0", "3", "2.0")
    assert [row[1] for row in page.rows[1:]] == ["others"] * (KEPT - 1)
    for call in calls[1:]:
        metrics.end(call, "OK")
    page = rpcz_page(metrics)
    assert [row[1] for row in page.rows if row[0] == "under way"] == ["held"]
    metrics.end(calls[0], "CANCELLED")
    assert {row[0] for row in rpcz_page(metrics).rows} == {"recent", "slow"}


def test_call_on_a_port_has_its_user_and_size_and_nothing_of_its_content():
    metrics = RpcMetrics(SystemClock(), CollectorRegistry())

    during: list[Sequence[str]] = []

    async def describe(_request):
        during.extend(rpcz_page(metrics).rows)
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
    (active,) = during
    assert (active[0], active[1], active[3], active[5]) == (
        "under way", methods.DESCRIBE_TABLE.path, "reader", str(size),
    )  # fmt: skip
    (row,) = rpcz_page(metrics).rows
    assert (row[0], row[1], row[2], row[3]) == (
        "recent", methods.DESCRIBE_TABLE.path, "OK", "reader",
    )  # fmt: skip
    assert row[5] == str(size)
    assert "hidden" not in str(row)
