"""Look-ups of few keys: requests on one long stream per client, each answered as soon as it is read.

All parts of a request wait for their leaders' read rounds together, and are read in one go in lane COMPUTE.
At most `MAX_IN_FLIGHT` requests of a stream are under way, so that a fast client is held back by its own.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pyarrow as pa

from nyala.common.errors import (
    Corrupt,
    InvalidArgument,
    NyalaError,
    SchemaMismatch,
    TooLarge,
    Unavailable,
)
from nyala.common.ids import ColumnId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.replica.replica import Replica
from nyala.tablet.view import View
from nyala.tserver.tablets import Tablets
from nyala.wire import flight, methods, status
from nyala.wire.proto import reads_pb2 as pb

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 64
MAX_PARTS = 1024
MAX_ANSWER_BYTES = 4 << 20
"""Of one part: larger rows go by `DoGet`, which streams them."""


@dataclass(frozen=True, slots=True)
class _Read:
    """One part, ready to be read."""

    replica: Replica
    view: View
    at: int
    keys: pa.RecordBatch
    columns: list[ColumnId]


class Lookups:
    """Handlers of `TabletReads`. On the loop only.

    Args:
        env: lanes and tasks.
        tablets: what is here.
        options: the deadline of requests that name none.
    """

    def __init__(self, env: Env, tablets: Tablets, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._options = options

    def handlers(self) -> Handlers:
        """Return what this service answers."""
        return {methods.GET: self.get}

    async def get(self, requests: AsyncIterator[pb.GetRequest]) -> AsyncIterator[pb.GetResponse]:
        """Answer look-ups as they come, in any order; the stream ends once its last one is answered."""
        answers: asyncio.Queue[pb.GetResponse | NyalaError | None] = asyncio.Queue()
        pump = self._env.tasks.spawn(self._pump(requests, answers), "look-ups")
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, NyalaError):
                    raise answer
                yield answer
        finally:
            pump.cancel()

    async def _pump(
        self,
        requests: AsyncIterator[pb.GetRequest],
        answers: "asyncio.Queue[pb.GetResponse | NyalaError | None]",
    ) -> None:
        room = asyncio.Semaphore(MAX_IN_FLIGHT)
        under_way: dict[asyncio.Task[object], None] = {}

        async def one(request: pb.GetRequest) -> None:
            try:
                answers.put_nowait(await self._answer(request))
            finally:
                room.release()

        try:
            async for request in requests:
                if len(request.parts) > MAX_PARTS:
                    raise InvalidArgument(f"{len(request.parts)} parts; at most {MAX_PARTS}")
                await room.acquire()
                task = self._env.tasks.spawn(one(request), "look-up")
                under_way[task] = None
                task.add_done_callback(lambda done: under_way.pop(done, None))
            await asyncio.gather(*under_way)
            answers.put_nowait(None)
        except NyalaError as err:
            answers.put_nowait(err)

    async def _answer(self, request: pb.GetRequest) -> pb.GetResponse:
        timeout_ms = request.timeout_ms or self._options.read_timeout_ms
        parts = list(request.parts)
        if len(parts) == 1:
            reads = [await self._prepare(parts[0], timeout_ms)]
        else:
            reads = await asyncio.gather(*(self._prepare(p, timeout_ms) for p in parts))
        done = await self._env.tasks.run(Lane.COMPUTE, _read_all, reads)
        answer = pb.GetResponse(request=request.request)
        for read, found in zip(reads, done, strict=True):
            part = answer.answers.add()
            if isinstance(found, bytes):
                assert isinstance(read, _Read), "rows without a read"
                part.at, part.rows_ipc = read.at, found
                continue
            if isinstance(found, Corrupt) and isinstance(read, _Read):
                read.replica.fail(found)
                found = Unavailable(
                    f"the replica of tablet {read.replica.group} here is FAILED: {found.message}; try "
                    "another one"
                )
            part.error.CopyFrom(status.to_proto(found))
        return answer

    async def _prepare(self, part: pb.GetPart, timeout_ms: int) -> "_Read | NyalaError":
        """Wait until a part may be read; its view holds all that was acknowledged before it came."""
        try:
            hosted = self._tablets.get(part.tablet_id)
            schema = hosted.tablet.info.schema
            if part.schema_version > schema.version:
                raise SchemaMismatch(
                    f"a look-up by schema version {part.schema_version}; this replica is at {schema.version}"
                )
            expected = pa.schema([pa.field(c.name, c.type) for c in schema.key_columns])
            keys = flight.read_message(expected, part.keys_ipc)
            if any(c.null_count for c in keys.columns):
                raise InvalidArgument("a key column is null; no row has such a key")
            at = await hosted.replica.read_point(None, timeout_ms)
            view, columns = hosted.tablet.view(), [ColumnId(i) for i in part.column_ids]
            return _Read(hosted.replica, view, at, keys, columns)
        except NyalaError as err:
            return err
        except Exception as err:  # one part's trouble: the others, and the stream, go on
            log.error("a look-up met an internal error", exc_info=err)
            return Unavailable(f"this server met an internal error ({type(err).__name__})")


def _read_all(reads: "list[_Read | NyalaError]") -> list[bytes | NyalaError]:
    """Return the rows of each part, or why there are none. Lane COMPUTE."""
    found: list[bytes | NyalaError] = []
    for read in reads:
        if isinstance(read, NyalaError):
            found.append(read)
            continue
        try:
            rows = read.view.get(read.at, read.keys, read.columns).serialize()
            if rows.size > MAX_ANSWER_BYTES:
                raise TooLarge(f"{rows.size} bytes of rows; ask for them by DoGet")
            found.append(rows.to_pybytes())
        except NyalaError as err:
            found.append(err)
        except Exception as err:  # one part's trouble: the others go on
            log.error("a look-up met an internal error", exc_info=err)
            found.append(Unavailable(f"this server met an internal error ({type(err).__name__})"))
    return found
