"""One random run of transfers between accounts: transactions under faults, reads at any time, one judge.

Each teller owns some accounts and knows their balances, so that its blind writes keep the sum. A run records
every commit and every answered read, and the judge compares each read with the commits up to its time: also
with those that were decided after it was answered.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import TabletId
from nyala.tablet.files.transaction_ops import TransactionOutcome
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as tb
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.transactions.changes import ChangeRates, TableChanges
from tests.sim.transactions.script import Decisions, script
from tests.sim.transactions.staged_table import StagedTable
from tests.sim.world.loop import SimLoop, run, seeded

TELLERS, ACCOUNTS, BALANCE = 3, 4, 100
FIRST_OTHER_KEY = 1000
"""Keys from here on are written outside of transactions."""
ATTEMPTS, PAUSE_MS = 3, 50
NO_CHANGES = ChangeRates()


@dataclass(frozen=True, slots=True)
class Seen:
    """An answered read of one tablet: the time, and the balances."""

    tablet: TabletId
    kind: str
    at: int
    rows: dict[int, int]


@dataclass(slots=True)
class BankHistory:
    """All that happened in a run.

    Attributes:
        commits: commit time and balances of each decision, in the order of the times.
        reads: answered reads.
        counts: number of events by kind.
    """

    commits: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    reads: list[Seen] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        """Count an event."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def balances(self, at: int) -> dict[int, int]:
        """Return the balances at a time."""
        found: dict[int, int] = {}
        for time, rows in self.commits:
            if time > at:
                break
            found |= rows
        return found

    def check(self, keys: dict[TabletId, list[int]]) -> None:
        """Check every read.

        Args:
            keys: accounts of each tablet.

        Raises:
            AssertionError: a read lacks rows of a commit, or has rows too early.
        """
        assert self.commits == sorted(self.commits, key=lambda c: c[0]), "commit times grow"
        for time, _ in self.commits:
            balances = self.balances(time)
            total, begun = sum(balances.values()), len(balances) // ACCOUNTS
            assert total == begun * ACCOUNTS * BALANCE, f"{total} at {time}"
        for read in self.reads:
            every = self.balances(read.at)
            expected = {k: every[k] for k in keys.get(read.tablet, ()) if k in every}
            assert read.rows == expected, f"{read}: expected {expected}"


class Bank:
    """Tellers, readers and a writer of one run.

    Args:
        table: the table.
        decisions: the scripted coordinator.
        rng: choices.
    """

    def __init__(self, table: StagedTable, decisions: Decisions, rng: random.Random) -> None:
        self.table = table
        self.history = BankHistory()
        self.stopped = False
        self._decisions = decisions
        self._rng = rng
        self._times = [0]
        self._tasks = table.core.env.tasks
        self.keys = table.by_tablet(range(TELLERS * ACCOUNTS))

    # ---- tellers -----------------------------------------------------------------------------------

    async def teller(self, number: int) -> None:
        """Transfer between the accounts of one teller until the run is stopped."""
        mine = range(number * ACCOUNTS, (number + 1) * ACCOUNTS)
        balances = dict.fromkeys(mine, BALANCE)
        while not await self._transaction(dict(balances), "commit"):
            await self._tasks.sleep_ms(100)
        while not self.stopped:
            one, two = self._rng.sample(mine, 2)
            amount = self._rng.randint(1, 20)
            changed = {one: balances[one] - amount, two: balances[two] + amount}
            fates = ["commit"] * 4 + ["lost before", "lost after", "abort"]
            if await self._transaction(changed, self._rng.choice(fates)):
                balances |= changed
            await self._tasks.sleep_ms(self._rng.randint(1, 60))

    async def _transaction(self, rows: dict[int, int], fate: str) -> bool:
        """Run one transaction; return whether it is committed."""
        transaction = self._rng.randbytes(16)
        try:
            tablets = await self.table.stage(transaction, rows)
        except NyalaError:
            self.history.count("not staged")
            return False
        for _ in range(1 if fate == "abort" else ATTEMPTS):
            at = await self._attempt(transaction, tablets, rows, fate)
            if at is not None:
                self.history.count(fate)
                if fate != "lost after":
                    resolve = partial(self.table.resolve, transaction=transaction, at=at)
                    await self._each(tablets, resolve)
                return True
            if fate == "lost before":
                break  # the tablets learn by themselves that there is no decision
            await self._tasks.sleep_ms(PAUSE_MS)
        await self._each(tablets, lambda t: self.table.drop(t, transaction))
        return False

    async def _attempt(
        self, transaction: bytes, tablets: list[TabletId], rows: dict[int, int], fate: str
    ) -> int | None:
        """Prepare all tablets and decide; return the commit time, or None if it is given up."""
        attempt = self._decisions.attempt()
        self._decisions.trying.add(transaction)
        found = await self._each(tablets, lambda t: self.table.prepare(t, transaction, attempt))
        times = [int(r.time) for r in found if r and r.outcome == TransactionOutcome.DONE]
        if len(times) == len(tablets) and fate not in ("abort", "lost before"):
            at = self._decisions.decide(transaction, [*times, self._coordinator_time()])
            self.history.commits.append((at, rows))
            self._times += [*times, at]
            return at
        self._decisions.trying.discard(transaction)
        if fate != "lost before":
            bound = self._decisions.attempt()
            await self._each(tablets, lambda t: self.table.unprepare(t, transaction, bound))
        self.history.count("given up")
        return None

    def _coordinator_time(self) -> int:
        """Return the time of a coordinator whose clock may be ahead of the tablets'."""
        skew_us = self._rng.choice([-1_000_000, 0, self._rng.randint(0, 400_000)])
        return from_micros(self.table.core.env.clock.wall_us() + skew_us)

    async def _each(
        self,
        tablets: list[TabletId],
        order: Callable[[TabletId], Awaitable[tb.TxnTabletResult]],
    ) -> list[tb.TxnTabletResult | None]:
        """Send an order to each tablet; return the results, None for errors."""

        async def one(tablet: TabletId) -> tb.TxnTabletResult | None:
            try:
                return await order(tablet)
            except NyalaError:
                return None

        return list(await asyncio.gather(*(one(t) for t in tablets)))

    # ---- others ------------------------------------------------------------------------------------

    async def reader(self) -> None:
        """Read tablets until the run is stopped: at the latest time, near a commit, or at a follower."""
        while not self.stopped:
            tablet = self._rng.choice(self.table.tablets)
            kind = self._rng.choice(["latest", "snapshot", "stale"])
            await self.read(tablet, kind)
            await self._tasks.sleep_ms(self._rng.randint(1, 20))

    async def read(self, tablet: TabletId, kind: str) -> None:
        """Read a tablet once, and record the answer if there is one."""
        address, token = "", dict[str, int]()
        if kind == "snapshot":
            near = self._rng.choice(self._times[-20:]) + self._rng.choice([-1, 0, 1, 1000])
            token = {"at": max(1, near)}
        elif kind == "stale":
            address = self._rng.choice(self.table.cluster.tservers).address
            token = {"mode": pb.STALE, "max_age_ms": 5_000}
        try:
            at, rows = await self.table.scan(tablet, address, **token)
        except NyalaError as err:
            self.history.count(f"read: {err.code}")
            return
        self.history.count(kind)
        balances = {k: v for k, v in rows.items() if k < FIRST_OTHER_KEY}
        self.history.reads.append(Seen(tablet, kind, at, balances))

    async def writer(self) -> None:
        """Write other rows of both tablets, outside of transactions."""
        number = 0
        while not self.stopped:
            number += 1
            for tablet, keys in self.table.by_tablet(
                range(FIRST_OTHER_KEY, FIRST_OTHER_KEY + 8)
            ).items():
                header = self.table.header(tablet, b"w" * 16, number, timeout_ms=2_000)
                try:
                    result = await self.table.put(header, dict.fromkeys(keys, number))
                    self.history.count("write" if not result.HasField("error") else "no write")
                except NyalaError:
                    self.history.count("no write")
            await self._tasks.sleep_ms(self._rng.randint(5, 40))


