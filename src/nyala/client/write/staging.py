"""Staging of rows for a transaction: the requests of a write, which their tablets replicate and do not show.

A stage is made of parts. A part has one writer, which numbers its batches in each tablet; what the tablets
have acknowledged is described by `StagedPart`, which may be sent to the process that commits.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, cast

import google_crc32c
import numpy as np
import pyarrow as pa

from nyala.client.cluster.leader_operation import TabletReplaced
from nyala.client.cluster.tablet_cache import OpenTable, TabletCache, TabletLocation
from nyala.client.deadline import Attempts
from nyala.client.write.batcher import Batcher, BatchLimits
from nyala.client.write.delivery import Delivery
from nyala.client.write.pending_call import Written
from nyala.client.write.put_streams import PutStreams
from nyala.client.write.row_outcomes import RowErrors
from nyala.client.write.sequencer import OP_COLUMN, Sequences
from nyala.client.write.upload import Upload
from nyala.common.errors import InvalidArgument, NyalaError, RangesChanged, TransactionDenied
from nyala.common.ids import TabletId
from nyala.env.clock import HybridClock, random_id
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb

SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True)
class StagedTablet:
    """Batches of a part in one tablet. Can be pickled.

    Attributes:
        tablet_id: the tablet.
        table_id: its table.
        batches: number of its batches.
        crc: checksum of their checksums, in the order of their numbers.
        addresses: servers of the tablet, the leader first, as last known.
    """

    tablet_id: str
    table_id: str
    batches: int
    crc: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Batches that a part of a transaction has staged. Can be pickled.

    Attributes:
        name: name of the part, unique in its transaction.
        tablets: those with batches.
        rows: number of rows.
        since: stamp of its last batch; 0: it has none.
        covered: tables of which a condition was staged in every tablet that may have its rows, each with the
            version of its ranges then.
    """

    name: str
    tablets: tuple[StagedTablet, ...] = ()
    rows: int = 0
    since: int = 0
    covered: tuple[tuple[str, int], ...] = ()


class StageSession:
    """Identity under which a client stages: tablets execute each of its requests once. On the loop only.

    It is not that of the client's writes: a client id that was given may be used by a second process, which
    stages for another transaction.

    Args:
        env: clock, random source, lanes.
        locations: locations of tablets.
        clock: its highest time is sent with each batch.
        limits: limits of a batch.
        streams: open streams to servers.

    Attributes:
        ready: time-out of stages in seconds, and the monotonic time until which every server is known to have
            transactions; None: not asked yet.
    """

    def __init__(
        self,
        env: Env,
        locations: TabletCache,
        clock: HybridClock,
        limits: BatchLimits,
        streams: PutStreams,
    ) -> None:
        self.ready: tuple[int, int] | None = None
        self.env = env
        self.clock = clock
        self.limits = limits
        self.locations = locations
        self.client_id = bytes.fromhex(random_id(env.random))
        self.sequences = Sequences(keep_results=False)
        self.delivery = Delivery(locations, clock, streams)


@dataclass(slots=True)
class _TabletStage:
    """Batches of a part in one tablet: their checksums by number."""

    location: TabletLocation
    table_id: str
    crcs: dict[int, int] = field(default_factory=dict)
    last: int = -1


