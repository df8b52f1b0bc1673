"""Helpers of the tests of client delivery, shared with other tests."""

import pyarrow as pa

from nyala.common.errors import NyalaError
from nyala.wire.proto import nyala_pb2 as pb


class Streams:
    """Every server answers with the next line of the script."""

    silent = False

    def __init__(self, script: list[NyalaError | None]) -> None:
        self._script = script

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

    def learn(self, *args: object, **more: object) -> None: ...

    async def refresh(self, *args: object) -> None: ...
