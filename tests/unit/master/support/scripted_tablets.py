"""A coordinator of one term over scripted tablets and rows in memory."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from nyala.common.errors import NotLeader, Unavailable
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.common.version import TRANSACTIONS
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.records.rows import CatalogRow
from nyala.master.ddl import drop_table
from nyala.master.ddl.operation import LeaderMemory
from nyala.master.transactions.keys import ANYONE
from nyala.master.transactions.term import CoordinatorContext, TransactionsOfTerm
from nyala.master.tservers import TServers
from nyala.tablet.files.transaction_ops import BUSY, TransactionOutcome
from nyala.wire import methods, status
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as txn
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.master.support.ddl_operations import with_table
from tests.unit.master.support.master_helpers import server_info

OPTIONS = Options(client_result_ttl_s=10, txn_prepare_timeout_ms=500)
Outcome = TransactionOutcome


@dataclass
class ScriptedTablet:
    """A tablet with a whole stage of every transaction.

    Attributes:
        leader: server that answers as its leader.
        refuses: PREPARE is answered GONE.
        busy_until_us: until then PREPARE and CHECK are refused, as other requests go first.
        lost: RESOLVE is answered GONE: an unsafe recovery has lost the PREPARE.
        silent: names of methods to which its leader does not answer.
        held: names of methods whose answer waits for the event.
        prepared: attempt of each prepared transaction.
        ended: commit times.
        ahead: what its prepare time is ahead of the clock.
    """

    leader: str = "a"
    refuses: bool = False
    busy_until_us: int = 0
    lost: bool = False
    silent: set[str] = field(default_factory=set)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    prepared: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    ended: dict[bytes, int] = field(default_factory=dict)
    dropped: set[bytes] = field(default_factory=set)
    ahead: int = 0


class Rows:
    """Rows in memory; `replicate` and `confirm` can be held and refused."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], CatalogRow] = {}
        self.batches: list[list[CatalogRow]] = []
        self.confirmed = 0
        self.refusal: Exception | None = None
        self.failure: Exception | None = None
        self.hold: asyncio.Event | None = None

    async def replicate(self, rows: Any) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        self.batches.append(list(rows))
        for row in rows:
            if row.removed:
                self.rows.pop((row.kind, row.id), None)
            else:
                self.rows[row.kind, row.id] = row

    async def confirm(self) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.confirmed += 1
        return 1

    async def find(self, kind: str, row: str) -> CatalogRow | None:
        return self.rows.get((kind, row))

    async def keys(self, after: str, limit: int) -> list[CatalogRow]:
        found = sorted(i for kind, i in self.rows if kind == "txn_key" and i > after)
        return [self.rows["txn_key", i] for i in found[:limit]]


