"""A hundred crashes of the leader master during definitions: none is lost, none takes effect twice."""

import asyncio

import pytest

from nyala.client.cluster.masters import Masters
from nyala.common.errors import Retryable
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import seeded
from tests.unit.master.support.master_cluster import NAMES, with_masters
from tests.unit.master.support.master_helpers import create_request

KILLS = 100
HARDEST_US = 5_000
"""Longest time from the first message of a definition to its execution."""


class Definer:
    """A client that makes one definition after the other, and records the expected tables."""

    def __init__(self, masters, rng):
        self.finder = Masters(masters.me.env, [f"{n}:1" for n in NAMES])
        self.rng = rng
        self.tables: dict[str, str] = {}  # name by id
        self.done = 0
        self.dropped: list[str] = []

    async def next(self):
        """Define something; return once it is done."""
        self.done += 1
        operation = pb.OperationId(client=b"d" * 16, sequence=self.done)
        kind = self.rng.choice(
            ["create", "create", "rename", "drop"] if self.tables else ["create"]
        )
        if kind == "create":
            name = f"t{self.done}"
            request = create_request(name, buckets=3)
            request.operation.CopyFrom(operation)
            answer = await self.define(methods.CREATE_TABLE, request)
            assert answer.table_id not in self.tables
            self.tables[answer.table_id] = name
        elif kind == "rename":
            table_id = self.rng.choice(sorted(self.tables))
            step = pb.AlterStep(rename_table=f"r{self.done}")
            alter = pb.AlterTableRequest(id=table_id, steps=[step], operation=operation)
            await self.define(methods.ALTER_TABLE, alter)
            self.tables[table_id] = f"r{self.done}"
        else:
            table_id = self.rng.choice(sorted(self.tables))
            drop = pb.DropTableRequest(name=self.tables.pop(table_id), operation=operation)
            await self.define(methods.DROP_TABLE, drop)
            self.dropped.append(table_id)

    async def define(self, method, request):
        return await self.finder.define(method, request, timeout_ms=60_000)


async def send_heartbeats(masters):
    """Act as three tablet servers that report to every running master."""
    while True:
        for name in NAMES:
            try:
                await masters.heartbeat("a", "b", "c", among=(name,))
            except Retryable:
                continue
        await masters.loop.delay(1_000_000)


async def killed_in_between(masters, definer, rng):
    """Kill the leader during a definition; return whether the definition was still in progress."""
    leader = await masters.leader()
    work = asyncio.ensure_future(definer.next())
    await masters.loop.delay(rng.randrange(HARDEST_US))
    under_way = not work.done()
    masters.processes[leader].kill(power_cut=rng.random() < 0.5)
    await work
    masters.start(leader)
    return under_way


@pytest.mark.full
@pytest.mark.row("S0.30")
def test_definitions_survive_a_hundred_leader_crashes():
    async def work(masters):
        rng = seeded(11, "kills")
        masters.start()
        await masters.leader()
        definer, heartbeats = Definer(masters, rng), asyncio.ensure_future(send_heartbeats(masters))
        under_way = 0
        for _ in range(KILLS):
            under_way += await killed_in_between(masters, definer, rng)
        heartbeats.cancel()
        assert under_way > KILLS // 2, f"only {under_way} definitions were in progress"
        leader = await masters.leader()
        answer = await masters.ask(leader, methods.LIST_TABLES, pb.ListTablesRequest())
        assert {t.id: t.name for t in answer.tables} == definer.tables
        catalog = masters.master(leader).leading.current().catalog
        removed = [t.id for t in catalog.every_table() if not t.live]
        assert sorted(removed) == sorted(definer.dropped)
        assert all(t.tablets == 3 for t in answer.tables)
        assert len(catalog.every_table()) == len(definer.tables) + len(definer.dropped)

    with_masters(work)
