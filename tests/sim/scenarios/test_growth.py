"""No container of a server or a client grows with the tables, journals and clients that there have been.

Limits that are constants are lowered, so that a container that reaches its limit is seen to stop there.
"""

import asyncio
from collections import Counter

import pyarrow as pa
import pytest

from nyala.client.core import ClientCore
from nyala.client.journal.core import JournalCore
from nyala.client.read import point_reads
from nyala.client.read.read_spec import ReadSpec
from nyala.client.write import sequencer
from nyala.common.options import Options
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet
from nyala.replica import registry
from nyala.tserver import compaction_scheduler, history_holds, reports
from nyala.wal import latency
from nyala.wire.proto import nyala_pb2 as pb
from tests.enough import enough
from tests.sim.checkers.containers import growing, sizes
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.world.loop import SimLoop, run
from tests.unit.tserver.support.tablet_group import append

ROUNDS = 6
"""Number of rounds between two measurements; each has two clients."""
LEAST, MOST = 3, 8
"""Number of measurements: more than three are made while a container seems to grow, since its size at a
certain moment is chance, and only one that grows without end does so in each interval.
"""
OPTIONS = Options(
    wal_segment_mb=1, wal_retain_mb=1, raft_cache_bytes=4096, catalog_flush_bytes=1024
)
RECORDS = {
    "Catalog._of_table",
    "Catalog._of_table[]",
    "Catalog._tables",
    "Catalog._tablets",
    "ExecutedOperations.created",
    "ExecutedOperations.dropped",
}
"""Containers with a record of each deleted tablet: in the masters' catalog, by which replicas and tombstones
on servers that return are deleted.
"""


def is_record(one: object) -> bool:
    """Return whether an object is the record of a deleted tablet."""
    return isinstance(one, CatalogTable | CatalogTablet) and not one.live


async def create_and_drop(core: ClientCore, name: str) -> None:
    """Create, use and drop a table and a journal."""
    table = await core.ddl.create_table(name, SCHEMA, None, 3, {})
    batch = pa.record_batch([pa.array([1, 2]), pa.array([3, 4])], names=["k", "v"])
    await core.session.write(table, pb.UPSERT, batch, all_or_nothing=False, timeout_ms=30_000)
    tokens = await core.reader.tokens(table, ReadSpec(), 30_000)
    await core.reader.collect_all(tokens)
    assert await core.get(table, batch.select(["k"]), None) == [{"k": 1, "v": 3}, {"k": 2, "v": 4}]
    await core.hold(table, None, 1000)  # it expires
    await core.ddl.drop_table(name)
    journals = JournalCore(core)
    journal = await journals.create(f"{name}-journal", 3, 1 << 30)
    await append(core, journal, b"entry")
    await journals.drop(f"{name}-journal")


def leaks(samples: list[Counter[str]]) -> dict[str, list[int]]:
    """Return the containers that grow."""
    return growing(samples, least=ROUNDS // 2)


async def measure(loop: SimLoop) -> list[Counter[str]]:
    """Return the sizes of all containers at several times, with the same work before each."""
    cluster = SimCluster(loop, seed=5, options=OPTIONS)
    long_lived = await cluster.start()
    first = cluster.clients[-1]
    loop.after_step = lambda: None  # the invariants of each step are checked by other tests
    found: list[Counter[str]] = []
    for part in range(MOST):
        if len(found) >= LEAST and leaks(found).keys() <= RECORDS:
            break
        for number in range(ROUNDS):
            await cluster.run(first, create_and_drop, long_lived, f"long-{part}-{number}")
            core = cluster.client()
            last = cluster.clients[-1]
            await cluster.run(last, create_and_drop, core, f"short-{part}-{number}")
            await cluster.run(last, core.close)
            last.kill()
        await loop.delay(5_000_000)
        servers = [p.server for p in cluster.servers]
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        found.append(sizes([long_lived, *servers, *tasks], is_record))
    return found


@pytest.mark.full
def test_containers_do_not_grow_with_tables_journals_and_clients(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sequencer, "TABLETS", 2)
    monkeypatch.setattr(point_reads, "MAX_SHAPES", 2)
    monkeypatch.setattr(reports, "CHANGES", 4)
    monkeypatch.setattr(registry, "DELETED_KEPT", 4)
    monkeypatch.setattr(latency, "KEPT_US", 1_000_000)
    monkeypatch.setattr(history_holds, "SWEEP_MS", 1000)
    monkeypatch.setattr(compaction_scheduler, "FULL_CHECK_EVERY", 1)
    found = leaks(run(measure))
    assert {name: size for name, size in found.items() if name not in RECORDS} == {}
    enough(set(found) == RECORDS, "a record that does not grow any more is no exception")