async def _main(
    loop: SimLoop, seed: int, swarm: Swarm, seconds: float, rates: ChangeRates
) -> BankHistory:
    servers = 4 if rates.move_s else 3
    cluster, decisions = SimCluster(loop, seed, tservers=servers, options=OPTIONS), Decisions()
    script(cluster, decisions)
    core = await cluster.start()
    table = StagedTable(cluster, core, await cluster.create_table(core, "bank", tablets=2))
    bank = Bank(table, decisions, seeded(seed, "bank"))
    work = [table.process.run(bank.teller, n) for n in range(TELLERS)]
    work += [table.process.run(bank.reader) for _ in range(3)]
    work.append(table.process.run(bank.writer))
    names = [p.name for p in (*cluster.servers, *cluster.clients)]
    hands = seeded(seed, "transfers")

    async def transfer() -> None:
        cluster.transfer(hands)

    changes = TableChanges(
        cluster, table.process, core, table.table, seeded(seed, "changes of the table")
    )
    nemesis = Nemesis(
        cluster.network, cluster.servers, names, swarm, seeded(seed, "nemesis"), cluster.leader,
        extra=[
            (swarm.transfer_s, transfer),
            (rates.move_s, changes.move),
            (rates.alter_s, changes.alter),
        ],
    )  # fmt: skip
    nemesis.start()
    await loop.delay(seconds * 1e6)
    await nemesis.heal()
    bank.stopped = True
    bank.history.counts |= changes.done
    await asyncio.gather(*work)
    decisions.trying.clear()
    await _settle(cluster, bank)
    bank.history.check(bank.keys)
    cluster.look()
    return bank.history


async def _settle(cluster: SimCluster, bank: Bank) -> None:
    """Wait until nothing is prepared, and read every tablet at every server."""
    tablets = bank.table.tablets

    def undecided() -> int:
        leaders = [(t, cluster.leader_of(t)) for t in tablets]
        if any(p is None for _, p in leaders):
            return -1
        return sum(
            len(p.server.host.get(t).transactions.prepared) for t, p in leaders if p is not None
        )

    await cluster.until(lambda: undecided() == 0, "every transaction has its outcome", 60)
    last = bank.history.commits[-1][0] if bank.history.commits else 0

    async def finish() -> None:
        for tablet in tablets:
            for kind in ("latest", "stale", "stale", "stale"):
                await bank.read(tablet, kind)

    latest = [r for r in bank.history.reads if r.kind == "latest" and r.at > last]
    for _ in range(50):
        await cluster.run(bank.table.process, finish)
        latest = [r for r in bank.history.reads if r.kind == "latest" and r.at > last]
        if {r.tablet for r in latest} == set(tablets):
            return
        await cluster.loop.delay(200_000)
    raise AssertionError("the tablets cannot be read after the faults")


def run_bank(
    seed: int, swarm: Swarm, seconds: float, rates: ChangeRates = NO_CHANGES
) -> BankHistory:
    """Run transfers under a swarm's faults, check the history, and return it.

    Args:
        seed: of all choices.
        swarm: faults of the tablet servers and of the network.
        seconds: virtual time with faults.
        rates: how often the table is changed.
    """
    histories: list[BankHistory] = []

    async def main(loop: SimLoop) -> None:
        histories.append(await _main(loop, seed, swarm, seconds, rates))

    run(main)
    return histories[0]