class Term:
    """One term of a coordinator, over a table of two tablets whose leader is server a.

    Attributes:
        sent: (method, server, tablets) of each request, and "row" for each batch of the catalog.
    """

    def __init__(
        self, loop: SimLoop, rows: Rows, catalog: Catalog, number: int = 1, **more: Any
    ) -> None:
        self.rows, self.catalog, self.loop = rows, catalog, loop
        self.tablets = {t.id: ScriptedTablet() for t in catalog.tablets()}
        self.sent: list[tuple[str, str, tuple[str, ...]]] = []
        self.requests: list[Any] = []
        self.options = more.get("options", OPTIONS)
        tasks: Any = SimTasks(loop, seeded(number, "t"))
        outside: Any = self
        self.env = Env(SimClock(loop), seeded(number, "env"), outside, tasks, outside)
        self.clock = HybridClock(self.env.clock)
        self.servers = TServers(10**15)
        for name in "abc":
            self.beat(name)
        self.dropped_us = 0
        self.memory = LeaderMemory(number, catalog, self, self, Locks(), self._stop)
        self.transactions = TransactionsOfTerm(
            self.env, self.memory, rows, self.servers, self.options,
            CoordinatorContext(self.clock, lambda: more.get("masters", ())),
        )  # fmt: skip
        self.coordinator = self.transactions.coordinator

    def beat(self, name: str, protocol: int = TRANSACTIONS) -> None:
        info = server_info(name)
        info.protocol_version, info.version = protocol, f"0.{protocol}"
        beat = pb.HeartbeatRequest(server=info, full=True, report_sequence=1)
        self.servers.record_heartbeat(beat, self.env.clock.monotonic_us())

    def _stop(self) -> None:
        self.transactions.stop()

    async def replicate(self, rows: Any) -> None:
        self.sent.append(("row", "", ()))
        await self.rows.replicate(rows)

    def enqueue(self, actions: Any) -> None: ...

    # ---- the tablets -------------------------------------------------------------------------------

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        name, server = method.path.rpartition("/")[2], address.partition(":")[0]
        named = getattr(request, "participants", None)
        ids = [p.tablet_id for p in named] if named is not None else list(request.tablet_ids)
        self.sent.append((name, server, tuple(ids)))
        self.requests.append(request)
        asked = [self.tablets[TabletId(t)] for t in ids]
        if any(name in it.silent and it.leader == server for it in asked):
            await self.env.tasks.sleep_ms(timeout_ms)
            raise Unavailable(f"{server} does not answer")
        for tablet in ids:
            if held := self.tablets[TabletId(tablet)].held.get(name):
                await held.wait()
        return txn.TxnTabletResponse(results=[self._one(t, server, method, request) for t in ids])

    def _one(self, tablet: str, server: str, method: Any, request: Any) -> txn.TxnTabletResult:
        it = self.tablets[TabletId(tablet)]
        if it.leader != server:
            error = NotLeader("elsewhere", {"address": f"{it.leader}:1"})
            return txn.TxnTabletResult(tablet_id=tablet, error=status.to_proto(error))
        transaction = getattr(request, "transaction", b"")
        outcome, time = Outcome.DONE, 0
        now_us = self.env.clock.monotonic_us()
        if now_us < it.busy_until_us and method in (methods.TXN_PREPARE, methods.TXN_CHECK):
            busy = pb.RowError(code=BUSY, message="others go first")
            outcome = Outcome.REFUSED
            return txn.TxnTabletResult(tablet_id=tablet, outcome=outcome, errors=[busy])
        if method is methods.TXN_PREPARE:
            if it.refuses or transaction in it.dropped:
                outcome = Outcome.GONE
            else:
                a = request.attempt
                it.prepared[transaction] = (a.incarnation, a.term, a.number)
                time = self.clock.now() + it.ahead
        elif method is methods.TXN_UNPREPARE:
            it.prepared.pop(transaction, None)
        elif method is methods.TXN_DROP:
            outcome = Outcome.PREPARED if transaction in it.prepared else Outcome.GONE
            if outcome is Outcome.GONE:
                it.dropped.add(transaction)
        elif method is methods.TXN_RESOLVE:
            outcome = Outcome.ENDED if transaction in it.prepared else Outcome.UNKNOWN
            if it.lost:
                outcome = Outcome.GONE
            if outcome is Outcome.ENDED:
                it.ended[transaction] = request.at
        return txn.TxnTabletResult(tablet_id=tablet, outcome=outcome, time=time)

    # ---- a client ----------------------------------------------------------------------------------

    def request(self, number: int = 1, key: txn.TxnKey | None = None, **more: Any) -> Any:
        """Return a commit of all tablets."""
        request = txn.TxnCommitRequest(
            transaction=number.to_bytes(16, "big"), key=key, since=more.get("since", self.clock.now()),
            timeout_ms=more.get("timeout_ms", 2_000),
        )  # fmt: skip
        for tablet in self.tablets:
            participant = request.participants.add(tablet_id=tablet)
            participant.parts.add(part="-", batches=1, crc=1)
        return request

    async def commit(self, number: int = 1, key: txn.TxnKey | None = None, **more: Any) -> Any:
        user = more.pop("user", ANYONE)
        return await self.coordinator.commit(self.request(number, key, **more), user)

    async def abort(self, number: int = 1, **more: Any) -> Any:
        asked = self.request(number, **more)
        return await self.coordinator.abort(
            txn.TxnAbortRequest(
                transaction=asked.transaction,
                participants=asked.participants,
                since=asked.since,
                timeout_ms=asked.timeout_ms,
            )
        )

    def methods_sent(self) -> list[str]:
        return [name for name, _, _ in self.sent]

    def drop_table(self) -> None:
        """Publish the drop of the table."""
        operation = drop_table.operation(pb.DropTableRequest(name="t"), 1)
        self.catalog.publish(self.catalog.draft(operation.plan(self.catalog)))


def with_term(work: Any, **more: Any) -> Any:
    """Run `work(term)` on virtual time."""

    async def main(loop: SimLoop) -> Any:
        term = Term(loop, Rows(), with_table(), **more)
        return await work(term)

    return run(main, max_time_s=600)
