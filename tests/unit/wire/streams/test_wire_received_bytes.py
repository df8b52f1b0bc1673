"""Received bytes that no call has consumed: each end of a stream has a limit, which may change."""

import asyncio
import gc
import socket
import weakref
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import numpy as np

from nyala.wire import methods, stream_client
from nyala.wire.framing import Slabs
from nyala.wire.proto import flight_pb2
from nyala.wire.stream_end import StreamEnd
from nyala.wire.stream_frames import StreamFrameKind, frame_head
from tests.unit.wire.support.wire_helpers import BatchStore, served
from tests.waiting import eventually

BODY = b"x" * 100_000


class Transport:
    """A transport that records whether it reads."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self.reads = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._socket if name == "socket" else default

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignore the limit."""

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Recorded(Slabs):
    """Slabs that show which memory is in use."""

    taken: "list[weakref.ref[np.ndarray[Any, Any]]]"

    def __init__(self, slab_bytes: int = 0) -> None:
        super().__init__()
        self.taken = []

    def take(self, size: int) -> memoryview:
        memory = np.empty(size, np.uint8)
        self.taken.append(weakref.ref(memory))
        return memory.data

    def used(self) -> int:
        return sum(one() is not None for one in self.taken)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def connected(end: StreamEnd) -> Iterator[Transport]:
    with socket.socket() as own:
        transport: Any = Transport(own)
        end.connection_made(transport)
        yield transport


def receive(end: StreamEnd) -> None:
    """Receive one frame."""
    raw = memoryview(frame_head(StreamFrameKind.MESSAGE, b"", len(BODY)) + BODY)
    while raw:
        room = end.get_buffer(len(raw))
        count = min(len(room), len(raw))
        room[:count] = raw[:count]
        end.buffer_updated(count)
        raw = raw[count:]


def test_end_reads_while_its_share_has_room():
    async def main() -> None:
        share = 250_000
        end = StreamEnd(1 << 20, Slabs(), lambda: share)
        with connected(end) as transport:
            for queued in (1, 2, 3):
                receive(end)
                assert transport.reads == (queued < 3)
            await end.receive()
            assert not transport.reads, "more than half of it is queued"
            await end.receive()
            assert transport.reads
            share = 150_000  # another stream was opened
            receive(end)
            assert not transport.reads
            share = 0
            await end.receive()
            assert not transport.reads
            await end.receive()
            assert transport.reads, "one frame always has room"
            receive(end)
            assert not transport.reads

    asyncio.run(main())


def test_finished_end_drops_what_no_call_has_consumed():
    async def main() -> None:
        slabs = Recorded()
        end = StreamEnd(1 << 20, slabs)
        with no_garbage_collection(), connected(end):
            for _ in range(3):
                receive(end)
            frame = await end.receive()
            assert slabs.used() == 3
            end.discard()
            assert (slabs.used(), len(frame.body or b"")) == (1, len(BODY))
            receive(end)
            assert slabs.used() <= 2, "what comes later is dropped too"

    asyncio.run(main())


def test_client_that_ends_a_stream_early_drops_what_it_received(monkeypatch):
    """A follower ends many streams early, each with megabytes that were received."""
    made: list[Recorded] = []

    def recorded(slab_bytes: int) -> Recorded:
        made.append(Recorded(slab_bytes))
        return made[-1]

    monkeypatch.setattr(stream_client, "Slabs", recorded)

    async def main() -> None:
        async with served(BatchStore()) as (rpc, address):
            ticket = flight_pb2.Ticket(ticket=b"500")
            with no_garbage_collection():
                stream: Any = rpc.stream(address, methods.DO_GET, ticket)
                async with aclosing(stream):
                    await anext(stream)
                    await eventually(
                        lambda: len(made[0].taken) >= 20, "twenty batches were received"
                    )
                    assert made[0].used() >= 19
                assert made[0].used() == 0

    asyncio.run(main())
