"""RPC handlers of tablet copy: as the source of copies, and for orders to copy a replica to this server."""

import asyncio
from collections.abc import AsyncIterator, Callable

import google_crc32c

from nyala.common.errors import Forbidden, InvalidArgument, NyalaError, Unavailable
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.copying.remote import RemoteSource
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.raft.messages import Entry
from nyala.replica.copy.manager import CopyManager
from nyala.replica.copy.protocol import ENDED, CopyProgress
from nyala.wire import convert, methods, status
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import nyala_pb2 as pb


def _addressed(identity: Identity, destination: str) -> None:
    if destination != identity.uuid:
        raise InvalidArgument(
            f"this is for server {destination}; this is {identity.uuid}. Another server had this "
            "address before"
        )


Check = Callable[[pb.StartCopyRequest | pb.CancelCopyRequest], None]
"""Raises an error for an order that is not to be executed."""


class CopySourceService:
    """Handlers of `CopyService`: this server is the source. On the loop only.

    Args:
        identity: identity of this server.
        copies: returns the copies of its replicas; raises Unavailable until they are open.
    """

    def __init__(self, identity: Identity, copies: Callable[[], CopyManager]) -> None:
        self._identity = identity
        self._copies = copies

    def handlers(self) -> Handlers:
        """Return what this service answers."""
        return {
            methods.BEGIN_COPY: self.begin,
            methods.FETCH_FILE: self.fetch_file,
            methods.FETCH_ENTRIES: self.fetch_entries,
            methods.HOLD_COPY: self.hold,
        }

    async def begin(self, request: pb.BeginCopyRequest) -> pb.BeginCopyResponse:
        """Begin a session.

        Raises:
            Forbidden: the target belongs to another cluster.
            NyalaError: as `CopySource.begin`.
        """
        copies = self._copies()
        _addressed(self._identity, request.destination_uuid)
        own = self._identity.instance.cluster_id
        if request.cluster_id and own and request.cluster_id != own:
            raise Forbidden(
                f"server {request.target_uuid} belongs to cluster {request.cluster_id}, and this one to "
                f"{own}: replicas are copied within a cluster only"
            )
        offer = await copies.sessions.begin(
            TabletId(request.tablet_id),
            ServerUuid(request.target_uuid),
            min_index=request.least_index,
            force=request.force,
        )
        return pb.BeginCopyResponse(
            session_id=offer.session,
            ttl_ms=offer.ttl_ms,
            cut_term=offer.flush_op.term,
            cut_index=offer.flush_op.index,
            cut_stamp=offer.stamp,
            files=[pb.CopyFile(name=f.name, size_bytes=f.size_bytes) for f in offer.files],
            consensus=convert.consensus_to_proto(offer.config, offer.term, offer.leader),
            may_lose=offer.may_lose,
        )

    async def fetch_file(self, request: pb.FetchFileRequest) -> AsyncIterator[FlightData]:
        """Stream a file from an offset to its end, without copying its bytes in memory."""
        copies = self._copies()
        with copies.chunk_memory():
            async for data in self._pieces(copies, request):
                yield data

    async def _pieces(
        self, copies: CopyManager, request: pb.FetchFileRequest
    ) -> AsyncIterator[FlightData]:
        read, offset = copies.sessions.read, request.offset
        ahead = asyncio.ensure_future(read(request.session_id, request.name, offset))
        try:
            while piece := await ahead:
                begin, offset = offset, offset + len(piece)
                ahead = asyncio.ensure_future(read(request.session_id, request.name, offset))
                chunk = pb.FileChunk(offset=begin, crc32c=google_crc32c.value(piece))
                yield FlightData(body=piece, app_metadata=chunk.SerializeToString())
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def fetch_entries(self, request: pb.FetchEntriesRequest) -> pb.EntriesChunk:
        """Return the committed entries that follow one, as many as fit."""
        after = OpId(request.after_term, request.after_index)
        found = await self._copies().sessions.entries(request.session_id, after)
        raw = pb.LogEntries(entries=map(_entry, found)).SerializeToString()
        return pb.EntriesChunk(entries=raw, crc32c=google_crc32c.value(raw))

    async def hold(self, request: pb.HoldCopyRequest) -> pb.HoldCopyResponse:
        """Keep a session alive, or end it."""
        left_ms = await self._copies().sessions.hold(request.session_id, end=request.end)
        return pb.HoldCopyResponse(ttl_ms=left_ms)


