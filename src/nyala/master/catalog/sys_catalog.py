"""The catalog's rows in a replicated tablet: one batch per logical operation, a full scan on election.

It is a tablet like any other (S0.2), of the fixed schema (kind, id, body), whose group is the masters.
The row of a removed table or a deleted tablet is kept forever, that of a decision for a time. The keys of
transactions are not part of the scan: there may be millions of them, and one is looked up when it is needed.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.errors import NotFound, TooLarge, Unavailable
from nyala.common.expressions.bounds import KeyBounds
from nyala.common.ids import SYS_CATALOG, ColumnId, TableId
from nyala.common.keys.encoding import encode_prefix
from nyala.common.partitioning.partition import KeyRange, PartitionSchema, TabletPartition
from nyala.common.schema import Column, Schema
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.master.catalog import parts
from nyala.master.catalog.records.rows import KIND_KEY, CatalogRow
from nyala.replica.status import ReplicaStatus
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import RowOp, WriteOp
from nyala.tablet.read.view import View
from nyala.tablet.tablet import Tablet
from nyala.wire import flight

SCHEMA = Schema(
    columns=(
        Column(ColumnId(0), "kind", pa.string(), nullable=False),
        Column(ColumnId(1), "id", pa.string(), nullable=False),
        Column(ColumnId(2), "body", pa.binary(), nullable=False),
    ),
    key_ids=(ColumnId(0), ColumnId(1)),
    version=0,
    next_column_id=3,
)
_COLUMN_IDS = tuple(c.id for c in SCHEMA.columns)
COMPRESS_BYTES = 4 << 10
"""Size in bytes from which on a batch is compressed; that of a table of 1,000 tablets shrinks to a tenth."""
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
_TYPES = [pa.string(), pa.string()]
_KEYS_FROM = encode_prefix([pa.scalar(KIND_KEY), pa.scalar("")], _TYPES)
_LOADED = KeyBounds(upper=_KEYS_FROM)
"""Rows of every kind but the keys of transactions."""


def tablet_info() -> TabletInfo:
    """Return the tablet info of the sys catalog, the same in every cluster."""
    return TabletInfo(
        tablet_id=SYS_CATALOG,
        table_id=TableId(SYS_CATALOG),
        table_name="sys_catalog",
        schema=SCHEMA,
        partition_schema=PartitionSchema(),
        partition=TabletPartition((), KeyRange(None, None)),
    )


class CatalogWriteResult(Protocol):
    """Result of a write that was applied."""

    @property
    def result(self) -> bytes:
        """Result of the state machine."""
        ...


class CatalogReplica(Protocol):
    """The part of a replica that the sys catalog needs."""

    async def write(
        self,
        payload: bytes,
        *,
        client_id: bytes,
        sequence: int,
        first_outstanding: int,
        timeout_ms: int,
    ) -> CatalogWriteResult:
        """Replicate an operation; returns when it is applied here.

        Args:
            payload: the encoded operation.
            client_id: 16 bytes that name the writer.
            sequence: number of the write, unique for the writer.
            first_outstanding: lowest sequence that the writer still waits for.
            timeout_ms: deadline.
        """
        ...

    async def read_point(self, at: int | None, timeout_ms: int) -> int:
        """Return a time at which this replica, confirmed as leader, can be read."""
        ...

    def status(self) -> ReplicaStatus:
        """Return the status of this replica."""
        ...


def encode(rows: Sequence[CatalogRow]) -> bytes:
    """Return the payload that writes rows, all or none."""
    rows = parts.split(rows)
    mixed = any(r.removed for r in rows)
    columns = [
        pa.array([r.kind for r in rows], pa.string()),
        pa.array([r.id for r in rows], pa.string()),
        pa.array([r.body for r in rows], pa.binary()),
    ]
    schema = SCHEMA.arrow
    if mixed:
        codes = [RowOp.DELETE_IGNORE if r.removed else RowOp.UPSERT for r in rows]
        columns.append(pa.array(codes, pa.uint8()))
        schema = schema.append(pa.field(replicated_ops.OP_COLUMN, pa.uint8()))
    batch = pa.record_batch(columns, schema=schema)
    message = flight.batch_message(batch)
    if len(message) > COMPRESS_BYTES:
        message = _compressed(batch)
    op = RowOp.MIXED if mixed else RowOp.UPSERT
    return replicated_ops.encode(WriteOp(op, SCHEMA.version, _COLUMN_IDS, True, message))


def _compressed(batch: pa.RecordBatch) -> bytes:
    """Return a batch as one message with a compressed body."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_ZSTD) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema, which every replica knows
    return bytes(memoryview(messages.read_next_message().serialize()))


def scan(view: View, at: int) -> list[CatalogRow]:
    """Return every row of the sys catalog at a time, but no keys. Blocking: lane COMPUTE."""
    return _rows(view.scan(at, ordered=True, within=_LOADED))


def find(view: View, at: int, kind: str, row: str) -> CatalogRow | None:
    """Return one row at a time; None: there is none. Blocking: lane COMPUTE.

    Args:
        view: view of the sys catalog.
        at: hybrid time.
        kind: its kind.
        row: its id.
    """
    key = pa.record_batch({"kind": pa.array([kind]), "id": pa.array([row])})
    found = view.get(at, key).to_pylist()
    return CatalogRow(kind, row, found[0]["body"]) if found else None


