"""Received bytes that no call has consumed: each end of a stream has a limit, which may change."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nyala.wire.framing import Slabs
from nyala.wire.stream_end import StreamEnd
from nyala.wire.stream_frames import StreamFrameKind, frame_head

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
