"""Look-ups of few keys on long streams: one message to each tablet's leader, shared by callers who meet.

While requests to a server are under way, further callers wait, and go together as the next one. This is
the quick way, tried once: whatever goes wrong is an error here, and `reading.py` has the patience.
On the client's loop only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from nyala.common.errors import NyalaError, Unavailable
from nyala.env.env import Env
from nyala.wire import methods, status
from nyala.wire.proto import reads_pb2 as pb

IN_FLIGHT = 2
MAX_PARTS = 256
MAX_KEYS = 64
"""More keys of one tablet have little to gain from sharing a message."""
SILENT_MS = 5_000

Tell = Callable[[pb.GetAnswer | NyalaError], None]
_Waiting = tuple[pb.GetPart, Tell]


class _Line:
    """The callers before one server, and the stream to it."""

    def __init__(self, env: Env, address: str) -> None:
        self._address = address
        self._waiting: deque[_Waiting] = deque()
        self._sent: dict[int, list[_Waiting]] = {}
        self._requests = 0
        self._due = False
        self._patience_ms = SILENT_MS
        self._alarm: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.broken = False
        self._asking = env.rpc.asking(address, methods.GET, self._hear)

    def stand(self, part: pb.GetPart, tell: Tell, timeout_ms: int) -> None:
        """Take a caller; who comes in the same turn of the loop goes together."""
        self._waiting.append((part, tell))
        self._patience_ms = min(self._patience_ms, timeout_ms)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        self._move()

    def _move(self) -> None:
        while self._waiting and len(self._sent) < IN_FLIGHT and not self.broken:
            together = [self._waiting.popleft() for _ in range(min(MAX_PARTS, len(self._waiting)))]
            self._requests += 1
            self._sent[self._requests] = together
            parts = [part for part, _ in together]
            self._asking.ask(
                pb.GetRequest(request=self._requests, timeout_ms=self._patience_ms, parts=parts)
            )
            if self._alarm is None:
                self._alarm = self._loop.call_later(self._patience_ms / 1000, self._late)

    def _hear(self, answer: Any) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if isinstance(answer, NyalaError):
            self._end(Unavailable(f"{self._address}: {answer.message}"))
            return
        together = self._sent.pop(answer.request, [])
        for (_, tell), found in zip(together, answer.answers, strict=False):
            tell(found)
        for _, tell in together[len(answer.answers) :]:
            tell(Unavailable(f"{self._address} answered less than it was asked"))
        if self._sent:
            self._alarm = self._loop.call_later(self._patience_ms / 1000, self._late)
        else:
            self._patience_ms = SILENT_MS
        self._move()

    def _late(self) -> None:
        self._alarm = None
        self._end(Unavailable(f"{self._address} did not answer a look-up"))
        self._asking.abandon()

    def _end(self, why: NyalaError) -> None:
        self.broken = True
        waiting = [w for sent in self._sent.values() for w in sent] + list(self._waiting)
        self._sent.clear()
        self._waiting.clear()
        for _, tell in waiting:
            tell(why)

    def close(self) -> None:
        """End the stream once its last request is answered."""
        self._asking.end()

    def abandon(self) -> None:
        """Give the stream up: whoever waits is told."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._late()


class Lookups:
    """The streams of one client.

    Args:
        env: the outside world.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._lines: dict[str, _Line] = {}

    def ask(self, address: str, part: pb.GetPart, tell: Tell, timeout_ms: int) -> None:
        """Look keys up at one server, once.

        Args:
            address: of the leader of the keys' tablet.
            part: what to look up.
            tell: called once, with the rows found, or why there are none: in the server's words, or for
                lack of them.
            timeout_ms: for the answer.
        """
        line = self._lines.get(address)
        if line is None or line.broken:
            line = self._lines[address] = _Line(self._env, address)
        line.stand(part, lambda found: tell(_judged(found)), timeout_ms)

    def close(self) -> None:
        """End all streams."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


def _judged(found: pb.GetAnswer | NyalaError) -> pb.GetAnswer | NyalaError:
    if isinstance(found, NyalaError) or not found.HasField("error"):
        return found
    return status.from_proto(found.error)
