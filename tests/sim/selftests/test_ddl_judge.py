"""Each rule about definitions is violated once, and the checker has to report it."""

from collections.abc import Awaitable, Callable

import pytest

from nyala.client.core import ClientCore
from nyala.common.ids import TableId
from nyala.common.partitioning.partition_spec import Partition, Range
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.ddl.operation import InFlight, OperationStep
from nyala.master.leader import Term
from nyala.wire.proto import catalog_pb2 as cat
from tests.sim.checkers.ddl_model import GONE, PRESENT, Modelled, Shape
from tests.sim.checkers.ddl_rules import EVERY, ORPHAN, CatalogWatch, plant_orphan
from tests.sim.runs.ddl import RANGES, look
from tests.sim.runs.ddl_run import DEFINING
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.process import SimProcess


class Scene:
    """A table of two ranges on four servers, no operation in flight, an orphan on the first server."""

    def __init__(
        self, cluster: SimCluster, core: ClientCore, watch: CatalogWatch, table: str
    ) -> None:
        self.cluster = cluster
        self.core = core
        self.watch = watch
        self.table = TableId(table)

    @property
    def term(self) -> Term:
        """The leader master's term."""
        for process in self.cluster.masters:
            found: Term | None = process.server.leading.current()
            if found is not None:
                return found
        raise AssertionError("no master leads")

    @property
    def tablet(self) -> CatalogTablet:
        """One tablet of the table."""
        return self.term.catalog.tablets_of(self.table)[0]

    def holder(self) -> SimProcess:
        """A server that has a replica of it."""
        return next(p for p in self.cluster.tservers if p.server.uuid in self.tablet.members)

    def begin(self) -> None:
        """Let the leader have a definition in flight."""
        self.term.memory.in_flight[0] = InFlight(
            "a definition", Scope(), OperationStep.REPLICATE, 0, 0
        )

    def publish(self, plan: CatalogPlan) -> None:
        """Change the leader's memory alone."""
        catalog = self.term.catalog
        catalog.publish(catalog.draft(plan))

    async def write(self, plan: CatalogPlan) -> None:
        """Change the disks alone."""
        leader = self.cluster.leader_master()
        assert leader is not None
        draft = self.term.catalog.draft(plan)
        await self.cluster.run(leader, self.term.rows.replicate, draft.rows)

    async def replicate(self, plan: CatalogPlan) -> None:
        """Change disks and memory, as an incomplete operation would."""
        term = self.term
        leader = self.cluster.leader_master()
        assert leader is not None
        draft = term.catalog.draft(plan)

        async def write() -> None:
            await term.rows.replicate(draft.rows)
            term.catalog.publish(draft)

        await self.cluster.run(leader, write)

    async def delete(self, process: SimProcess, tablet: str) -> None:
        """Delete a replica unconditionally."""
        (host,) = hosts_of(process)
        await self.cluster.run(process, host.delete_replica, tablet)


def scene(act: Callable[[Scene], Awaitable[None]]) -> None:
    """Prepare the state, and apply the violation."""

    async def scenario(loop: SimLoop) -> None:
        cluster = SimCluster(loop, 1, tservers=4, options=DEFINING)
        core = await cluster.start()
        await plant_orphan(cluster.tservers[0])
        spec = Partition(hash=[], range=Range(["k"], list(RANGES)))
        process = cluster.clients[-1]
        made = await process.run(core.ddl.create_table, "t", SCHEMA, spec, 3, {})
        watch = CatalogWatch(cluster)
        await cluster.until(lambda: not watch.unsettled(), "settled")
        watch.look()
        await act(Scene(cluster, core, watch, made.id))

    run(scenario, max_time_s=120)


def looks(watch: CatalogWatch) -> None:
    """Check often enough to compare memory with an unchanged disk, too."""
    for _ in range(EVERY):
        watch.look()


def another(scene: Scene, name: str) -> cat.TableRecord:
    record = scene.term.catalog.require("t").edit()
    record.id, record.spec.name = "f" * 32, name
    return record


async def half_a_table(scene: Scene) -> None:
    await scene.replicate(CatalogPlan(tables=(another(scene, "u"),)))


async def a_tablet_too_few(scene: Scene) -> None:
    record = scene.tablet.edit()
    record.state = cat.TABLET_DELETED
    await scene.replicate(CatalogPlan(tablets=(record,)))


async def memory_alone(scene: Scene) -> None:
    record = scene.term.catalog.require("t").edit()
    record.spec.comment = "never written"
    scene.publish(CatalogPlan(tables=(record,)))


async def memory_first(scene: Scene) -> None:
    scene.begin()
    await memory_alone(scene)


async def half_a_table_on_disk(scene: Scene) -> None:
    scene.begin()
    await scene.write(CatalogPlan(tables=(another(scene, "u"),)))