def keys(view: View, at: int, after: str, limit: int) -> list[CatalogRow]:
    """Return rows of keys of transactions at a time, in the order of their names. Blocking: lane COMPUTE.

    Args:
        view: view of the sys catalog.
        at: hybrid time.
        after: name after which they begin; empty: from the first.
        limit: most rows.
    """
    lower = encode_prefix([pa.scalar(KIND_KEY), pa.scalar(f"{after}\0" if after else "")], _TYPES)
    return _rows(view.scan(at, ordered=True, within=KeyBounds(lower), limit=limit))


def changed(view: View, since: int, until: int) -> list[CatalogRow]:
    """Return the rows that changed in (since, until] and were not removed, as they are at its end.

    Blocking: lane COMPUTE.

    Args:
        view: view of the sys catalog.
        since: hybrid time, exclusive.
        until: hybrid time, inclusive.

    Raises:
        HistoryGone: `since` is before the retained history.
    """
    found = view.changes(since, until)
    return _rows(b.filter(pc.not_equal(b.column("_op"), "delete")) for b in found)


def _rows(batches: Iterable[pa.RecordBatch]) -> list[CatalogRow]:
    rows: list[CatalogRow] = []
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("kind", "id", "body"))
        rows += [CatalogRow(*values) for values in zip(*columns, strict=True)]
    return parts.join(rows)


@contextmanager
def not_found_is_unavailable() -> Iterator[None]:
    """Turn NotFound into Unavailable: this master was removed, and another one has the catalog.

    Raises:
        Unavailable: instead of NotFound of the replica, which a client would relate to its table.
    """
    try:
        yield
    except NotFound as err:
        raise Unavailable(
            f"this master was removed from the masters; use another one ({err.message})"
        ) from err


class SysCatalog:
    """The sys catalog of one leader in one term. On the loop only.

    Args:
        env: tasks.
        replica: this master's member of the group.
        tablet: state machine of the replica.
        client_id: 16 random bytes, new for each term: names this leader's writes.
        timeout_ms: deadline, in milliseconds, of one write or confirmation.
        max_batch_bytes: largest batch that is replicated.
    """

    def __init__(
        self,
        env: Env,
        replica: CatalogReplica,
        tablet: Tablet,
        *,
        client_id: bytes,
        timeout_ms: int,
        max_batch_bytes: int,
    ) -> None:
        self._env = env
        self._replica = replica
        self._tablet = tablet
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._max_batch_bytes = max_batch_bytes
        self._sequence = 0
        self._outstanding: dict[int, None] = {}

    async def replicate(self, rows: Sequence[CatalogRow]) -> None:
        """Replicate rows as one batch; durable on a majority and applied here on return.

        Raises:
            TooLarge: the batch is over the limit; nothing was proposed (S0.55).
            NotLeader, Throttled, Unavailable: nothing was proposed.
            OutcomeUnknown: leadership was lost while it was in flight.
        """
        payload = encode(rows)
        if len(payload) > self._max_batch_bytes:
            raise TooLarge(
                f"the catalog batch of {len(rows)} rows is {len(payload)} bytes, over the limit of "
                f"{self._max_batch_bytes}; use fewer tablets or columns at a time",
                {"limit": str(self._max_batch_bytes), "size": str(len(payload))},
            )
        self._sequence += 1
        sequence = self._sequence
        self._outstanding[sequence] = None
        try:
            with not_found_is_unavailable():
                outcome = await self._replica.write(
                    payload,
                    client_id=self._client_id,
                    sequence=sequence,
                    first_outstanding=next(iter(self._outstanding)),
                    timeout_ms=self._timeout_ms,
                )
        finally:
            del self._outstanding[sequence]
        _, errors = replicated_ops.decode_result(outcome.result)
        if errors:
            first = errors[0]
            raise TooLarge(f"the catalog refused row {first.row}: {first.message} ({first.code})")

    async def confirm(self) -> int:
        """Return a time at which this master, confirmed by a majority as leader, has applied everything.

        Raises:
            NotLeader: another master leads.
            Unavailable, TimedOut: no majority answers.
        """
        with not_found_is_unavailable():
            return await self._replica.read_point(None, self._timeout_ms)

    async def find(self, kind: str, row: str) -> CatalogRow | None:
        """Return a row as of everything that is applied here; None: there is none.

        Args:
            kind: its kind.
            row: its id.
        """
        at, view = self._replica.status().applied_stamp, self._tablet.view()
        return await self._env.tasks.run(Lane.COMPUTE, find, view, at, kind, row)

    async def keys(self, after: str, limit: int) -> list[CatalogRow]:
        """Return rows of keys of transactions, in the order of their names, as `find`.

        Args:
            after: name after which they begin; empty: from the first.
            limit: most rows.
        """
        at, view = self._replica.status().applied_stamp, self._tablet.view()
        return await self._env.tasks.run(Lane.COMPUTE, keys, view, at, after, limit)

    async def rows(self) -> list[CatalogRow]:
        """Return every row but keys, with everything that earlier leaders committed.

        Raises:
            NotLeader, Unavailable, TimedOut: as `confirm`.
        """
        at = await self.confirm()
        return await self._env.tasks.run(Lane.COMPUTE, scan, self._tablet.view(), at)
