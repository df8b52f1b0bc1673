"""Streams whose client does not take the answers: no further requests are handled, and none is lost."""

import asyncio
import socket
from collections import deque
from typing import Any

import pytest

from nyala.common.errors import Unavailable
from nyala.env.request_stream import MAX_IN_FLIGHT, responses_to
from nyala.tserver.flight_service import MAX_IN_FLIGHT as MAX_BATCHES
from nyala.tserver.flight_service import FlightService
from nyala.wire import flight, methods
from nyala.wire.framing import Slabs
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from nyala.wire.request_stream import RequestStreamServer
from nyala.wire.stream_end import StreamEnd
from nyala.wire.stream_frames import StreamFrame, StreamFrameKind
from tests.unit.wire.support.wire_helpers import BATCH
from tests.waiting import eventually

REQUESTS = 4 * MAX_IN_FLIGHT


class Connection:
    """Connection of a client that takes the answers one after the other."""

    max_bytes = 1 << 20

    def __init__(self) -> None:
        self.full = self.paused = False
        self.sent: list[int] = []

    def write(self, kind, message):
        self.sent.append(reads_pb2.GetResponse.FromString(message).request)

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False


def frame(number):
    message = reads_pb2.GetRequest(request=number).SerializeToString()
    return StreamFrame(StreamFrameKind.MESSAGE, message, None)


async def turns(number):
    """Let the loop run what is ready, so often that nothing is left."""
    loop = asyncio.get_running_loop()
    for _ in range(number):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


def answered(number):
    return reads_pb2.GetResponse(request=number)


def test_requests_of_a_client_that_does_not_take_the_answers_wait_in_their_order():
    """The requests of one read from the connection, which were all handled before."""
    connection = Connection()
    handled: list[int] = []
    ended: list[Any] = []

    def handle(request, answer):
        handled.append(request.request)
        answer(answered(request.request))
        connection.full = len(connection.sent) % 10 == 0  # the buffer of the connection

    server = RequestStreamServer(connection, methods.GET, handle, ended.append)  # type: ignore[arg-type]
    for number in range(1, REQUESTS + 1):
        server.take(frame(number))
    server.take(StreamFrame(StreamFrameKind.END, b"", None))
    assert (len(handled), connection.paused, ended) == (10, True, [])
    while connection.full:
        connection.full = False
        server.proceed()
    assert handled == connection.sent == list(range(1, REQUESTS + 1))
    assert (connection.paused, ended) == (False, [None])


def test_requests_above_the_number_under_way_wait_although_they_were_received():
    connection = Connection()
    waiting: deque[Any] = deque()
    ended: list[Any] = []

    def handle(request, answer):
        waiting.append((request.request, answer))

    server = RequestStreamServer(connection, methods.GET, handle, ended.append)  # type: ignore[arg-type]
    for number in range(REQUESTS):
        server.take(frame(number))
    assert (len(waiting), connection.paused) == (MAX_IN_FLIGHT, True)
    for _ in range(REQUESTS):
        number, answer = waiting.popleft()
        answer(answered(number))
        assert len(waiting) <= MAX_IN_FLIGHT
    assert connection.sent == list(range(REQUESTS))
    assert not connection.paused


def test_requests_of_a_lost_connection_are_not_handled():
    connection = Connection()
    waiting: deque[Any] = deque()

    def handle(request, answer):
        waiting.append((request.request, answer))

    server = RequestStreamServer(connection, methods.GET, handle, lambda _: None)  # type: ignore[arg-type]
    for number in range(REQUESTS):
        server.take(frame(number))
    server.lost()
    while waiting:
        number, answer = waiting.popleft()
        answer(answered(number))
    assert connection.sent == []


def test_stream_of_requests_over_grpc_handles_no_more_than_the_client_takes():
    async def main():
        handled = []

        async def requests():
            for number in range(REQUESTS):
                yield number

        def handle(request, answer):
            handled.append(request)
            answer(request)

        answers = responses_to(handle, requests())
        found = [await anext(answers)]
        await turns(20)
        assert len(handled) == MAX_IN_FLIGHT
        found += [answer async for answer in answers]
        assert found == list(range(REQUESTS))

    asyncio.run(main())


def test_batches_whose_results_are_not_taken_hold_up_the_stream():
    class Writes:
        def __init__(self):
            self.written = 0

        async def write(self, schema, data):
            self.written += 1
            return pb.WriteResult(request=self.written)

    class Tasks:
        def spawn(self, work, name):
            return asyncio.get_running_loop().create_task(work, name=name)

    class Env:
        tasks = Tasks()

    async def main():
        writes = Writes()
        service = FlightService(Env(), writes, None, None)  # type: ignore[arg-type]

        async def batches():
            yield flight.schema_data(BATCH.schema)
            for _ in range(3 * MAX_BATCHES):
                yield flight.batch_data(BATCH)

        results = service.do_put(batches())
        taken = [await anext(results)]
        await eventually(lambda: writes.written >= MAX_BATCHES, "the first batches are written")
        await turns(20)
        assert writes.written == MAX_BATCHES
        taken += [result async for result in results]
        assert len(taken) == writes.written == 3 * MAX_BATCHES

    asyncio.run(main())


def test_answers_end_when_the_connection_is_aborted_though_the_handler_never_waits():
    """The loop learns that the connection is lost when it runs, which the handler would not let it."""

    async def main() -> None:
        loop, end = asyncio.get_running_loop(), StreamEnd(1 << 20, Slabs())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            transport, _ = await loop.create_connection(lambda: end, *listener.getsockname())
            await end.send(StreamFrameKind.MESSAGE, b"")
            transport.abort()
            with pytest.raises(Unavailable):
                await end.send(StreamFrameKind.MESSAGE, b"")

    asyncio.run(main())
