"""Transactions of real clients, masters and tablet servers under crashes: all rows at one time, or none."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nyala.common.errors import NyalaError
from tests.enough import enough
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.systems.cluster import SimCluster
from tests.sim.transactions.accounts import Auditor, Teller, balances
from tests.sim.world.loop import SimLoop, run, seeded

Work = Callable[["Bank"], Awaitable[None]]


class Bank:
    """A cluster with a table of accounts, and clients that use it."""

    def __init__(self, cluster: SimCluster, table: Any) -> None:
        self.cluster, self.table = cluster, table
        self.tellers: list[Teller] = []
        self.auditors: list[Auditor] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def client(self) -> tuple[Any, Any, Any]:
        core = self.cluster.client()
        process = self.cluster.clients[-1]
        opened = await self.cluster.run(process, core.open_table, "t")
        return core, process, opened

    async def open(self, tellers: int) -> None:
        for number in range(tellers):
            core, process, opened = await self.client()
            teller = Teller(core, opened, number, seeded(self.cluster.seed, "teller", number))
            await self.cluster.run(process, teller.open_accounts)
            self.tellers.append(teller)

    async def start(self, transfers: int) -> None:
        core, process, opened = await self.client()
        auditor = Auditor(core, opened, self.tellers)
        self.auditors.append(auditor)
        self._tasks.append(process.run(auditor.run))
        for number, teller in enumerate(self.tellers):
            owner = self.cluster.clients[number + 1]
            self._tasks.append(owner.run(teller.run, transfers))

    async def finish(self) -> int:
        """Wait for the tellers; then every snapshot must be readable and have the same totals."""
        await asyncio.gather(*self._tasks[1:])
        for auditor in self.auditors:
            auditor.stopped = True
        core, process, opened = await self.client()
        last = Auditor(core, opened, self.tellers)

        async def read() -> None:
            for _ in range(100):
                try:
                    await last.check()
                    return
                except NyalaError:
                    await core.env.tasks.sleep_ms(500)
            raise AssertionError("no snapshot could be read after the faults")

        await self.cluster.run(process, read)
        for teller in self.tellers:
            found = await self.cluster.run(process, balances, core, opened, teller.accounts)
            assert found == teller.balances, (
                "an acknowledged transfer is lost, or another one took effect"
            )
        self.cluster.look()
        return sum(t.committed for t in self.tellers)


def with_bank(work: Work, seed: int = 5, tellers: int = 2, max_time_s: float = 400) -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, seed)
        core = await cluster.start()
        table = await cluster.create_table(core, "t", tablets=4)
        bank = Bank(cluster, table)
        await bank.open(tellers)
        await work(bank)
        cluster.look()

    run(main, max_time_s=max_time_s)


def test_total_is_the_same_in_every_snapshot():
    async def work(bank: Bank) -> None:
        await bank.start(4)
        assert await bank.finish() == 4
        assert bank.auditors[0].snapshots > 0

    with_bank(work, tellers=1)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_total_is_the_same_while_leader_masters_and_tablet_servers_are_killed(seed: int):
    async def work(bank: Bank) -> None:
        cluster, rng = bank.cluster, seeded(seed, "kills")
        await bank.start(40)
        for _ in range(6):
            await cluster.loop.delay(rng.randrange(200_000, 1_500_000))
            leader = cluster.leader_master()
            victim = rng.choice([*cluster.tservers, *([leader] if leader else [])])
            victim.kill()
            await cluster.loop.delay(rng.randrange(200_000, 3_000_000))
            victim.restart()
        done = await bank.finish()
        enough(done > 20, f"{done} transfers")
        enough(bank.auditors[0].snapshots > 5, f"{bank.auditors[0].snapshots} snapshots")

    with_bank(work, seed=seed)


FAULTS = Swarm(
    loss_rate=0.01,
    duplicate_rate=0.03,
    straggler_rate=0.02,
    crash_s=2,
    down_s=0.4,
    power_cut_rate=0.5,
    partition_s=3,
    partition_length_s=0.7,
    pause_s=4,
    pause_length_s=0.5,
    skew_ms=300,
    slow_rate=0.02,
    transfer_s=1,
)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20, 28))
def test_total_is_the_same_under_crashes_partitions_pauses_and_skewed_clocks(seed: int):
    async def work(bank: Bank) -> None:
        cluster = bank.cluster
        hands = seeded(seed, "transfers")

        async def transfer() -> None:
            cluster.transfer(hands)

        await bank.start(1_000)
        names = [p.name for p in (*cluster.servers, *cluster.clients)]
        nemesis = Nemesis(
            cluster.network, cluster.servers, names, FAULTS, seeded(seed, "nemesis"), cluster.leader,
            extra=[(FAULTS.transfer_s, transfer)],
        )  # fmt: skip
        nemesis.start()
        await cluster.loop.delay(15e6)
        await nemesis.heal()
        for teller in bank.tellers:
            teller.stopped = True
        done = await bank.finish()
        enough(done > 10, f"{done} transfers")

    with_bank(work, seed=seed, tellers=3)
