"""Servers with scripted answers for the tests of delivery."""

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.common.errors import NyalaError
from nyala.wire.proto import nyala_pb2 as pb


class Streams:
    """Transport whose answers follow a script."""

    def __init__(self, script: list[NyalaError | None], *, silent: bool = False) -> None:
        self._script = script
        self.silent = silent
        self.abandoned: list[str] = []

    def abandon(self, address: str) -> None:
        self.abandoned.append(address)

    def get(self, address: str, schema: pa.Schema) -> "Streams":
        return self

    async def put(
        self, header: pb.WriteHeader, parts: tuple[memoryview, memoryview], timeout_ms: int
    ) -> pb.WriteResult:
        error = self._script.pop(0)
        if error is not None:
            raise error
        return pb.WriteResult(rows=1)


class Places:
    """Location source without locations."""

    def learn(self, tablet: TabletLocation, **more: object) -> None: ...

    async def refresh_shared(self, table: OpenTable, *args: object) -> None: ...


class DroppedRange(Places):
    """Location source of a table without tablets."""

    def learn(self, tablet: TabletLocation, **more: object) -> None:
        tablet.leader = None

    async def refresh_shared(self, table: OpenTable, *args: object) -> None:
        table.tablets = []
