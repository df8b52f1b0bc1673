"""Point reads on long-lived streams: one message to a tablet's leader, shared by concurrent callers.

While requests to a server are in flight, further callers wait and share the next one. A read is tried once
here; after an error `point_reads.py` retries it as a scan. Used on the client's loop only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from nyala.client.request_queue import RequestQueue
from nyala.common.errors import NyalaError, Unavailable
from nyala.env.env import Env
from nyala.wire import methods, status
from nyala.wire.proto import reads_pb2 as pb

MAX_PARTS = 256
"""Maximum number of callers of one request."""
MAX_KEYS = 64
"""Maximum number of keys of a point read; larger reads gain little from sharing a message and are scans."""
SILENT_MS = 5_000
"""Longest wait for an answer before the stream is cancelled, in milliseconds."""

OnAnswer = Callable[[pb.GetAnswer | NyalaError], None]
_Waiting = tuple[pb.GetPart, OnAnswer]


class _GetStream:
    """The stream to one server, and the callers that share its requests."""

    def __init__(self, env: Env, address: str) -> None:
        self._address = address
        self._queue: RequestQueue[_Waiting] = RequestQueue(fill=False)
        self._sent: dict[int, list[_Waiting]] = {}
        self._requests = 0
        self._due = False
        self._silent_ms = SILENT_MS
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.broken = False
        self._stream = env.rpc.request_stream(address, methods.GET, self._on_answer)

    def enqueue(self, part: pb.GetPart, on_answer: OnAnswer, timeout_ms: int) -> None:
        """Take a caller; callers of the same loop iteration share a request.

        Args:
            part: keys of one tablet.
            on_answer: called once, with the answer or an error.
            timeout_ms: for the answer.
        """
        self._queue.enqueue((part, on_answer))
        self._silent_ms = min(self._silent_ms, timeout_ms)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._send_due)

    def _send_due(self) -> None:
        self._due = False
        self._send_ready()

    def _send_ready(self) -> None:
        while not self.broken and (callers := self._queue.take_batch(_first)):
            self._requests += 1
            self._sent[self._requests] = callers
            parts = [part for part, _ in callers]
            self._stream.send(
                pb.GetRequest(request=self._requests, timeout_ms=self._silent_ms, parts=parts)
            )
            if self._timer is None:
                self._timer = self._loop.call_later(self._silent_ms / 1000, self._on_timeout)

    def _on_answer(self, answer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(answer, NyalaError):
            self._end(Unavailable(f"{self._address}: {answer.message}"))
            return
        callers = self._sent.pop(answer.request, [])
        if callers:
            self._queue.finished(callers)
        for (_, on_answer), found in zip(callers, answer.answers, strict=False):
            on_answer(found)
        for _, on_answer in callers[len(answer.answers) :]:
            on_answer(Unavailable(f"{self._address} answered fewer reads than the request had"))
        if self._sent:
            self._timer = self._loop.call_later(self._silent_ms / 1000, self._on_timeout)
        else:
            self._silent_ms = SILENT_MS
        self._send_ready()

    def _on_timeout(self) -> None:
        self._timer = None
        self._end(Unavailable(f"{self._address} did not answer a point read in time"))
        self._stream.abandon()

    def _end(self, why: NyalaError) -> None:
        self.broken = True
        waiting = [w for sent in self._sent.values() for w in sent] + list(self._queue.waiting)
        self._sent.clear()
        self._queue.waiting.clear()
        for _, on_answer in waiting:
            on_answer(why)

    def close(self) -> None:
        """Close the stream after its last request is answered."""
        self._stream.end()

    def abandon(self) -> None:
        """Cancel the stream; pending callers get an error."""
        if self._timer is not None:
            self._timer.cancel()
        self._on_timeout()


def _first(waiting: deque[_Waiting]) -> list[_Waiting]:
    return [waiting.popleft() for _ in range(min(MAX_PARTS, len(waiting)))]


class GetStreams:
    """Point-read streams of one client, one per server.

    Args:
        env: the environment: clock, tasks, files, calls.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._streams: dict[str, _GetStream] = {}

    def send(self, address: str, part: pb.GetPart, on_answer: OnAnswer, timeout_ms: int) -> None:
        """Look up keys at one server, once.

        Args:
            address: address of the leader of the keys' tablet.
            part: tablet, columns and keys.
            on_answer: called once, with the rows found, the server's error, or `Unavailable`.
            timeout_ms: for the answer.
        """
        stream = self._streams.get(address)
        if stream is None or stream.broken:
            # Those of servers that ended leave the mapping.
            self._streams = {a: s for a, s in self._streams.items() if not s.broken}
            stream = self._streams[address] = _GetStream(self._env, address)
        stream.enqueue(part, lambda found: on_answer(_answer_or_error(found)), timeout_ms)

    def close(self) -> None:
        """End all streams."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


def _answer_or_error(found: pb.GetAnswer | NyalaError) -> pb.GetAnswer | NyalaError:
    if isinstance(found, NyalaError) or not found.HasField("error"):
        return found
    return status.from_proto(found.error)
