"""Deletes by condition of real clients: tablets that they cover, and ranges that change before the commit."""

from typing import Any

import pytest

from nyala.client.alter import AlterSteps
from nyala.client.transactions.keys import options_of
from nyala.client.transactions.staged_parts import OWN_PART, StagedParts
from nyala.client.transactions.staged_writes import stage_delete
from nyala.common.errors import TransactionDenied
from nyala.common.partitioning.partition_spec import Partition, Range
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.systems.table_client import rows_of
from tests.sim.transactions.accounts import balances
from tests.sim.world.loop import SimLoop, run

KEYS = range(40)


class Ranges:
    """A cluster with a table of two ranges of 10 keys, and its client."""

    def __init__(self, cluster: SimCluster, core: Any, table: Any) -> None:
        self.cluster, self.core, self.table = cluster, core, table
        self.process = cluster.clients[-1]

    async def on(self, work: Any, *args: Any) -> Any:
        return await self.cluster.run(self.process, work, *args)

    async def begin(self, where: str) -> StagedParts:
        """Begin a transaction with a delete by condition."""
        parts = StagedParts(self.core, key=options_of({}).key)
        await parts.begin(600)
        await stage_delete(self.core, self.table, where, parts.part(OWN_PART))
        return parts

    async def commit(self, parts: StagedParts) -> Any:
        try:
            return await parts.coordination.commit(parts.named())
        finally:
            parts.end("over")

    async def add_range(self, low: int, high: int) -> None:
        steps = AlterSteps(self.table)
        steps.add_range(low, high)
        await self.core.ddl.alter_table(self.table, steps.steps)

    async def write(self, *keys: int) -> None:
        session = self.core.session
        done = await session.write(
            self.table, pb.UPSERT, rows_of(list(keys), [1] * len(keys)), all_or_nothing=False,
            timeout_ms=20_000,
        )  # fmt: skip
        assert not done.errors, done.errors

    async def rows(self) -> set[int]:
        return set(await balances(self.core, self.table, KEYS))


def with_ranges(work: Any) -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, 5)
        core = await cluster.start()
        spec = Partition(range=Range(["k"], [(0, 10), (10, 20)]))
        made = await cluster.run(
            cluster.clients[-1], core.ddl.create_table, "t", SCHEMA, spec, 3, {}
        )
        await work(Ranges(cluster, core, made))
        cluster.look()

    run(main, max_time_s=400)


def test_condition_is_staged_in_the_tablets_that_may_have_its_rows():
    async def work(told: Ranges) -> None:
        await told.on(told.write, 1, 5, 11)
        parts = await told.on(told.begin, "k = 5 or k = 7")
        [part] = parts.named()
        assert [t.batches for t in part.tablets] == [1]
        await told.on(told.write, 7)
        await told.on(told.commit, parts)
        assert await told.on(told.rows) == {1, 11}

    with_ranges(work)


def test_commit_is_denied_if_ranges_were_added_after_the_condition_was_staged():
    async def work(told: Ranges) -> None:
        await told.on(told.write, 1, 11)
        parts = await told.on(told.begin, "k >= 100")  # in no tablet, so no tablet has a stage
        await told.on(told.add_range, 20, 30)
        with pytest.raises(TransactionDenied, match="ranges of table 't' were added or dropped"):
            await told.on(told.commit, parts)
        parts = await told.on(told.begin, "true")
        await told.on(told.write, 25)
        await told.on(told.commit, parts)
        assert await told.on(told.rows) == set()

    with_ranges(work)
