"""A replica on another server as the source of a copy: `replica.copy.protocol.CopySource` over RPC."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError

from nyala.common.errors import BadChecksum, Corrupt, TimedOut
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.files import Buffer
from nyala.env.rpc import Method, Rpc
from nyala.raft.messages import Entry, EntryKind
from nyala.replica.copy.protocol import CopyFile, CopyOffer
from nyala.wire import convert, methods
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import nyala_pb2 as pb

BEGIN_MS = 60_000
"""Timeout of the begin of a session, in milliseconds: the source may have to flush, or wait for a leader."""
CALL_MS = 10_000
HOLD_MS = 2_000


class RemoteSource:
    """Client of one source server.

    Args:
        rpc: RPC client of this process.
        own_uuid: uuid of this server, the target.
        cluster_id: cluster of this server; empty: not known yet.
        uuid: uuid of the source server.
        address: public address of the source server.
    """

    def __init__(
        self, rpc: Rpc, own_uuid: ServerUuid, cluster_id: str, uuid: ServerUuid, address: str
    ) -> None:
        self._rpc = rpc
        self._own_uuid = own_uuid
        self._cluster_id = cluster_id
        self._uuid = uuid
        self._address = address

    @property
    def uuid(self) -> ServerUuid:
        """Uuid of the source server."""
        return self._uuid

    @property
    def address(self) -> str:
        """Public address of the source server."""
        return self._address

    async def begin(self, group: TabletId, *, min_index: int, force: bool) -> CopyOffer:
        """See `CopySource.begin`.

        Args:
            group: id of the replica's group.
            min_index: lowest index that the flush point of the files may have.
            force: begin even if the replica may lack acknowledged entries.
        """
        request = pb.BeginCopyRequest(
            destination_uuid=self._uuid,
            cluster_id=self._cluster_id,
            tablet_id=group,
            target_uuid=self._own_uuid,
            force=force,
            least_index=min_index,
        )
        answer = await self._call(methods.BEGIN_COPY, request, BEGIN_MS)
        return CopyOffer(
            session=answer.session_id,
            ttl_ms=answer.ttl_ms,
            flush_op=OpId(answer.cut_term, answer.cut_index),
            stamp=answer.cut_stamp,
            files=tuple(CopyFile(f.name, f.size_bytes) for f in answer.files),
            config=convert.configuration_from_proto(answer.consensus),
            term=answer.consensus.term,
            leader=ServerUuid(answer.consensus.leader) if answer.consensus.leader else None,
            may_lose=answer.may_lose,
        )

    async def read(self, session: str, name: str, offset: int) -> AsyncGenerator[Buffer, None]:
        """See `CopySource.read`.

        Args:
            session: id of the session.
            name: name of the file, as offered.
            offset: offset of the first byte.

        Raises:
            BadChecksum: a piece was damaged in transfer.
            TimedOut: the source sent nothing for `CALL_MS`.
            Corrupt: a piece without readable metadata.
        """
        request = pb.FetchFileRequest(session_id=session, name=name, offset=offset)
        stream = self._rpc.stream(self._address, methods.FETCH_FILE, request)
        async with aclosing(stream) as chunks:  # type: ignore[type-var]
            while True:
                try:
                    async with asyncio.timeout(CALL_MS / 1000):
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError as err:
                    raise TimedOut(
                        f"{self._address} sent no data of {name} for {CALL_MS} ms"
                    ) from err
                what = f"{name} at {offset} from {self._address}"
                piece, chunk_info = _piece(chunk, what)
                if chunk_info.offset != offset:
                    raise BadChecksum(
                        f"{self._address} sent {name} from offset {chunk_info.offset} instead of {offset}"
                    )
                _check(piece, chunk_info.crc32c, what)
                yield piece
                offset += len(piece)

    async def entries(self, session: str, after: OpId) -> list[Entry]:
        """See `CopySource.entries`."""
        request = pb.FetchEntriesRequest(
            session_id=session, after_term=after.term, after_index=after.index
        )
        answer = await self._call(methods.FETCH_ENTRIES, request, CALL_MS)
        _check(answer.entries, answer.crc32c, f"the log after {after} from {self._address}")
        try:
            found = pb.LogEntries.FromString(answer.entries).entries
            return [
                Entry(OpId(e.term, e.index), e.stamp, EntryKind(e.kind), e.payload) for e in found
            ]
        except (DecodeError, ValueError) as err:
            raise Corrupt(f"the log from {self._address} cannot be understood: {err}") from err

    async def hold(self, session: str, *, end: bool = False) -> None:
        """See `CopySource.hold`."""
        request = pb.HoldCopyRequest(session_id=session, end=end)
        await self._call(methods.HOLD_COPY, request, HOLD_MS)

    async def _call(self, method: Method, request: object, timeout_ms: int) -> Any:
        return await self._rpc.call(self._address, method, request, timeout_ms=timeout_ms)


def _piece(chunk: FlightData, what: str) -> tuple[Buffer, pb.FileChunk]:
    try:
        return memoryview(chunk.body or b""), pb.FileChunk.FromString(bytes(chunk.app_metadata))
    except DecodeError as err:
        raise Corrupt(f"{what} came with what cannot be understood: {err}") from err


def _check(data: Buffer, crc: int, what: str) -> None:
    if int(google_crc32c.value(np.frombuffer(data, np.uint8))) != crc:
        raise BadChecksum(f"{what} was altered on its way: its checksum does not match")
