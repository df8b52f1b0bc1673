"""The masters' catalog after many decisions of transactions: the leader's own code over a real tablet.

Commits, their removal after `client_result_ttl_s`, that of keys after `job_ledger_days`, flushes and
compactions are those of a master; the times between them are simulated.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.master_catalog import (
    BATCH_BYTES,
    TERM,
    TIMEOUT_MS,
    Alone,
    Nobody,
    request,
    resident_kb,
    server_info,
)
from benchmarks.report import Report, disk_bytes
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import CommittedOperation, OpId, TabletId
from nyala.common.options import Options
from nyala.env.env import system_env
from nyala.master.catalog import sys_catalog
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.maintenance import CatalogMaintenance
from nyala.master.catalog.records.rows import KIND_KEY
from nyala.master.catalog.sys_catalog import SysCatalog
from nyala.master.ddl import create_table, operation
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.operation import LeaderMemory
from nyala.master.transactions import decision
from nyala.master.transactions.attempts import TransactionAttempts
from nyala.master.transactions.keys import ANYONE, KeyUse
from nyala.master.transactions.upkeep import DecisionUpkeep
from nyala.replica.status import State
from nyala.storage.flush_point import StoredFlushPoint
from nyala.tablet.tablet import Tablet
from nyala.wire.proto import transactions_pb2 as txn

DECISIONS, TABLETS = 100_000, 8
PER_S = 100
"""Decisions in a simulated second."""
PART = 10
"""The first and the last of so many parts of the decisions are compared."""
TIMES_FIRST = 1.5
FILES_MB = 64
DAY_S = 86_400


class SimulatedClock:
    """A hybrid clock that the benchmark advances."""

    def __init__(self) -> None:
        self.us = 1_700_000_000_000_000
        self._last = 0

    def now(self) -> int:
        """Return a new hybrid time."""
        self._last = max(self._last + 1, from_micros(self.us))
        return self._last

    async def advance_past(self, stamp: int) -> None:
        """Advance past a hybrid time."""
        self._last = max(self._last, stamp)


class Group(Alone):
    """A group of one member whose entries have times of the clock, with the maintenance of a replica."""

    state = State.RUNNING

    def __init__(self, tablet: Tablet, clock: SimulatedClock) -> None:
        super().__init__(tablet)
        self.clock = clock
        self.machine = tablet
        self.applied_stamp = 0
        self.files = 0
        self.runs = {"flushes": 0, "compactions": 0}

    async def write(self, payload: bytes, **_: Any) -> Any:
        """Apply a batch."""
        self.payloads.append(len(payload))
        self.applied_stamp = self.clock.now()
        entry = CommittedOperation(OpId(TERM, len(self.payloads)), self.applied_stamp, payload)
        return _Applied(self.tablet.apply([entry])[0])

    async def read_point(self, _at: int | None, _timeout_ms: int) -> int:
        """Return the time of the last batch."""
        return self.applied_stamp

    def status(self) -> "Group":
        """Return what has the time of the last batch."""
        return self

    async def flush(self) -> bool:
        """Flush what is in memory."""
        at = StoredFlushPoint(OpId(TERM, len(self.payloads)), self.applied_stamp, b"")
        return self._built(self.tablet.prepare_flush(at), "flushes")

    async def maintain(self, prepare: Callable[[], Any]) -> bool:
        """Run a compaction."""
        return self._built(prepare(), "compactions")

    def _built(self, build: Any, kind: str) -> bool:
        if build is None:
            return False
        build()()
        self.runs[kind] += 1
        return True


class _Applied:
    def __init__(self, result: bytes) -> None:
        self.result = result


class _AllResolved:
    """Every decision has its resolve in all tablets."""

    def earliest(self) -> int | None:
        return None

    def is_resolved(self, _transaction: bytes) -> bool:
        return True

    def forget(self, _transaction: bytes) -> None:
        pass


class Master:
    """A leader master's part in transactions, without tablets.

    Args:
        folder: of its catalog.
        options: of the masters.
    """

    def __init__(self, folder: str, options: Options) -> None:
        self.env = system_env(None)  # type: ignore[arg-type]
        self.folder = folder
        self.clock = SimulatedClock()
        self.tablet = Tablet.create(self.env.files, folder, sys_catalog.tablet_info())
        self.group = Group(self.tablet, self.clock)
        self.rows = SysCatalog(
            self.env, self.group, self.tablet,
            client_id=bytes(16), timeout_ms=TIMEOUT_MS, max_batch_bytes=BATCH_BYTES,
        )  # fmt: skip
        self.catalog = Catalog()
        self.attempts = TransactionAttempts(1, TERM)
        self.memory = LeaderMemory(TERM, self.catalog, self.rows, Nobody(), Locks(), lambda: None)
        self.upkeep = DecisionUpkeep(
            self.env, self.memory, self.rows, self.attempts, _AllResolved(), self.clock, options,
        )  # fmt: skip
        self.maintenance = CatalogMaintenance(self.env, lambda: None, options)
        self.most_bytes = self.seconds = 0
        self.tablets: tuple[TabletId, ...] = ()

    async def create(self) -> None:
        """Create a table, whose tablets are the participants."""
        rng = Random(7)
        infos = [server_info(f"{rng.getrandbits(128):032x}", n) for n in range(3)]
        inputs = PlanInputs(infos, rng, 1, 1000, 3)
        await operation.run(create_table.operation(request("t", TABLETS), inputs), self.memory)
        self.tablets = tuple(t.id for t in self.catalog.tablets())

    async def commit(self, number: int) -> None:
        """Decide a transaction: every second one has the key of a job, every tenth one that of a stream."""
        key = None
        if number % 10 == 1:
            key = txn.TxnKey(name="stream", query="query", epoch=number // 10)
        elif number % 2 == 0:
            key = txn.TxnKey(name=f"job {number}")
        transaction = number.to_bytes(16, "big")
        use = None if key is None else KeyUse(key, ANYONE, transaction)
        if key is not None:
            await self.rows.find(KIND_KEY, key.name)
        attempted = self.attempts.begin(transaction, self.tablets, use, "", 0)
        wanted = decision.decide(attempted, self.clock.now(), self.clock.now, 1 << 60)
        await operation.run(wanted, self.memory)
        self.attempts.end(attempted)

    async def second(self) -> None:
        """Let a simulated second pass."""
        self.clock.us += 1_000_000
        self.seconds += 1
        await self.upkeep.remove_decisions()
        if self.seconds % 2 == 0:
            await self.maintain()
        if self.seconds % 60 == 0:
            await self.upkeep.remove_keys()

    async def maintain(self) -> None:
        """Run the flushes and compactions that are due."""
        await self.maintenance.run_once(self.group)  # type: ignore[arg-type]
        self.most_bytes = max(self.most_bytes, disk_bytes(self.folder))

    async def settle(self, seconds: int) -> None:
        """Let time pass without a transaction, and let everything that is due be removed and merged."""
        self.clock.us += seconds * 1_000_000
        kept, rounds = -1, 0
        while rounds < 3:
            now = len(self.catalog.decisions.rows) + await self.keys()
            rounds, kept = (rounds + 1, kept) if now == kept else (0, now)
            await self.upkeep.remove_decisions()
            await self.upkeep.remove_keys()
            self.clock.us += 120_000_000  # the history of the catalog ends
            await self.group.flush()
            await self.maintain()

    async def keys(self) -> int:
        """Return the number of keys."""
        return len(await self.rows.keys("", 1 << 30))


async def measure(report: Report, count: int = DECISIONS) -> None:
    """Add the figures of a catalog with so many decisions.

    Args:
        report: of the benchmark.
        count: number of decisions.
    """
    options = Options()
    with TemporaryDirectory(prefix="nyala-bench-decisions-") as folder:
        master = Master(str(Path(folder) / "data"), options)
        await master.create()
        each, before_kb = count // PART, resident_kb()
        spent: list[float] = []
        for part in range(PART):
            began = time.process_time()
            for number in range(part * each, (part + 1) * each):
                await master.commit(number)
                if number % PER_S == PER_S - 1:
                    await master.second()
            spent.append((time.process_time() - began) / each * 1e6)
        _added(report, master, f"{count:,} decisions at {PER_S}/s", spent, before_kb)
        began = time.perf_counter()
        found = Catalog()
        found.load(await master.rows.rows())
        report.add(
            "a new leader's memory from the rows", time.perf_counter() - began, "s",
            f"{len(found.decisions.rows):,} decisions",
        )  # fmt: skip
        show = partial(_left, report, master)
        await master.settle(2 * options.client_result_ttl_s)
        await show("their files once the decisions are removed")
        assert not master.catalog.decisions.rows, "decisions are left after their time"
        await master.settle((options.job_ledger_days + 1) * DAY_S)
        await show("their files once the keys of jobs are removed")
        left = await master.keys()
        assert left == 1, f"{left} keys are left, not that of the stream alone"
        master.tablet.close()


def _added(report: Report, master: Master, what: str, spent: list[float], before_kb: int) -> None:
    """Add what the decisions took and left.

    Args:
        report: of the benchmark.
        master: which has decided them.
        what: they are.
        spent: microseconds of CPU of a decision, in each part of them.
        before_kb: resident memory before.
    """
    first, last = spent[0], spent[-1]
    runs = master.group.runs
    kept = len(master.catalog.decisions.rows)
    report.add(
        f"{what}: CPU of one, last tenth", last, "us",
        f"{last / first:.2f}x of the first tenth", at_most=TIMES_FIRST * first,
    )  # fmt: skip
    report.add(
        "the catalog's files, at most", master.most_bytes / 1e6, "MB",
        f"{runs['flushes']} flushes, {runs['compactions']} compactions", at_most=FILES_MB,
    )  # fmt: skip
    memory_mb = (resident_kb() - before_kb) / 1000
    report.add("the leader's memory", memory_mb, "MB", f"{kept:,} decisions are kept")


async def _left(report: Report, master: Master, what: str) -> None:
    kept, keys = len(master.catalog.decisions.rows), await master.keys()
    size = disk_bytes(master.folder) / 1e6
    report.add(what, size, "MB", f"{kept} decisions, {keys:,} keys are left")
