"""A table of (k, v) whose transactions are staged, prepared and resolved by hand, at its tablets' leaders."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError, Unavailable
from nyala.common.ids import TabletId
from nyala.common.partitioning.partition import locate
from nyala.env.rpc import Method
from nyala.tablet.files.transaction_ops import TransactionOutcome, crc_of_part
from nyala.wire import flight, methods, status
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as tb
from tests.sim.systems.cluster import SimCluster
from tests.sim.transactions.script import Attempt, as_message

CALL_MS = 5_000
REFUSE_S = 600
NO_PARTS: Sequence[tb.TxnPart] = ()


class StagedTable:
    """A table, and a client process that stages, prepares and resolves.

    Args:
        cluster: the cluster.
        core: client of `cluster.clients[-1]`.
        table: opened.
    """

    def __init__(self, cluster: SimCluster, core: ClientCore, table: OpenTable) -> None:
        self.cluster = cluster
        self.core = core
        self.table = table
        self.process = cluster.clients[-1]
        self.parts: dict[tuple[bytes, str], list[int]] = {}  # checksums of staged batches
        self._sequences: dict[tuple[bytes, str], int] = {}

    @property
    def tablets(self) -> list[TabletId]:
        """Its tablets."""
        return [t.id for t in self.table.tablets]

    def by_tablet(self, keys: Iterable[int]) -> dict[TabletId, list[int]]:
        """Return the keys of each tablet that has any."""
        wanted = list(keys)
        batch = pa.record_batch([pa.array(wanted, pa.int64())], names=["k"])
        found: dict[TabletId, list[int]] = {}
        for key, place in zip(
            wanted, locate(self.table.schema, self.table.partition_schema, batch), strict=True
        ):
            found.setdefault(self.tablets[int(place)], []).append(key)
        return found

    def leader(self, tablet: TabletId) -> str:
        """Return the address of a tablet's leader.

        Raises:
            Unavailable: no running server leads it.
        """
        process = self.cluster.leader_of(tablet)
        if process is None:
            raise Unavailable(f"no server leads {tablet}")
        return process.address

    # ---- batches -----------------------------------------------------------------------------------

    def header(self, tablet: TabletId, transaction: bytes, sequence: int, **more: Any) -> Any:
        """Return the header of a write, of a session of its own for each transaction."""
        columns = [c.id for c in self.table.schema.columns]
        values: dict[str, Any] = {
            "request": 1, "tablet_id": tablet, "client_id": transaction, "sequence": sequence,
            "first_outstanding": 1, "op": pb.UPSERT, "column_ids": columns, "timeout_ms": CALL_MS,
            "schema_version": self.table.schema.version,
        }  # fmt: skip
        return pb.WriteHeader(**(values | more))

    async def put(
        self, header: pb.WriteHeader, rows: Mapping[int, int], address: str = ""
    ) -> pb.WriteResult:
        """Send one batch to a server, by default the leader of its tablet; return its result."""
        keys, values = pa.array(list(rows), pa.int64()), pa.array(list(rows.values()), pa.int64())
        batch = pa.record_batch([keys, values], names=["k", "v"])

        async def outgoing() -> Any:
            yield flight.schema_data(batch.schema)
            yield flight.batch_data(batch, header.SerializeToString())

        to = address or self.leader(TabletId(header.tablet_id))
        stream = self.core.env.rpc.stream(to, methods.DO_PUT, outgoing(), timeout_ms=CALL_MS)
        found = [answer async for answer in stream]
        if not found:
            raise Unavailable(f"{to} ended the stream without an answer")
        return pb.WriteResult.FromString(found[0].app_metadata)

    async def stage_in(
        self, tablet: TabletId, transaction: bytes, rows: Mapping[int, int], part: str = "p"
    ) -> pb.WriteResult:
        """Stage one batch in one tablet; return its result, which may be an error."""
        key = transaction, tablet
        self._sequences[key] = sequence = self._sequences.get(key, 0) + 1
        number = len(self.parts.get(key, ()))
        stage = pb.StageHeader(transaction=transaction, part=part, number=number)
        header = self.header(tablet, transaction, sequence, stage=stage)
        result = await self.put(header, rows)
        if not result.HasField("error") and not result.row_errors:
            self.parts.setdefault(key, []).append(result.crc)
        return result

    async def stage(self, transaction: bytes, rows: Mapping[int, int]) -> list[TabletId]:
        """Stage rows in their tablets, each batch until it has an answer; return the tablets."""
        split = self.by_tablet(rows)
        for tablet, keys in split.items():
            result = await self._until_staged(tablet, transaction, {k: rows[k] for k in keys})
            if result.HasField("error"):
                raise status.from_proto(result.error)
            assert not result.row_errors, result
        return list(split)

    async def _until_staged(
        self, tablet: TabletId, transaction: bytes, rows: Mapping[int, int]
    ) -> pb.WriteResult:
        for _ in range(100):
            try:
                number = self._sequences.get((transaction, tablet), 0)
                result = await self.stage_in(tablet, transaction, rows)
            except NyalaError:
                result = None
            if result is not None and result.error.code in ("", "NOT_FOUND", "CAS_FAILED"):
                return result
            self._sequences[transaction, tablet] = number  # the same operation again
            await self.core.env.tasks.sleep_ms(100)
        raise AssertionError(f"{tablet} stages nothing")

    # ---- orders ------------------------------------------------------------------------------------

    def fence(self, tablet: TabletId) -> pb.Fence:
        """Return the fence of the leader master as the leader of a tablet knows it."""
        process = self.cluster.leader_of(tablet)
        if process is None:
            raise Unavailable(f"no server leads {tablet}")
        known = process.server.fence
        return pb.Fence(catalog_incarnation=known.incarnation, term=known.term)

    async def order(self, tablet: TabletId, method: Method, request: Any) -> tb.TxnTabletResult:
        """Send a request about one tablet to its leader; return its result.

        Raises:
            NyalaError: of the call, or of the result.
        """
        rpc = self.core.env.rpc
        response = await rpc.call(self.leader(tablet), method, request, timeout_ms=CALL_MS)
        (result,) = response.results
        assert result.tablet_id == tablet
        if result.HasField("error"):
            raise status.from_proto(result.error)
        return result  # type: ignore[no-any-return]

    async def prepare(
        self, tablet: TabletId, transaction: bytes, attempt: Attempt, **more: Any
    ) -> tb.TxnTabletResult:
        """Prepare all that was staged in a tablet."""
        crcs = self.parts.get((transaction, tablet), [])
        part = tb.TxnPart(part="p", batches=len(crcs), crc=crc_of_part(crcs))
        participant = tb.TxnParticipant(tablet_id=tablet, table_id=self.table.id, parts=[part])
        values: dict[str, Any] = {"refuse_s": REFUSE_S, "timeout_ms": 2_000} | more
        request = tb.TxnPrepareRequest(
            transaction=transaction, attempt=as_message(attempt), participants=[participant],
            fence=self.fence(tablet), **values,
        )  # fmt: skip
        return await self.order(tablet, methods.TXN_PREPARE, request)

    async def unprepare(
        self, tablet: TabletId, transaction: bytes, bound: Attempt
    ) -> tb.TxnTabletResult:
        """Undo what attempts up to a bound have prepared in a tablet."""
        request = tb.TxnUnprepareRequest(
            transaction=transaction, bound=as_message(bound), tablet_ids=[tablet],
            fence=self.fence(tablet),
        )  # fmt: skip
        return await self.order(tablet, methods.TXN_UNPREPARE, request)

    async def resolve(
        self, tablet: TabletId, transaction: bytes, at: int, timeout_ms: int = 2_000
    ) -> tb.TxnTabletResult:
        """Apply a transaction in a tablet at its commit time."""
        request = tb.TxnResolveRequest(
            transaction=transaction, at=at, tablet_ids=[tablet], timeout_ms=timeout_ms,
            fence=self.fence(tablet),
        )  # fmt: skip
        return await self.order(tablet, methods.TXN_RESOLVE, request)

    async def drop(self, tablet: TabletId, transaction: bytes) -> tb.TxnTabletResult:
        """Drop the stage of a transaction in a tablet."""
        request = tb.TxnDropRequest(transaction=transaction, tablet_ids=[tablet], refuse_s=REFUSE_S)
        return await self.order(tablet, methods.TXN_DROP, request)

    async def keep(self, tablet: TabletId, transaction: bytes) -> tb.TxnTabletResult:
        """Let the time of a stage begin anew."""
        request = tb.TxnKeepRequest(transaction=transaction, tablet_ids=[tablet])
        return await self.order(tablet, methods.TXN_KEEP, request)

    async def stages(self, tablet: TabletId) -> list[tb.TxnStage]:
        """Return the stages of a tablet."""
        request = tb.TxnStagesRequest(tablet_id=tablet)
        rpc = self.core.env.rpc
        call = rpc.call(self.leader(tablet), methods.TXN_STAGES, request, timeout_ms=CALL_MS)
        return list((await call).stages)

    # ---- reads -------------------------------------------------------------------------------------

    async def scan(
        self, tablet: TabletId, address: str = "", **token: Any
    ) -> tuple[int, dict[int, int]]:
        """Read a tablet at a server, by default its leader; return the time and the rows."""
        columns = [c.id for c in self.table.schema.columns]
        values: dict[str, Any] = {
            "tablet_id": tablet, "column_ids": columns, "timeout_ms": CALL_MS,
            "schema_version": self.table.schema.version,
            "ranges_version": self.table.ranges_version,
        }  # fmt: skip
        wanted = pb.ScanToken(**(values | token))
        ticket = flight_pb2.Ticket(ticket=wanted.SerializeToString())
        to = address or self.leader(tablet)
        stream = self.core.env.rpc.stream(to, methods.DO_GET, ticket, timeout_ms=CALL_MS)
        schema, header, rows = None, pb.ScanHeader(), dict[int, int]()
        async for data in stream:
            if schema is None:
                schema = flight.read_schema(data.header)
                header = pb.ScanHeader.FromString(bytes(data.app_metadata))
                continue
            batch = flight.read_batch(schema, data.header, data.body)
            rows.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
        if schema is None:
            raise Unavailable(f"{to} sent no schema")
        return header.at, rows


def done(result: tb.TxnTabletResult) -> int:
    """Return the time of a result that must be DONE."""
    assert result.outcome == TransactionOutcome.DONE, result
    return int(result.time)
