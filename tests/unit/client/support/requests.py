"""A connection without a cluster, whose requests are acknowledged at once."""

from typing import Any

import pyarrow as pa
import pytest

from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.client.write.batcher import Batcher, BatchLimits
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb


class Requests:
    """Every request is acknowledged at once."""

    def __init__(self) -> None:
        self.rows = 0

    async def deliver(
        self, table: Any, tablet: Any, op: int, piece: pa.RecordBatch, whole: bool, attempts: Any
    ) -> pb.WriteResult:
        self.rows += piece.num_rows
        return pb.WriteResult(rows=piece.num_rows, timestamp=5)


class Core:
    """A client's core without a cluster, which writes to `requests`."""

    requests: Requests

    def __init__(self, env: Env, _addresses: list[str], options: ClientOptions) -> None:
        self.env, self.options = env, options
        self.masters = self.session = self
        clock = HybridClock(env.clock)
        self.bulk = Batcher(env, self.requests, clock, BatchLimits())

    async def reach(self, _timeout_ms: int, _slow: object = None) -> None:
        """Return the table's definition in place of a master."""

    async def begin(self, table: Any, op: int, *, all_or_nothing: bool, timeout_ms: int) -> Any:
        return self.bulk.begin(table, op, all_or_nothing, timeout_ms)

    async def close(self) -> None:
        await self.env.tasks.close()


def connection(monkeypatch: pytest.MonkeyPatch) -> tuple[Connection, Requests]:
    """A connection without a cluster."""
    monkeypatch.setattr("nyala.client.calls.opening.ClientCore", Core)
    monkeypatch.setattr(Core, "requests", requests := Requests(), raising=False)
    return Connection("nowhere:1", ClientOptions(timeout_ms=10_000)), requests
