"""Check of single requests: of callers whose role is not enough for a method, but who may have grants.

A request that is refused gets an error of its own, and the others of its stream go their way.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nyala.common.errors import Forbidden, NyalaError
from nyala.env.request_stream import MAX_IN_FLIGHT
from nyala.env.rpc import Method, Shape
from nyala.security import policy
from nyala.security.principal import AccessRole, Principal
from nyala.security.tables.grants import Grant, Grants, TableRef, granted_role
from nyala.wire import methods, status
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import journal_pb2 as jpb
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2 as reads
from nyala.wire.tls.tables_of import How, header_of, tables_of

Find = Callable[[How, str], TableRef | None]
"""Returns the table that is named so, on this server; None: there is none. May raise NotLeader."""


OnRefused = Callable[[str, NyalaError], None]
"""Called with the path of a method and the refusal of a request to it."""


@dataclass(frozen=True, slots=True)
class TableAccess:
    """Grants of the cluster, and the tables of a server.

    Attributes:
        grants: of the cluster.
        find: finds a table.
    """

    grants: Grants
    find: Find


def grant_of(record: cat.GrantRecord) -> Grant:
    """Return the grant of a record."""
    role, columns = granted_role(record.role), tuple(record.columns)
    return Grant(record.id, record.user, role, record.table_id, record.prefix, columns)


def is_filtered(principal: Principal, method: Method) -> bool:
    """Return whether a method answers a caller with the tables only that are granted to it."""
    return method is methods.LIST_TABLES and principal.role < AccessRole.READER


class Requests:
    """Checks the requests of one caller.

    Args:
        principal: the caller.
        access: grants and tables; None: the server has no tables.
        refused: called with each request that is refused.
    """

    def __init__(
        self, principal: Principal, access: TableAccess | None, refused: OnRefused | None = None
    ) -> None:
        self._refused = refused
        self._principal = principal
        self._access = access

    @property
    def _granted(self) -> tuple[int, bool]:
        """Version of the grants that are in force, and whether they are believed."""
        grants = None if self._access is None else self._access.grants
        return (0, False) if grants is None else (grants.version, grants.fresh)

    def check(self, path: str, request: Any) -> None:
        """Check that the tables of a request are granted to the caller.

        Raises:
            Forbidden: one is not. InvalidArgument: the request names none. Unavailable, NotLeader: retry.
        """
        try:
            self._check(path, request)
        except Forbidden as err:
            if self._refused is not None:
                self._refused(path, err)
            raise

    def _check(self, path: str, request: Any) -> None:
        if self._access is None:  # the server has no tables on which there could be grants
            policy.refuse(self._principal, path)
        for named in tables_of(path, request):
            table = self._access.find(named.how, named.name)
            seen, use = self._principal.role >= AccessRole.READER, named.use(path, table)
            if use.role is not AccessRole.READER or not seen:
                self._access.grants.require(self._principal.name, use, table, seen=seen)

    def calls(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return the handler of calls inside of a stream, each of which is checked."""

        def call(request: reads.CallRequest, answer: Callable[[reads.CallResponse], None]) -> None:
            try:
                decode = _STREAMED.get(request.method)  # the handler refuses other methods
                if not self._may_call(request.method) and decode is not None:
                    self.check(request.method, decode(request.message))
            except NyalaError as err:
                answer(reads.CallResponse(request=request.request, error=status.to_proto(err)))
            else:
                handler(request, answer)

        return call

    def _may_call(self, path: str) -> bool:
        """As `policy.check`, which see; a refusal is passed on."""
        try:
            return policy.check(self._principal, path)
        except Forbidden as err:
            if self._refused is not None:
                self._refused(path, err)
            raise

    def checked(self, method: Method, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return the handler of a method, which checks each request first."""
        if is_filtered(self._principal, method):
            return self._filtered(handler)
        make = {
            Shape.UNARY: self._unary,
            Shape.SERVER_STREAM: self._server_stream,
            Shape.REQUEST_STREAM: self._request_stream,
            Shape.BIDI: self._bidi,
        }
        return make[method.shape](method.path, handler)

    def _unary(self, path: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def call(request: Any) -> Any:
            self.check(path, request)
            return await handler(request)

        return call

    def _server_stream(self, path: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def stream(request: Any) -> AsyncIterator[Any]:
            self.check(path, request)
            granted = self._granted
            async with contextlib.aclosing(handler(request)) as responses:
                async for response in responses:
                    if granted != self._granted:  # a scan may last for long
                        self.check(path, request)
                        granted = self._granted
                    yield response

        return stream

    def _request_stream(self, path: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        def ask(request: Any, answer: Callable[[Any], None]) -> None:
            try:
                self.check(path, request)
            except NyalaError as err:
                answer(_REFUSED[path](request, status.to_proto(err)))
            else:
                handler(request, answer)

        return ask

    def _bidi(self, path: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return the handler of a stream of batches; those that are refused do not reach it."""

        async def stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            answers: asyncio.Queue[Any] = asyncio.Queue(MAX_IN_FLIGHT)  # the client takes them

            async def permitted() -> AsyncIterator[Any]:
                async for request in requests:
                    try:
                        self.check(path, request)
                    except NyalaError as err:
                        await answers.put(_REFUSED[path](request, status.to_proto(err)))
                    else:
                        yield request

            async def run() -> None:
                try:
                    async for answer in handler(permitted()):
                        await answers.put(answer)
                except Exception as err:  # raised again below, where the stream ends
                    await answers.put(err)
                else:
                    await answers.put(None)

            task = asyncio.create_task(run(), name=f"checked {path}")
            try:
                while (answer := await answers.get()) is not None:
                    if isinstance(answer, Exception):
                        raise answer
                    yield answer
            finally:
                task.cancel()

        return stream

    def _filtered(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def call(request: Any) -> pb.ListTablesResponse:
            answer: pb.ListTablesResponse = await handler(request)
            assert self._access is not None, "a master has tables"
            seen, user = self._access.grants.is_visible, self._principal.name
            kept = [t for t in answer.tables if seen(user, TableRef(t.id, t.name))]
            return pb.ListTablesResponse(tables=kept, as_of=answer.as_of)

        return call


def _get_refused(request: reads.GetRequest, error: pb.Error) -> reads.GetResponse:
    answers = [reads.GetAnswer(error=error) for _ in request.parts]
    return reads.GetResponse(request=request.request, answers=answers)


def _put_refused(data: Any, error: pb.Error) -> flight_pb2.PutResult:
    header = header_of(data)
    assert header is not None, "the schema of a DoPut names no table, and is not refused"
    refused = pb.WriteResult(request=header.request, error=error)
    return flight_pb2.PutResult(app_metadata=refused.SerializeToString(deterministic=True))


_REFUSED: Mapping[str, Callable[[Any, pb.Error], Any]] = {
    methods.GET.path: _get_refused,
    methods.JOURNAL_TAIL.path: lambda r, e: jpb.JournalTailResponse(request=r.request, error=e),
    methods.DO_PUT.path: _put_refused,
}
_STREAMED: Mapping[str, Callable[[bytes], Any]] = {
    m.path: m.decode_request for m in methods.STREAMED
}
