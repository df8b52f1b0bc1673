"""The real client as a client of the workload: single rows of a table of (k, v)."""

from typing import Any

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import OutcomeUnknown, Retryable, SessionExpired
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.checkers.linearizability import Kind
from tests.sim.runs.workload import Failed, Unknown

_OPS = {
    Kind.WRITE: pb.UPSERT,
    Kind.INSERT: pb.INSERT,
    Kind.UPDATE: pb.UPDATE,
    Kind.DELETE: pb.DELETE,
}


class TableClient:
    """One client on one table.

    Args:
        core: the client.
        table: table opened by it.
    """

    def __init__(self, core: ClientCore, table: OpenTable) -> None:
        self.core = core
        self.table = table

    async def read(self, key: int) -> int | None:
        """Return the value of a key."""
        try:
            rows = await self.core.get(self.table, rows_of([key]), None)
        except (Retryable, OutcomeUnknown) as err:
            raise Failed(str(err)) from err
        value: int | None = None if rows[0] is None else rows[0]["v"]
        return value

    async def change(self, kind: Kind, key: int, value: int) -> bool:
        """Do one change; return whether its condition on the row held."""
        batch = rows_of([key]) if kind is Kind.DELETE else rows_of([key], [value])
        errors = await self.write(_OPS[kind], batch)
        assert all(e[1] in ("already_present", "not_found") for e in errors), errors
        return not errors

    async def write(self, op: int, batch: pa.RecordBatch) -> list[tuple[int, str, str]]:
        """Write rows; return the row errors."""
        try:
            written = await self.core.session.write(
                self.table,
                op,
                batch,
                all_or_nothing=False,
                timeout_ms=self.core.options.timeout_ms,
            )
        except (OutcomeUnknown, SessionExpired) as err:
            raise Unknown(str(err)) from err
        except Retryable as err:
            raise Failed(str(err)) from err
        return written.errors

    async def scan(self, at: int = 0) -> list[dict[str, Any]]:
        """Return all rows at a time, ordered by key."""
        spec = ReadSpec(at=at)
        batches = await self.core.plan(self.table, spec).collect()
        rows = [row for some in batches for batch in some for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: int(row["k"]))


def rows_of(keys: list[int], values: list[int] | None = None) -> pa.RecordBatch:
    """Return a batch of keys, with values or without."""
    columns = {"k": pa.array(keys, pa.int64())}
    if values is not None:
        columns["v"] = pa.array(values, pa.int64())
    return pa.RecordBatch.from_pydict(columns)
