"""Point reads: requests for a few keys on one long stream per client, each answered as soon as it is read.

A part can be read at once under its leader's read lease, or after a read round. All parts of a request are
read in one call: on the loop while such calls are short, else in lane COMPUTE. No tasks and no arrays are
created, because most of the cost of reading one row is cache misses. Used on the event loop only.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from nyala.common.errors import (
    Corrupt,
    InvalidArgument,
    NyalaError,
    SchemaMismatch,
    TooLarge,
    Unavailable,
)
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import fixed_width
from nyala.common.options import Options
from nyala.common.schema import Schema
from nyala.common.values.plain_rows import encode_rows
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.tserver.scans.scanners import check_present
from nyala.tserver.tablets import HostedTablet, Tablets
from nyala.wire import methods, status
from nyala.wire.proto import reads_pb2 as pb

log = logging.getLogger(__name__)

MAX_PARTS = 1024
MAX_KEYS = 64
"""Maximum number of keys of one part."""
MAX_ANSWER_BYTES = 4 << 20
"""Maximum size of one part's rows in bytes; larger ones need `DoGet`, which streams them."""
MAX_RESPONSE_BYTES = 8 << 20
"""Maximum size of the rows of all parts of a request in bytes; parts above it need `DoGet` too."""
INLINE_KEYS = 256
BRIEF_US = 1_000
BRIEF_REQUESTS = 16
"""Consecutive requests read within `BRIEF_US` after which the next one is read on the loop."""


