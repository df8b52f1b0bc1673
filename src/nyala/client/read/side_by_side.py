"""Tablets read side by side: batches come as servers send them, whatever tablet they are of.

Two tablets are read at first, and one more whenever the caller had to wait, up to `PARALLEL_TOKENS`. So a
caller that is slower than the servers keeps few streams open, and each of them advances: servers end a stream
of which nothing is read for some time. One batch of each tablet waits here; `RpcLimits.queued_bytes` limits
what the connections have received.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from nyala.client.read.progress import OnHeader
from nyala.client.read.token_reader import PARALLEL_TOKENS
from nyala.common.errors import RangesChanged, Unavailable
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb

AT_FIRST = 2
"""Number of tablets with which a read begins."""
SMALLEST_BATCH = 16 << 10
"""Smallest size, in bytes, of the batches of a read that has some of each tablet."""
LARGEST_BATCH = 4 << 20
"""Largest size of such batches, if the client has set none."""


class TokenReader(Protocol):
    """Reads of single tablets."""

    def run(
        self, token: pb.ScanToken, *, on_header: OnHeader | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        """Run a token and yield its batches; see `Reader.run`."""
        ...


class OfTablet(NamedTuple):
    """A batch of a tablet, or the end of its rows.

    Attributes:
        token: token of the tablet.
        batch: None: it is read to its end.
    """

    token: pb.ScanToken
    batch: pa.RecordBatch | None


class SideBySide:
    """One read of several tablets, without order. Runs on the client's loop.

    Args:
        env: tasks.
        reader: runs each token.
        tokens: the tablets.
        on_header: called when a server answers; None: no call.
    """

    def __init__(
        self,
        env: Env,
        reader: TokenReader,
        tokens: list[pb.ScanToken],
        on_header: OnHeader | None = None,
    ) -> None:
        self._env = env
        self._reader = reader
        self._on_header = on_header
        self._left = deque(tokens)
        self._running: dict[asyncio.Task[object], None] = {}
        self._ready: deque[tuple[OfTablet, asyncio.Event]] = deque()
        self._failures: list[Exception] = []
        self._change = asyncio.Event()

    async def run(self) -> AsyncGenerator[OfTablet, None]:
        """Yield the batches of all tablets, those of one tablet in its order, each with an end.

        Raises:
            RangesChanged: some tablet was not read, because the ranges changed; those that had begun were
                read to their ends before.
            NyalaError: as `Reader.run`.
        """
        try:
            self._begin(AT_FIRST)
            while self._running or self._ready or (self._left and not self._failures):
                if self._ready:
                    found, taken = self._ready.popleft()
                    taken.set()
                    yield found
                    continue
                self._check()
                self._begin(1)
                self._change.clear()
                await self._change.wait()
            if self._failures:
                raise self._failures[0]
        finally:
            self._left.clear()
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _check(self) -> None:
        """Raise an error of a tablet, unless others are to be read to their ends first."""
        for failure in self._failures:
            if not isinstance(failure, RangesChanged):
                raise failure

    def _begin(self, count: int) -> None:
        """Begin to read some more tablets, if there are more and nothing has failed."""
        while count and self._left and not self._failures and len(self._running) < PARALLEL_TOKENS:
            task = self._env.tasks.spawn(self._read(self._left.popleft()), "read of a tablet")
            self._running[task] = None
            task.add_done_callback(self._ended)
            count -= 1

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.pop(task, None)
        if task.cancelled():
            self._failures.append(Unavailable("the client was closed while its caller read rows"))
        self._begin(1)
        self._change.set()

    async def _read(self, token: pb.ScanToken) -> None:
        """Read one tablet; its next batch is fetched when the one before is taken."""
        batches = self._reader.run(token, on_header=self._on_header)
        try:
            async for batch in batches:
                await self._put(OfTablet(token, batch))
            await self._put(OfTablet(token, None))
        except Exception as err:  # raised to the caller
            self._failures.append(err)
        finally:  # so that the server stops reading
            close = getattr(batches, "aclose", None)
            if close is not None:
                await close()

    async def _put(self, found: OfTablet) -> None:
        taken = asyncio.Event()
        self._ready.append((found, taken))
        self._change.set()
        await taken.wait()


def sharing(tokens: list[pb.ScanToken], ahead_bytes: int) -> list[pb.ScanToken]:
    """Return tokens that are all read at the same time, whose batches are small enough for that.

    Args:
        tokens: tokens of a read in key order.
        ahead_bytes: room for one batch of each.
    """
    share = max(SMALLEST_BATCH, ahead_bytes // max(1, len(tokens)))
    made = []
    for token in tokens:
        smaller = pb.ScanToken()
        smaller.CopyFrom(token)
        smaller.batch_bytes = min(token.batch_bytes or LARGEST_BATCH, share)
        made.append(smaller)
    return made
