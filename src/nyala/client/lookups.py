"""Look-ups of few keys on long streams: one message to each tablet's leader, shared by callers who meet.

While requests to a server are under way, further callers wait, and go together as the next one. This is
the quick way, tried once: whatever goes wrong is an error here, and `reading.py` has the patience.
On the client's loop only.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pyarrow as pa

from nyala.common.errors import NyalaError, Unavailable
from nyala.env.env import Env
from nyala.wire import methods, status
from nyala.wire.proto import reads_pb2 as pb

IN_FLIGHT = 2
MAX_PARTS = 256
MAX_KEYS = 64
"""More keys of one tablet have little to gain from sharing a message."""
SILENT_MS = 5_000


@dataclass(slots=True)
class _Waiting:
    part: pb.GetPart
    done: "asyncio.Future[pb.GetAnswer]"


class _Line:
    """The callers before one server, and the stream to it."""

    def __init__(self, env: Env, address: str) -> None:
        self._env = env
        self._address = address
        self._waiting: deque[_Waiting] = deque()
        self._sent: dict[int, list[_Waiting]] = {}
        self._queue: asyncio.Queue[pb.GetRequest | None] = asyncio.Queue()
        self._requests = 0
        self._due = False
        self.broken = False
        self._task = env.tasks.spawn(self._run(), f"look-ups at {address}")

    def stand(self, waiting: _Waiting) -> None:
        """Take a caller; who comes in the same turn of the loop goes together."""
        self._waiting.append(waiting)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        self._move()

    def _move(self) -> None:
        while self._waiting and len(self._sent) < IN_FLIGHT and not self.broken:
            together = [self._waiting.popleft() for _ in range(min(MAX_PARTS, len(self._waiting)))]
            together = [w for w in together if not w.done.done()]
            if together:
                self._requests += 1
                self._sent[self._requests] = together
                parts = [w.part for w in together]
                self._queue.put_nowait(
                    pb.GetRequest(request=self._requests, timeout_ms=SILENT_MS, parts=parts)
                )

    async def _outgoing(self) -> AsyncIterator[pb.GetRequest]:
        while (request := await self._queue.get()) is not None:
            yield request

    async def _run(self) -> None:
        error: NyalaError = Unavailable(f"the stream of look-ups to {self._address} ended")
        try:
            stream = self._env.rpc.stream(self._address, methods.GET, self._outgoing())
            async for answer in stream:
                for waiting, found in zip(
                    self._sent.pop(answer.request, ()), answer.answers, strict=False
                ):
                    if not waiting.done.done():
                        waiting.done.set_result(found)
                self._move()
        except NyalaError as err:
            error = err
        finally:
            self.broken = True
            for waiting in [w for sent in self._sent.values() for w in sent] + list(self._waiting):
                if not waiting.done.done():
                    waiting.done.set_exception(Unavailable(f"{self._address}: {error.message}"))

    def close(self) -> None:
        """End the stream once its last request is answered."""
        self._queue.put_nowait(None)

    def abandon(self) -> None:
        """Give the stream up: its server does not answer."""
        self._task.cancel()


class Lookups:
    """The streams of one client.

    Args:
        env: the outside world.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._lines: dict[str, _Line] = {}

    async def get(
        self, address: str, part: pb.GetPart, schema: pa.Schema, timeout_ms: int
    ) -> tuple[pa.RecordBatch, int]:
        """Look keys up at one server, once.

        Args:
            address: of the leader of the keys' tablet.
            part: what to look up.
            schema: of the columns asked for, in order, and `_row`.
            timeout_ms: for the answer.

        Returns:
            The rows found, and the time read at.

        Raises:
            NyalaError: why not, in the server's words or for lack of them.
        """
        line = self._lines.get(address)
        if line is None or line.broken:
            line = self._lines[address] = _Line(self._env, address)
        waiting = _Waiting(part, asyncio.get_running_loop().create_future())
        line.stand(waiting)
        try:
            async with asyncio.timeout(min(timeout_ms, SILENT_MS) / 1000):
                answer = await waiting.done
        except TimeoutError:
            line.abandon()
            raise Unavailable(f"{address} did not answer a look-up") from None
        if answer.HasField("error"):
            raise status.from_proto(answer.error)
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(answer.rows_ipc), schema), answer.at
        except (pa.ArrowException, OSError, ValueError) as err:
            raise Unavailable(f"{address} answered a look-up with no rows: {err}") from err

    def close(self) -> None:
        """End all streams."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
