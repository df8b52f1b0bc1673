"""Point reads on long-lived streams: one message to a tablet's leader, shared by concurrent callers.

While requests to a server are in flight, further callers wait and share the next one. A read is tried once
here; after an error `point_reads.py` retries it as a scan. While a server is silent the masters are asked who
leads the tablets, and a read of one that another replica leads ends. Used on the client's loop only.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nyala.client.cluster.leader_watch import SILENT_MS, look_until
from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation, update_location
from nyala.client.request_queue import RequestQueue
from nyala.common.errors import NyalaError, Rejected, Retryable, Unavailable
from nyala.env.env import Env
from nyala.wire import methods, status
from nyala.wire.proto import reads_pb2 as pb

MAX_PARTS = 256
"""Maximum number of callers of one request."""
MAX_KEYS = 64
"""Maximum number of keys of a point read; larger reads gain little from sharing a message and are scans."""
TRY_TIMEOUT_MS = 5_000
"""Longest wait for an answer before the stream is cancelled, in milliseconds."""

OnAnswer = Callable[[pb.GetAnswer | NyalaError], None]
LookAgain = Callable[[OpenTable], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Waiting:
    """One caller, in the queue or in a request.

    Attributes:
        table: of the keys.
        tablet: of the keys; updated in place while its server is silent.
        part: the keys.
        on_answer: called once; None: it was called.
    """

    table: OpenTable
    tablet: TabletLocation
    part: pb.GetPart
    on_answer: OnAnswer | None

    def answer(self, found: pb.GetAnswer | NyalaError) -> None:
        """Complete the read, unless it is complete."""
        on_answer, self.on_answer = self.on_answer, None
        if on_answer is not None:
            on_answer(found)


class _GetStream:
    """The stream to one server, and the callers that share its requests.

    Args:
        env: tasks, calls.
        address: of the server.
        look_again: asks the masters for the tablets of a table.
    """

    def __init__(self, env: Env, address: str, look_again: LookAgain) -> None:
        self._env = env
        self._look_again = look_again
        self._address = address
        self._queue: RequestQueue[_Waiting] = RequestQueue(fill=False)
        self._sent: dict[int, list[_Waiting]] = {}
        self._requests = 0
        self._due = False
        self._try_ms = TRY_TIMEOUT_MS
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[object] | None = None
        self._loop = asyncio.get_running_loop()
        self.broken = False
        self._stream = env.rpc.request_stream(address, methods.GET, self._on_answer)

    def enqueue(self, caller: _Waiting, timeout_ms: int) -> None:
        """Take a caller, with the time for its answer; callers of the same loop iteration share a request."""
        self._queue.enqueue(caller)
        self._try_ms = min(self._try_ms, timeout_ms)
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
            parts = [caller.part for caller in callers]
            self._stream.send(
                pb.GetRequest(request=self._requests, timeout_ms=self._try_ms, parts=parts)
            )
            if self._timer is None:
                self._await_answer()

    def _await_answer(self) -> None:
        wait_ms = min(SILENT_MS, self._try_ms)
        self._timer = self._loop.call_later(wait_ms / 1000, self._on_silence)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _on_answer(self, answer: Any) -> None:
        self._stop_waiting()
        if isinstance(answer, NyalaError):
            self._end(Unavailable(f"{self._address}: {answer.message}"))
            return
        callers = self._sent.pop(answer.request, [])
        if callers:
            self._queue.finished(callers)
        for caller, found in zip(callers, answer.answers, strict=False):
            caller.answer(found)
        for caller in callers[len(answer.answers) :]:
            caller.answer(Unavailable(f"{self._address} answered fewer reads than the request had"))
        if self._sent:
            self._await_answer()
        else:
            self._try_ms = TRY_TIMEOUT_MS
        self._send_ready()

    def _on_silence(self) -> None:
        """Ask the masters for the rest of the time for an answer, if there is any."""
        left_ms = self._try_ms - SILENT_MS
        if left_ms <= 0:
            self._on_timeout()
            return
        self._timer = self._loop.call_later(left_ms / 1000, self._on_timeout)
        self._watching = self._env.tasks.spawn(self._watch(), f"watch {self._address}")

    async def _watch(self) -> None:
        """End the reads of tablets that another replica leads, until the server answers."""
        tables: dict[int, OpenTable] = {}

        async def look() -> None:
            tables.clear()
            tables.update((id(caller.table), caller.table) for caller in self._unanswered())
            await asyncio.gather(*map(self._look, tables.values()))

        def done() -> bool:
            for caller in self._unanswered():
                if id(caller.table) in tables:  # else it came in the meantime
                    self._end_if_moved(caller)
            self._queue.waiting = deque(w for w in self._queue.waiting if w.on_answer is not None)
            return False  # other callers may come until the server answers

        await look_until(self._env, look, done)

    def _end_if_moved(self, caller: _Waiting) -> None:
        update_location(caller.tablet, caller.table)
        leader = caller.tablet.leader
        if leader not in (None, self._address):
            caller.answer(
                Unavailable(f"{self._address} did not answer, and {leader} leads the tablet by now")
            )

    async def _look(self, table: OpenTable) -> None:
        with suppress(Retryable, Rejected):  # the scan that follows learns why
            await self._look_again(table)

    def _unanswered(self) -> list[_Waiting]:
        every = [w for sent in self._sent.values() for w in sent] + list(self._queue.waiting)
        return [w for w in every if w.on_answer is not None]

    def _on_timeout(self) -> None:
        self._end(Unavailable(f"{self._address} did not answer a point read in time"))
        self._stream.abandon()

    def _end(self, why: NyalaError) -> None:
        self.broken = True
        self._stop_waiting()
        waiting = self._unanswered()
        self._sent.clear()
        self._queue.waiting.clear()
        for caller in waiting:
            caller.answer(why.another())

    def close(self) -> None:
        """Close the stream after its last request is answered."""
        self._stream.end()

    def abandon(self) -> None:
        """Cancel the stream; pending callers get an error."""
        self._on_timeout()


def _first(waiting: deque[_Waiting]) -> list[_Waiting]:
    return [waiting.popleft() for _ in range(min(MAX_PARTS, len(waiting)))]


class GetStreams:
    """Point-read streams of one client, one per server.

    Args:
        env: the environment: clock, tasks, files, calls.
        look_again: asks the masters for the tablets of a table; called while a server is silent.
    """

    def __init__(self, env: Env, look_again: LookAgain) -> None:
        self._env = env
        self._look_again = look_again
        self._streams: dict[str, _GetStream] = {}

    def send(
        self, address: str, table: OpenTable, tablet: TabletLocation, part: pb.GetPart,
        on_answer: OnAnswer, timeout_ms: int,
    ) -> None:  # fmt: skip
        """Look up keys at one server, once.

        Args:
            address: address of the leader of the keys' tablet.
            table: of the keys.
            tablet: of the keys; updated in place if the server is silent.
            part: tablet, columns and keys.
            on_answer: called once, with the rows found, the server's error, or `Unavailable`.
            timeout_ms: for the answer.
        """
        stream = self._streams.get(address)
        if stream is None or stream.broken:
            # Those of servers that ended leave the mapping.
            self._streams = {a: s for a, s in self._streams.items() if not s.broken}
            stream = self._streams[address] = _GetStream(self._env, address, self._look_again)
        waiting = _Waiting(table, tablet, part, lambda found: on_answer(_answer_or_error(found)))
        stream.enqueue(waiting, timeout_ms)

    def close(self) -> None:
        """End all streams."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


def _answer_or_error(found: pb.GetAnswer | NyalaError) -> pb.GetAnswer | NyalaError:
    if isinstance(found, NyalaError) or not found.HasField("error"):
        return found
    return status.from_proto(found.error)
