"""Peers on real loopback connections, and bare connections to them."""

import asyncio
import contextlib
from dataclasses import dataclass, field

from nyala.common import addresses
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.env import system_env
from nyala.raft.messages import AppendEntries, Entry, EntryKind, PeerBatch
from nyala.wire.channels import GrpcRpc
from nyala.wire.frames import FrameKind, encode_frame
from nyala.wire.peers import PeerTransport
from tests.waiting import eventually

A, B, GROUP = ServerUuid("a" * 32), ServerUuid("b" * 32), TabletId("7" * 32)
CLUSTER = "c" * 32


def heartbeat(n, sender=A, to=B):
    return PeerBatch(
        sender, to, n, ((GROUP, AppendEntries(sender=sender, to=to, term=1, round=n)),)
    )


def append(payload, index=1, groups=1):
    entries = (Entry(OpId(1, index), index, EntryKind.OPERATION, payload),)
    message = AppendEntries(sender=A, to=B, term=1, entries=entries)
    return PeerBatch(A, B, index, ((GROUP, message),) * groups)


@dataclass
class Peer:
    transport: PeerTransport
    address: str
    got: list[PeerBatch] = field(default_factory=list)
    lost: list[ServerUuid] = field(default_factory=list)

    def rounds(self):
        return [m.round for b in self.got for _, m in b.messages if isinstance(m, AppendEntries)]


@contextlib.asynccontextmanager
async def peers(*uuids, limits=None, cluster=CLUSTER, address="127.0.0.1:0"):
    env = system_env(GrpcRpc())
    started = []
    try:
        for uuid in uuids:
            transport = PeerTransport(env, lambda: cluster, limits)
            peer = Peer(transport, await transport.listen(address, uuid))
            transport.receive(peer.got.append, peer.lost.append)
            started.append(peer)
        yield started
    finally:
        for peer in started:
            await peer.transport.close()
        await env.tasks.close()
        await env.rpc.close()  # type: ignore[attr-defined]


async def raw_connection(address, *chunks):
    """Send bytes to a peer port and return once the other side has closed the connection."""
    reader, writer = await asyncio.open_connection(*addresses.parse(address))
    try:
        for chunk in chunks:
            writer.write(chunk)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                await writer.drain()
                assert await reader.read() == b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def drops(peer, count, what):
    await eventually(lambda: peer.transport.dropped() == count, f"dropped: {what}")


def hello(sender=A, to=B, cluster=CLUSTER):
    return encode_frame(PeerBatch(sender, to, 0, ()), cluster, FrameKind.HELLO)