class CopyTargetService:
    """Handlers of `TabletAdmin` that order copies to this server. On the loop only.

    Args:
        env: calls and clock.
        identity: identity of this server.
        copies: returns the copies to it; raises Unavailable until its replicas are open.
        check: raises for an order of an unauthorised sender, or for another server.
    """

    def __init__(
        self, env: Env, identity: Identity, copies: Callable[[], CopyManager], check: Check
    ) -> None:
        self._env = env
        self._identity = identity
        self._copies = copies
        self._check = check

    def handlers(self) -> Handlers:
        """Return what this service answers."""
        return {
            methods.START_COPY: self.start,
            methods.COPY_STATUS: self.status,
            methods.CANCEL_COPY: self.cancel,
        }

    async def start(self, request: pb.StartCopyRequest) -> pb.StartCopyResponse:
        """Begin a copy, or return its progress. It continues when the caller disconnects."""
        copies = self._copies()
        self._check(request)
        for name in ("tablet_id", "source_uuid", "source_address"):
            if not getattr(request, name):
                raise InvalidArgument(f"an order to copy needs {name}")
        source = RemoteSource(
            self._env.rpc,
            self._identity.uuid,
            self._identity.instance.cluster_id,
            ServerUuid(request.source_uuid),
            request.source_address,
        )
        group = TabletId(request.tablet_id)
        by_master = not request.cluster_id  # the check has accepted its fence
        progress = await copies.start(group, source, force=request.force, for_member=by_master)
        return pb.StartCopyResponse(copy=self._message(progress))

    async def status(self, request: pb.CopyStatusRequest) -> pb.CopyStatusResponse:
        """Return the progress of copies, ended ones included."""
        found = self._copies().progress([TabletId(t) for t in request.tablet_ids])
        return pb.CopyStatusResponse(copies=[self._message(p) for p in found])

    async def cancel(self, request: pb.CancelCopyRequest) -> pb.CancelCopyResponse:
        """Cancel a copy; its files are removed on return. A replica that runs already stays."""
        copies = self._copies()
        self._check(request)
        await copies.cancel(TabletId(request.tablet_id))
        return pb.CancelCopyResponse()

    def _message(self, progress: CopyProgress) -> pb.CopyProgress:
        over_us = progress.ended_us if progress.stage in ENDED else 0
        until_us = over_us or self._env.clock.monotonic_us()
        message = pb.CopyProgress(
            tablet_id=progress.group,
            source_uuid=progress.source,
            source_address=progress.address,
            stage=progress.stage.value,
            bytes_total=progress.bytes_total,
            bytes_done=progress.bytes_done,
            log_bytes=progress.log_bytes,
            last_term=progress.last.term,
            last_index=progress.last.index,
            may_lose=progress.may_lose,
            elapsed_ms=(until_us - progress.began_us) // 1000,
            retries=progress.retries,
        )
        if progress.error is not None:
            message.error.CopyFrom(status.to_proto(_as_nyala_error(progress.error)))
        return message


def copy_handlers(
    env: Env, identity: Identity, copies: Callable[[], CopyManager], check: Check
) -> Handlers:
    """Return the handlers of a server that is a source and a target of copies.

    Args:
        env: clock and RPCs.
        identity: identity of this server.
        copies: returns the copies of this server; raises Unavailable until its replicas are open.
        check: see `CopyTargetService`.
    """
    source = CopySourceService(identity, copies)
    target = CopyTargetService(env, identity, copies, check)
    return {**source.handlers(), **target.handlers()}


def _as_nyala_error(err: Exception) -> NyalaError:
    return err if isinstance(err, NyalaError) else Unavailable(f"{type(err).__name__}: {err}")


def _entry(entry: Entry) -> pb.LogEntry:
    op = entry.id
    return pb.LogEntry(
        term=op.term, index=op.index, stamp=entry.stamp, kind=entry.kind, payload=entry.payload
    )