class PointReads:
    """Handlers of `TabletReads`. Used on the event loop only.

    Args:
        env: lanes, tasks and time.
        tablets: tablets of this server.
        options: default deadline.
    """

    def __init__(self, env: Env, tablets: Tablets, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._options = options
        self._brief_requests = 0

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {methods.GET: self.get}

    def get(self, request: pb.GetRequest, answer: Callable[[pb.GetResponse], None]) -> None:
        """Answer a request for some keys after the leaders' read rounds.

        Raises:
            InvalidArgument: too many parts.
        """
        if len(request.parts) > MAX_PARTS:
            raise InvalidArgument(
                f"the request names {len(request.parts)} tablets, over the limit of {MAX_PARTS}; "
                "send several requests"
            )
        timeout_ms = request.timeout_ms or self._options.read_timeout_ms
        _PendingGet(request, partial(self._read, answer)).begin(self._tablets, timeout_ms)

    def _read(self, answer: Callable[[pb.GetResponse], None], pending: "_PendingGet") -> None:
        """Read the keys of a request whose read rounds are confirmed."""
        if self._brief_requests >= BRIEF_REQUESTS and pending.keys <= INLINE_KEYS:
            answer(self._timed(pending))
            pending.end()
            return
        self._env.tasks.spawn(self._read_in_lane(answer, pending), "look-up")

    async def _read_in_lane(
        self, answer: Callable[[pb.GetResponse], None], pending: "_PendingGet"
    ) -> None:
        answer(await self._env.tasks.run(Lane.COMPUTE, self._timed, pending))
        pending.end()

    def _timed(self, pending: "_PendingGet") -> pb.GetResponse:
        clock = self._env.clock
        began_us = clock.monotonic_us()
        found = pending.read()
        brief = clock.monotonic_us() - began_us < BRIEF_US
        self._brief_requests = self._brief_requests + 1 if brief else 0
        return found


class _PendingGet:
    """A request in progress.

    Args:
        request: what to look up.
        on_ready: called once all parts may be read.
    """

    __slots__ = ("_on_ready", "_request", "_waiting", "keys", "parts")

    def __init__(self, request: pb.GetRequest, on_ready: "Callable[[_PendingGet], None]") -> None:
        self._request = request
        self._on_ready = on_ready
        self.parts: list[_GetPart] = []
        self.keys = self._waiting = 0

    def begin(self, tablets: Tablets, timeout_ms: int) -> None:
        """Start the read round of each part."""
        for requested in self._request.parts:
            part = _GetPart(requested)
            self.parts.append(part)
            self.keys += len(requested.keys)
            try:
                hosted = part.check(tablets)
                if now := hosted.replica.read_now():
                    part.ready_at(now)
                    continue
                point = hosted.replica.start_read(None, timeout_ms)
            except NyalaError as err:
                part.error = err
            except Exception as err:  # an error of one part: the others, and the stream, continue
                part.error = _internal(err)
            else:
                self._waiting += 1
                point.add_done_callback(partial(self._ready, part))
        if not self._waiting:
            self._on_ready(self)

    def _ready(self, part: "_GetPart", point: "asyncio.Future[int]") -> None:
        part.ready(point)
        self._waiting -= 1
        if not self._waiting:
            self._on_ready(self)

    def read(self) -> pb.GetResponse:
        """Return the response. On the loop or in lane COMPUTE."""
        left, answers = MAX_RESPONSE_BYTES, []
        for part in self.parts:
            answer = part.read(min(left, MAX_ANSWER_BYTES))
            left -= len(answer.rows)
            answers.append(answer)
        return pb.GetResponse(request=self._request.request, answers=answers)

    def end(self) -> None:
        """Fail the replicas whose files are damaged. On the loop."""
        for part in self.parts:
            if part.damage is not None:
                part.hosted.replica.fail(part.damage)


class _GetPart:
    """The part of a request for one tablet."""

    __slots__ = ("_at", "_request", "_view", "damage", "error", "hosted")

    def __init__(self, request: pb.GetPart) -> None:
        self._request = request
        self._at = 0
        self.error: NyalaError | None = None
        self.damage: Corrupt | None = None

    def check(self, tablets: Tablets) -> HostedTablet:
        """Return the tablet, if it is here and the keys are valid for it."""
        request = self._request
        self.hosted = tablets.get(request.tablet_id)
        schema = self.hosted.tablet.info.schema
        if request.schema_version > schema.version:
            raise SchemaMismatch(
                f"the request is for schema version {request.schema_version}, and this replica of tablet "
                f"{request.tablet_id} has version {schema.version}; retry once it has applied the alteration"
            )
        if len(request.keys) > MAX_KEYS:
            raise InvalidArgument(
                f"{len(request.keys)} keys of tablet {request.tablet_id}, over the limit of {MAX_KEYS} in "
                "one request; send several requests, or scan"
            )
        _check_widths(schema, request)
        return self.hosted

    def ready(self, point: "asyncio.Future[int]") -> None:
        """Store the result of the read round and a view."""
        error = point.exception()
        if error is None:
            self.ready_at(point.result())
        else:
            self.error = error if isinstance(error, NyalaError) else _internal(error)

    def ready_at(self, at: int) -> None:
        """Store the time of the read and a view, which has all rows acknowledged before the request came."""
        try:
            self._at, self._view = at, self.hosted.tablet.view()
            check_present(self._view.info, at)
            _check_columns(self._view.schema, self._request)
        except NyalaError as err:
            self.error = err

    def read(self, limit: int) -> pb.GetAnswer:
        """Return the rows, or an error: also if they are larger than a limit, in bytes."""
        if self.error is None:
            try:
                columns = [ColumnId(i) for i in self._request.column_ids]
                rows = encode_rows(self._view.few(self._at, self._request.keys, columns))
                if len(rows) <= limit:
                    return pb.GetAnswer(at=self._at, rows=rows)
                self.error = TooLarge(
                    f"the rows are {len(rows)} bytes, over the limit of {MAX_ANSWER_BYTES} of a point read, "
                    f"or of {MAX_RESPONSE_BYTES} of a request's; read them with DoGet, which streams them"
                )
            except Corrupt as err:
                self.damage = err
                self.error = Unavailable(
                    f"the replica of tablet {self._request.tablet_id} here is FAILED: {err.message}; try "
                    "another one"
                )
            except NyalaError as err:
                self.error = err
            except Exception as err:  # an error of one part does not affect the others
                self.error = _internal(err)
        return pb.GetAnswer(error=status.to_proto(self.error))


def _check_columns(schema: Schema, request: pb.GetPart) -> None:
    """Reject columns that the table had at the version of a request, and that were dropped since.

    Raises:
        SchemaMismatch: names the ids of the columns.
    """
    dropped = [i for i in request.column_ids if ColumnId(i) not in schema.by_id]
    if dropped and request.schema_version < schema.version:
        raise SchemaMismatch(
            f"the look-up was made for schema version {request.schema_version}; its columns with the ids "
            f"{dropped} were dropped since, the table has version {schema.version}; open the table again"
        )


def _check_widths(schema: Schema, request: pb.GetPart) -> None:
    """Reject keys of the wrong width; other invalid keys match no row."""
    width = fixed_width([c.type for c in schema.key_columns])
    for key in request.keys:
        if width is not None and len(key) != width:
            raise InvalidArgument(
                f"a key is {len(key)} bytes, and the encoded keys of this table are {width} bytes"
            )


def _internal(err: BaseException) -> NyalaError:
    log.error("a point read failed with an internal error", exc_info=err)
    return Unavailable(
        f"internal error of this server ({type(err).__name__}), see its log; try another replica"
    )
