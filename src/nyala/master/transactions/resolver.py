"""Resolves decisions: RESOLVE is sent to each participant until it has committed one. Rule K.

Level-triggered: a new leader master begins with the decisions of the catalog above the mark `resolved`. A
participant that was dropped counts as resolved (rule D), and so does one that lost its PREPARE by an unsafe
recovery. Requests wait for turns at their server only, so a server that is silent delays no decision that
does not concern it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from nyala.common.errors import Unavailable
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.master.catalog.catalog import Catalog
from nyala.master.transactions.decision import gone
from nyala.master.transactions.tablet_calls import TRY_MS, TabletCalls
from nyala.tablet.files.transaction_ops import TransactionOutcome
from nyala.wire import methods
from nyala.wire.backoff import Backoff
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as txn

log = logging.getLogger(__name__)

CONCURRENT = 64
"""Maximum number of requests to one server at a time."""


class Resolver:
    """Resolves of one coordinator in one term. On the loop only.

    Args:
        env: tasks, random source.
        catalog: catalog of this term.
        calls: sends the requests.
        options: options of this master.
        fence: of the term in which this master leads.
    """

    def __init__(
        self, env: Env, catalog: Catalog, calls: TabletCalls, options: Options, fence: pb.Fence
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._calls = calls
        self._options = options
        self._fence = fence
        self._left: dict[bytes, dict[TabletId, None]] = {}
        self._done: set[bytes] = set()
        self._lost: dict[bytes, list[TabletId]] = {}
        self._ends: dict[bytes, asyncio.Event] = {}
        self._turns = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(CONCURRENT))
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._stopped = False

    def start(self) -> None:
        """Begin with the decisions that an earlier leader may have left."""
        decisions = self._catalog.decisions
        for row in decisions.rows.values():
            if row.at > decisions.marks.resolved:
                self.add(row)
            else:
                self._done.add(row.transaction)

    def stop(self) -> None:
        """Send nothing more; the next leader begins again."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        for end in self._ends.values():
            end.set()

    def add(self, row: cat.DecisionRecord) -> None:
        """Begin to resolve a decision whose row is committed, unless it was begun."""
        known = row.transaction in self._done or row.transaction in self._left
        if self._stopped or known:
            return
        self._left[row.transaction] = dict.fromkeys(map(TabletId, row.tablet_ids))
        self._ends[row.transaction] = asyncio.Event()
        task = self._env.tasks.spawn(self._resolve(row), f"resolve {row.transaction.hex()}")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def left(self, transaction: bytes) -> list[TabletId]:
        """Return the participants that are not known to have the resolve."""
        return list(self._left.get(transaction, ()))

    def lost(self, transaction: bytes) -> list[TabletId]:
        """Return the participants that lost its rows by an unsafe recovery, as far as this leader knows."""
        return list(self._lost.get(transaction, ()))

    def is_resolved(self, transaction: bytes) -> bool:
        """Return whether every participant of a decision has its resolve."""
        return transaction in self._done

    def earliest(self) -> int | None:
        """Return the least commit time of a decision that is not resolved; None: there is none."""
        rows = self._catalog.decisions.rows
        return min((rows[t].at for t in self._left if t in rows), default=None)

    def forget(self, transaction: bytes) -> None:
        """Forget a decision whose row was removed."""
        self._done.discard(transaction)
        self._lost.pop(transaction, None)

    async def resolved(self, row: cat.DecisionRecord) -> None:
        """Wait until every participant of a decision has its resolve.

        Raises:
            Unavailable: this master stopped leading before.
        """
        self.add(row)
        end = self._ends.get(row.transaction)
        if end is not None:
            await end.wait()
        if not self.is_resolved(row.transaction):
            raise Unavailable(
                "this master stopped leading before the transaction was resolved; ask the leader master"
            )

    async def _resolve(self, row: cat.DecisionRecord) -> None:
        left = self._left[row.transaction]
        await self._send(row, list(left), left)
        del self._left[row.transaction]
        self._done.add(row.transaction)
        self._ends.pop(row.transaction).set()

    async def _send(
        self, row: cat.DecisionRecord, tablets: list[TabletId], left: dict[TabletId, None]
    ) -> None:
        """Have some participants resolve; those of each server independently of the others.

        Args:
            row: the decision.
            tablets: participants.
            left: participants without the resolve.
        """
        backoff = Backoff(self._env.random, 50, 2_000)
        while True:
            for tablet in gone(self._catalog, tuple(tablets)):
                left.pop(tablet, None)
            tablets = [t for t in tablets if t in left]
            groups = self._calls.by_server(tablets)
            if len(groups) > 1:
                await asyncio.gather(*(self._send(row, some, left) for some in groups.values()))
                return
            for address in groups:
                async with self._turns[address]:
                    if self._calls.by_server(tablets).keys() == {address}:  # still, after the wait
                        await self._try(row, tablets, left)
            if not any(t in left for t in tablets):
                return
            await self._env.tasks.sleep_ms(backoff.next_ms())

    async def _try(
        self, row: cat.DecisionRecord, tablets: list[TabletId], left: dict[TabletId, None]
    ) -> None:
        def make(some: Sequence[TabletId], timeout_ms: int) -> txn.TxnResolveRequest:
            return txn.TxnResolveRequest(
                transaction=row.transaction, at=row.at, tablet_ids=some, timeout_ms=timeout_ms,
                fence=self._fence,
            )  # fmt: skip

        limit_ms = min(self._options.txn_prepare_timeout_ms, TRY_MS)
        found = await self._calls.once(methods.TXN_RESOLVE, make, tablets, timeout_ms=limit_ms)
        for tablet, result in found.items():
            if result.HasField("error"):
                log.debug("tablet %s is not resolved yet: %s", tablet, result.error.message)
            elif result.outcome == TransactionOutcome.ENDED:
                left.pop(tablet, None)
            elif result.outcome == TransactionOutcome.GONE:
                left.pop(tablet, None)
                self._lost.setdefault(row.transaction, []).append(tablet)
                log.error(
                    "tablet %s has lost its rows of transaction %s, which is committed at %d: an unsafe "
                    "recovery left it without the PREPARE; see: nyala txn show %s",
                    tablet, row.transaction.hex(), row.at, row.transaction.hex(),
                )  # fmt: skip
            elif result.outcome == TransactionOutcome.REFUSED:
                why = "; ".join(e.message for e in result.errors)
                log.error("tablet %s cannot resolve %s: %s", tablet, row.transaction.hex(), why)