class PartStage:
    """One part of a transaction, as its writer stages it. On the loop only.

    Args:
        session: identity of the writer.
        transaction: id of the transaction.
        name: of the part.

    Attributes:
        failure: why the part cannot be committed; None: all of it is staged.
    """

    def __init__(self, session: StageSession, transaction: bytes, name: str) -> None:
        self.name = name
        self.failure: NyalaError | None = None
        self._session = session
        self._transaction = transaction
        self._tablets: dict[TabletId, _TabletStage] = {}
        self._covered: set[tuple[str, int]] = set()
        self._rows = self._since = self._sending = 0
        self._closed = ""
        self._batcher = Batcher(session.env, self, session.clock, session.limits, session.locations)

    async def begin(
        self, table: OpenTable, op: int, *, all_or_nothing: bool, timeout_ms: int
    ) -> Upload:
        """Begin to stage rows that come batch by batch; see `Writer.begin`.

        Args:
            table: the open table.
            op: a `WriteOp` of the wire.
            all_or_nothing: ignored: one failing row refuses the whole commit.
            timeout_ms: maximum time between two acknowledged batches.
        """
        self.check_open()
        return self._batcher.begin(table, op, False, timeout_ms)

    def close(self, why: str) -> None:
        """Refuse further rows: the transaction is being ended."""
        self._closed = why

    def check_open(self) -> None:
        """Check that rows can be staged.

        Raises:
            InvalidArgument: the transaction is being ended.
        """
        if self._closed:
            raise InvalidArgument(f"{self._closed}; begin another one with client.transaction()")

    @property
    def since(self) -> int:
        """Stamp of its last batch; 0: it has none."""
        return self._since

    def locations(self) -> Mapping[TabletId, TabletLocation]:
        """Return the tablets with batches."""
        return {t: stage.location for t, stage in self._tablets.items() if stage.crcs}

    def staged(self) -> StagedPart:
        """Return what is staged.

        Raises:
            TransactionDenied: some row was refused, or a batch was not acknowledged.
            InvalidArgument: rows are still being staged.
        """
        if self.failure is not None:
            raise TransactionDenied(
                f"part {self.name!r} cannot be committed: {self.failure.message}"
            ) from self.failure
        if self._sending:
            raise InvalidArgument(
                f"part {self.name!r} is still being staged by another thread; wait for its writes to return"
            )
        found = tuple(
            StagedTablet(
                str(t), s.table_id, len(s.crcs), _crc_of_part(s), tuple(s.location.addresses())
            )
            for t, s in self._tablets.items()
            if s.crcs
        )
        return StagedPart(self.name, found, self._rows, self._since, tuple(sorted(self._covered)))

    def cover(self, table: OpenTable) -> None:
        """Note that a condition is staged by the ranges that a table has now; others refuse the commit."""
        self._covered.add((str(table.id), table.ranges_version))

    @contextmanager
    def writing(self, table: OpenTable) -> Iterator[list[Written]]:
        """Note a write that fails, and row errors of one that returns: it is appended to the list.

        Any thread: a failure is only ever set.
        """
        done: list[Written] = []
        try:
            yield done
        except BaseException as err:  # an interrupt too: it is not known what was staged
            self._fail(err if isinstance(err, NyalaError) else _interrupted(err))
            raise
        for written in done:
            if written.errors:
                self._fail(_refused(table, written.errors))

    def _fail(self, why: NyalaError) -> None:
        self.failure = self.failure or why

    async def deliver(
        self, table: OpenTable, tablet: TabletLocation, op: int, piece: pa.RecordBatch, all_or_nothing: bool,
        attempts: Attempts, *, where: str = "",
    ) -> pb.WriteResult:  # fmt: skip
        """Stage one batch; see `Sequencer.deliver`.

        Args:
            table: the open table.
            tablet: tablet of the rows.
            op: a `WriteOp` of the wire.
            piece: rows of one request.
            all_or_nothing: as for `begin`.
            attempts: the deadline and the pauses between tries.
            where: condition of a delete, if `op` is DELETE_WHERE.
        """
        self._sending += 1
        try:
            while True:
                try:
                    return await self._deliver(table, tablet, op, piece, attempts, where)
                except TabletReplaced:
                    continue
        except (
            RangesChanged
        ) as err:  # the tablet's log says that it has no effect; the rows go elsewhere
            if tablet.id in self._tablets and self._tablets[tablet.id].crcs:
                self._fail(err)
            raise
        except BaseException as err:  # an interrupt too: it is not known whether it was staged
            self._fail(err if isinstance(err, NyalaError) else _interrupted(err))
            raise
        finally:
            self._sending -= 1

    async def _deliver(
        self,
        table: OpenTable,
        tablet: TabletLocation,
        op: int,
        piece: pa.RecordBatch,
        attempts: Attempts,
        where: str,
    ) -> pb.WriteResult:
        to, session = tablet.id, self._session
        stage = self._tablets.setdefault(to, _TabletStage(tablet, str(table.id)))
        stage.last += 1
        number = stage.last
        sequence, first = session.sequences.begin(to)
        header = pb.WriteHeader(
            tablet_id=to,
            schema_version=table.schema.version,
            op=cast("pb.WriteOp.ValueType", op),
            client_id=session.client_id,
            sequence=sequence,
            first_outstanding=first,
            since=max(1, session.delivery.seen),
            column_ids=[table.schema.column(n).id for n in piece.schema.names if n != OP_COLUMN],
            stage=pb.StageHeader(
                transaction=self._transaction, part=self.name, number=number, where=where
            ),
        )
        try:
            result = await session.delivery.send(table, tablet, header, piece, attempts)
        finally:
            session.sequences.end(to, sequence)
        if result.row_errors:
            self._fail(_refused(table, [(e.row, e.code, e.message) for e in result.row_errors]))
            return result
        result.rows = piece.num_rows
        stage.crcs[number] = result.crc
        self._rows += piece.num_rows
        self._since = max(self._since, result.timestamp)
        return result


class StagingTarget(Protocol):
    """A transaction, or a part of one: what `txn=` of a write takes."""

    def part_for(self, session: StageSession) -> PartStage:
        """Return the part that a write of a client stages into.

        Raises:
            InvalidArgument: the transaction is of another client, or has ended.
        """
        ...


def _crc_of_part(stage: _TabletStage) -> int:
    """Return the checksum of a part in a tablet, as `transaction_ops.crc_of_part` computes it."""
    crcs = np.array([crc for _, crc in sorted(stage.crcs.items())], "<u4")
    return int(google_crc32c.value(crcs.tobytes()))


def _refused(table: OpenTable, errors: RowErrors) -> TransactionDenied:
    shown = "; ".join(f"row {row}: {code}: {why}" for row, code, why in errors[:SHOWN_ERRORS])
    return TransactionDenied(
        f"{len(errors)} rows of table {table.name!r} were refused when they were written: {shown}"
    )


def _interrupted(err: BaseException) -> TransactionDenied:
    return TransactionDenied(f"a write was interrupted before it was staged: {type(err).__name__}")
