"""State for each address of a server is bounded: servers that are started anew have new addresses."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from nyala.admin.fencing import Fence
from nyala.client.read.get_streams import GetStreams
from nyala.common import addresses
from nyala.common.errors import InvalidArgument, Unavailable
from nyala.common.metrics import Metrics
from nyala.env.clock import SystemClock
from nyala.master import tservers
from nyala.master.repair import round_robin
from nyala.master.repair.round_robin import ReplicaRoundRobin
from nyala.master.tservers import TServers
from nyala.replica.clock_offsets import MasterClocks
from nyala.tserver import masters
from nyala.tserver.master_responses import MasterResponses
from nyala.tserver.masters import MasterList
from nyala.tserver.quotas.hosted_quotas import HostedQuotas
from nyala.wire import methods
from nyala.wire.channels import Channels
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from nyala.wire.streams.calls import CallClient
from tests.sim.checkers.containers import sizes
from tests.waiting import eventually

ADDRESSES = [f"127.0.0.1:{port}" for port in range(1, 9)]
MOST = 3
"""Number of addresses of which state is kept here."""


@pytest.fixture(autouse=True)
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the numbers that are kept."""
    keep = addresses.keep_newest
    monkeypatch.setattr(addresses, "KEPT", MOST)
    monkeypatch.setattr(
        addresses, "keep_newest", lambda kept, key, value, most=MOST: keep(kept, key, value, most)
    )
    monkeypatch.setattr(masters, "MAX_KNOWN", MOST)
    monkeypatch.setattr(tservers, "SERVERS_KEPT", MOST)
    monkeypatch.setattr(round_robin, "SERVERS_KEPT", MOST)


class Streams:
    """Streams of requests that the test ends; what is sent waits for an answer."""

    def __init__(self) -> None:
        self.on_response: dict[str, Any] = {}

    def request_stream(self, address: str, _method: object, on_response: Any) -> "Streams":
        self.on_response[address] = on_response
        return self

    def open(self, address: str, on_response: Any) -> "Streams":
        return self.request_stream(address, None, on_response)

    def end_all(self) -> None:
        """End all streams, as servers that stop do."""
        for on_response in self.on_response.values():
            on_response(Unavailable("the server ended"))
        self.on_response.clear()

    def send(self, request: object) -> None: ...

    def abandon(self) -> None: ...


def length(one: object, name: str) -> int:
    """Return the length of a container inside an object, by class and attribute."""
    return sizes([one])[name]


def test_channels_are_closed_unless_a_call_uses_them():
    async def scenario() -> None:
        channels = Channels(RpcLimits())
        async with channels.use("127.0.0.1:99") as used:
            for address in ADDRESSES:
                async with channels.use(address):
                    pass
            assert length(channels, "Channels._channels") == MOST
            async with channels.use("127.0.0.1:99") as again:
                assert again is used
            async with channels.use(ADDRESSES[-1]) as newest:
                pass
            async with channels.use(ADDRESSES[-1]) as again:
                assert again is newest
        assert length(channels, "Channels._channels") == MOST
        assert length(channels, "Channels._calls") == 0
        await channels.close()

    uvloop.run(scenario())


def test_channels_that_are_all_used_stay_until_their_calls_end():
    async def scenario() -> None:
        channels = Channels(RpcLimits())
        uses = [channels.use(address) for address in ADDRESSES]
        for use in uses:
            await use.__aenter__()
        assert length(channels, "Channels._channels") == len(ADDRESSES)
        for use in uses:
            await use.__aexit__(None, None, None)
        assert length(channels, "Channels._channels") == MOST
        await channels.close()

    uvloop.run(scenario())


def test_streams_of_calls_to_servers_that_ended_are_dropped():
    async def scenario() -> None:
        servers = Streams()
        client = CallClient(servers.open, 1 << 20)  # type: ignore[arg-type]
        for address in ADDRESSES:
            call = client.call(address, methods.SERVER_INFO, pb.ServerInfoRequest(), 30_000)
            waiting = asyncio.ensure_future(call)
            await eventually(partial(servers.on_response.get, address), "a stream is open")
            assert length(client, "CallClient._streams") == 1
            servers.end_all()
            with pytest.raises(Unavailable):
                await waiting

    uvloop.run(scenario())


def test_streams_of_point_reads_to_servers_that_ended_are_dropped():
    async def scenario() -> None:
        servers = Streams()
        found: list[object] = []
        streams = GetStreams(SimpleNamespace(rpc=servers), cast("Any", None))  # type: ignore[arg-type]
        table, tablet = cast("Any", None), cast("Any", None)
        for address in ADDRESSES:
            streams.send(address, table, tablet, reads_pb2.GetPart(), found.append, 30_000)
            assert length(streams, "GetStreams._streams") == 1
            servers.end_all()
        assert [type(one) for one in found] == [Unavailable] * len(ADDRESSES)

    uvloop.run(scenario())


class Instance:
    """Identity of a server that has no cluster yet."""

    instance = SimpleNamespace(cluster_id="", masters=[])

    async def learn(self, **_: object) -> None: ...


def test_masters_of_a_tablet_server_are_bounded():
    async def scenario() -> None:
        env = SimpleNamespace(clock=SystemClock())
        known = MasterList(env, Instance(), ADDRESSES[:1], 1000)  # type: ignore[arg-type]
        fence = Fence()
        clocks, quotas = MasterClocks(SystemClock()), HostedQuotas(Metrics())
        responses = MasterResponses(Instance(), fence, known, clocks, quotas)  # type: ignore[arg-type]
        for address in ADDRESSES:
            listed = pb.HeartbeatResponse(
                master_addresses=[address], catalog_incarnation="c", term=1, leader=False
            )
            responses.refuse(address, InvalidArgument("of another cluster"))
            await responses.take(address, listed)
            responses.refuse(address, InvalidArgument("of another cluster"))
        assert known.current() == (*ADDRESSES[-MOST:],)
        assert length(responses, "MasterResponses._refused") == MOST
        assert [*fence.reported] == ADDRESSES[-MOST:]

    uvloop.run(scenario())


def heartbeat(uuid: str) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(server=pb.ServerInfoResponse(uuid=uuid, incarnation=1))


def test_masters_forget_the_servers_that_were_not_alive_for_the_longest_time():
    servers, positions = TServers(unresponsive_us=10), ReplicaRoundRobin(5)
    for number in range(MOST + 2):  # all are alive
        positions.next(servers.record_heartbeat(heartbeat(f"{number}"), number))
    assert [s.uuid for s in servers.all()] == ["0", "1", "2", "3", "4"]
    servers.record_heartbeat(heartbeat("0"), 20)
    for number in range(5, 7):
        positions.next(servers.record_heartbeat(heartbeat(f"{number}"), 20 + number))
    assert [s.uuid for s in servers.all()] == ["0", "3", "4", "5", "6"]
    assert length(positions, "ReplicaRoundRobin._next") == MOST
