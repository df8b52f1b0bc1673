"""An unexpected exception in one round of a background task is logged, and the task continues.

Each planted exception is raised once, in the task of one server; later calls by the same task show that it
continues. The servers are a whole simulated cluster.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.master import leader
from nyala.master.catalog.maintenance import CatalogMaintenance
from nyala.master.catalog.sys_catalog import SysCatalog
from nyala.master.ddl import background
from nyala.master.group.catalog_replica import MasterReplica
from nyala.master.orders import reconcile
from nyala.master.repair.repairer import Repairer
from nyala.replica.clocks import Clocks
from nyala.replica.host import ReplicaHost
from nyala.tserver.flush_scheduler import FlushScheduler
from nyala.tserver.health import PeerHealth
from nyala.tserver.reports import MasterView
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimTasks

ROWS = 100_000
"""Number of rows that fill a log segment of 1 MiB."""
WITHIN_S = 60
"""Virtual seconds in which each task meets its exception and runs again."""


class PlantedError(Exception):
    """Unexpected exception of one round."""


@dataclass(slots=True)
class Plant:
    """An exception in one task.

    Attributes:
        task: beginning of the task's name.
        owner: class or module of the function.
        function: name of the function that raises, called by the task in each round.
        failed: task that met the exception.
        rounds: later calls by that task.
    """

    task: str
    owner: Any
    function: str
    failed: asyncio.Task[Any] | None = None
    rounds: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the function until the test ends."""
        original = getattr(self.owner, self.function)

        def call(*args: Any, **more: Any) -> Any:
            task = asyncio.current_task()
            if task is not None and task.get_name().startswith(self.task):
                if self.failed is None:
                    self.failed = task
                    raise PlantedError(self.task)
                self.rounds += task is self.failed
            return original(*args, **more)

        monkeypatch.setattr(self.owner, self.function, call)


PLANTS = [
    ("derive orders", reconcile, "orders_for"),
    ("repair tablets", Repairer, "due_orders"),
    ("chores of the catalog", background, "due"),
    ("upkeep of the catalog", CatalogMaintenance, "run_once"),
    ("follow the role of the sys catalog", leader, "build"),
    ("keep the followers' catalogs fresh", SysCatalog, "confirm"),
    ("be a master", MasterReplica, "presence"),
    ("learn the cluster's id", MasterReplica, "cluster"),
    ("watch ", convert, "configuration_from_proto"),
    ("heartbeat ", MasterView, "begin"),
    ("health of members", PeerHealth, "check"),
    ("compactions", ReplicaHost, "active_replicas"),
    ("memory pressure flushes", FlushScheduler, "due"),
    ("replica ticks", Clocks, "update"),
    ("wal-preallocate", SimTasks, "run"),
]
"""Task, and the function that it calls in each round."""


async def fill_segment(core: ClientCore, table: OpenTable) -> None:
    """Write rows of more than a log segment, so that the next one is prepared."""
    keys = pa.array(range(ROWS))
    batch = pa.record_batch([keys, keys], names=["k", "v"])
    await core.session.write(table, pb.UPSERT, batch, all_or_nothing=False, timeout_ms=30_000)


def test_background_tasks_continue_after_an_unexpected_exception(monkeypatch):
    plants = [Plant(*given) for given in PLANTS]
    for plant in plants:
        plant.install(monkeypatch)

    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, seed=5)

        def look() -> None:  # planted exceptions are no failures of the run
            for found in (loop.failures, *(p.failures for p in cluster.servers)):
                found[:] = [err for err in found if not isinstance(err, PlantedError)]
            cluster.look()

        loop.after_step = look
        core = await cluster.start()
        table = await cluster.create_table(core)
        await cluster.run(cluster.clients[-1], fill_segment, core, table)
        end = loop.time() + WITHIN_S
        while loop.time() < end and not all(p.rounds for p in plants):
            await loop.delay(100_000)
        look()

    run(main)
    assert [p.task for p in plants if p.failed is None] == [], "met no exception"
    assert [p.task for p in plants if not p.rounds] == [], "ended at the exception"
