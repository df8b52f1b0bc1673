"""Sequence numbers of write requests: a tablet executes each number once, however often it is sent."""

from typing import cast

import pyarrow as pa

from nyala.client.cluster.leader_operation import TabletReplaced
from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.client.deadline import Attempts
from nyala.client.write.delivery import Delivery
from nyala.common.ids import TabletId
from nyala.wire.proto import nyala_pb2 as pb

OP_COLUMN = "_op"
TABLETS = 4096
"""Maximum number of tablets without outstanding operations whose last sequence number is kept."""


class Sequences:
    """Sequence numbers of one client's operations per tablet, and those that are outstanding.

    Args:
        keep_results: acknowledge no results, so that tablets keep them and a second process with the same
            client id can repeat all operations (a retried Spark task).
    """

    def __init__(self, *, keep_results: bool) -> None:
        self._keep_results = keep_results
        self._last: dict[TabletId, int] = {}  # by last use
        self._forgotten = 0  # the highest number of a tablet that is in `_last` no more
        self._outstanding: dict[TabletId, dict[int, None]] = {}

    def begin(self, tablet: TabletId) -> tuple[int, int]:
        """Return (sequence, first outstanding sequence) for a new operation.

        A tablet whose number was dropped may be written to again (a recalled table): its numbers continue
        above every dropped one. Numbers need not be consecutive.
        """
        sequence = self._last[tablet] = self._last.pop(tablet, self._forgotten) + 1
        outstanding = self._outstanding.setdefault(tablet, {})
        outstanding[sequence] = None
        return sequence, 1 if self._keep_results else next(iter(outstanding))

    def end(self, tablet: TabletId, sequence: int) -> None:
        """End an operation: its result was received, or its caller has gone."""
        outstanding = self._outstanding.get(tablet, {})
        outstanding.pop(sequence, None)
        if not outstanding:
            self._outstanding.pop(tablet, None)
            self._forget()

    def _forget(self) -> None:
        """Limit the number of tablets kept, unless another process has to use the same numbers."""
        if len(self._last) - len(self._outstanding) <= TABLETS or self._keep_results:
            return
        oldest = next(t for t in self._last if t not in self._outstanding)
        self._forgotten = max(self._forgotten, self._last.pop(oldest))


class Sequencer:
    """The requests of one client.

    Args:
        client_id: 16 bytes.
        sequences: their numbers.
        delivery: sends them.
        since: hybrid time before which no process with this client id wrote; None: there is no other process.
    """

    def __init__(
        self, client_id: bytes, sequences: Sequences, delivery: Delivery, since: int | None = None
    ) -> None:
        self._client_id = client_id
        self._since = since
        self._sequences = sequences
        self._delivery = delivery

    async def deliver(
        self, table: OpenTable, tablet: TabletLocation, op: int, piece: pa.RecordBatch, all_or_nothing: bool,
        attempts: Attempts,
    ) -> pb.WriteResult:  # fmt: skip
        """Send one request under its own sequence number until it is answered.

        If the tablet is replaced meanwhile, the request is sent to its successor under a new number.

        Args:
            table: the open table.
            tablet: tablet of the rows.
            op: a `WriteOp` of the wire.
            piece: the rows of one request.
            all_or_nothing: one failing row voids the others.
            attempts: the deadline and the pauses between tries.
        """
        while True:
            try:
                return await self._deliver(table, tablet, op, piece, all_or_nothing, attempts)
            except TabletReplaced:
                continue

    async def _deliver(
        self, table: OpenTable, tablet: TabletLocation, op: int, piece: pa.RecordBatch, all_or_nothing: bool,
        attempts: Attempts,
    ) -> pb.WriteResult:  # fmt: skip
        to = tablet.id
        sequence, first = self._sequences.begin(to)
        header = pb.WriteHeader(
            tablet_id=to,
            schema_version=table.schema.version,
            op=cast("pb.WriteOp.ValueType", op),
            client_id=self._client_id,
            sequence=sequence,
            first_outstanding=first,
            all_or_nothing=all_or_nothing,
            since=max(1, self._delivery.seen) if self._since is None else self._since,
            column_ids=[table.schema.column(n).id for n in piece.schema.names if n != OP_COLUMN],
        )
        try:
            return await self._delivery.send(
                table, tablet, header, piece, attempts, exclusive=self._since is None
            )
        finally:
            self._sequences.end(to, sequence)