async def a_name_twice(scene: Scene) -> None:
    tablets = []
    for number, tablet in enumerate(scene.term.catalog.tablets_of(scene.table)):
        copy = tablet.edit()
        copy.id, copy.table_id = f"{number:032x}", "f" * 32
        tablets.append(copy)
    same = another(scene, "u")
    plan = CatalogPlan(tuple(tablets), (same,))
    scene.publish(plan)
    same.spec.name = "t"  # in the record itself: the catalog refuses a name that another table has
    await scene.write(plan)


async def a_voter_deleted(scene: Scene) -> None:
    await scene.delete(scene.holder(), scene.tablet.id)


MEMORY_ALONE = "memory differs from its disk|memory is ahead of its disk"
"""Either finding of the judge: which one is first depends on the moment at which it looks."""


async def an_orphan_deleted(scene: Scene) -> None:
    await scene.delete(scene.cluster.tservers[0], ORPHAN)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (half_a_table, "0, 2"),
        (a_tablet_too_few, "1, 2"),
        (memory_alone, MEMORY_ALONE),
        (memory_first, "memory is ahead of its disk"),
        (half_a_table_on_disk, "0, 2"),
        (a_name_twice, "'t'"),
        (a_voter_deleted, "deleted"),
        (
            an_orphan_deleted,
            "a replica of an unknown tablet was deleted|which is not in the catalog",
        ),
    ],
)
def test_ddl_checker_reports_rule_violation_at_any_time(act, message):
    async def broken(scene: Scene) -> None:
        await act(scene)
        with pytest.raises(AssertionError, match=message):
            looks(scene.watch)

    scene(broken)


def test_pending_operation_may_be_durable_before_it_is_visible():
    async def right(scene: Scene) -> None:
        scene.begin()
        record = scene.term.catalog.require("t").edit()
        record.spec.comment = "on its way"
        await scene.write(CatalogPlan(tables=(record,)))
        before = scene.watch.checks["memory not ahead of disk"]
        scene.watch.glance()
        assert scene.watch.checks["memory not ahead of disk"] == before + 1

    scene(right)


def test_invariant_violation_ends_the_run():
    async def broken(scene: Scene) -> None:
        scene.watch.start()
        await memory_alone(scene)
        await scene.cluster.loop.delay(5_000_000)

    with pytest.raises(AssertionError, match=MEMORY_ALONE):
        scene(broken)


async def fewer_replicas_than_told(scene: Scene) -> None:
    record = scene.term.catalog.require("t").edit()
    record.spec.replicas = 5
    scene.publish(CatalogPlan(tables=(record,)))


async def a_server_that_is_dead(scene: Scene) -> None:
    scene.holder().kill()


async def a_leader_that_is_dead(scene: Scene) -> None:
    leader = scene.cluster.leader_of(scene.tablet.id)
    assert leader is not None
    leader.kill()


async def a_tablet_that_is_none(scene: Scene) -> None:
    records = []
    for tablet in scene.term.catalog.tablets_of(scene.table):
        record = tablet.edit()
        record.state = cat.TABLET_DELETED
        records.append(record)
    table = scene.term.catalog.require("t").edit()
    table.state = cat.TABLE_REMOVED
    scene.publish(CatalogPlan(tuple(records), (table,)))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (fewer_replicas_than_told, "is to have 5 replicas"),
        (a_server_that_is_dead, "voters that do not run|no leader"),
        (a_leader_that_is_dead, "no leader"),
        (a_tablet_that_is_none, "which is no tablet"),
    ],
)
def test_incomplete_final_state_is_reported(act, message):
    async def broken(scene: Scene) -> None:
        await act(scene)
        why = scene.watch.unsettled()
        assert any(word in why for word in message.split("|")), why

    scene(broken)


def test_table_differing_from_client_result_is_detected():
    async def compared(scene: Scene) -> None:
        process = scene.cluster.clients[0]
        right = Shape(PRESENT, "t", ("k", "v"), RANGES, 3)
        found = await process.run(look, scene.core, Modelled(scene.table, right))
        Modelled(scene.table, right).saw(found)
        wrong = [
            Shape(GONE, "t", ("k", "v"), RANGES, 3),
            Shape(PRESENT, "u", ("k", "v"), RANGES, 3),
            Shape(PRESENT, "t", ("k",), RANGES, 3),
            Shape(PRESENT, "t", ("k", "v"), RANGES[:1], 3),
            Shape(PRESENT, "t", ("k", "v"), RANGES, 1),
        ]
        for shape in wrong:
            with pytest.raises(AssertionError, match="may be"):
                Modelled(scene.table, shape).saw(found)

    scene(compared)
