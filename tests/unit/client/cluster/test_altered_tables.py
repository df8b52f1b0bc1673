"""An open table is changed on its client's loop only, where calls of other threads read it."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.table import Table
from nyala.common.ids import TableId
from nyala.common.partitioning.partition import PartitionSchema
from nyala.env.loop_thread import LoopThread
from tests.unit.client.support.client_bulk import SCHEMA, opened

WHOLE = PartitionSchema()


class Followed(OpenTable):
    """Notes the threads that change it."""

    def follow(self, fresh: OpenTable) -> None:
        changed_by.append(threading.current_thread().name)
        super().follow(fresh)


changed_by: list[str] = []


class Cluster:
    """Masters that accept each alteration, and a connection to them."""

    def __init__(self) -> None:
        self.loop = LoopThread("the loop")
        self.core = self.ddl = self.locations = self
        self.options = SimpleNamespace(timeout_ms=1_000)
        self.run = self.change = self.loop.run

    async def open(self, _name: str, _timeout_ms: int, *, table_id: str) -> Any:
        assert table_id == "a" * 32
        return opened(WHOLE)

    async def alter_table(self, _table: Any, _steps: Any) -> Any:
        return opened(WHOLE)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.loop.close()


def test_table_is_altered_on_the_loop(cluster):
    changed_by.clear()
    known = Followed(TableId("a" * 32), "t", SCHEMA, WHOLE, 3, {})
    table = Table(cluster, known)
    table.alter().set_owner("ops").commit()
    assert changed_by == ["the loop", "the loop"], (
        "when its definition is read, and when it is altered"
    )
    assert len(known.tablets) == 1
