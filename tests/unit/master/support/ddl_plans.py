"""A leader master over rows on a disk, with injected failures."""

from nyala.common.errors import NotLeader, OutcomeUnknown
from nyala.master.catalog.actions import (
    Action,
)
from nyala.master.catalog.locks import Locks
from nyala.master.ddl.operation import LeaderMemory, OperationStep, run
from tests.unit.master.support.ddl_operations import loaded


class Died(Exception):
    """The master has crashed."""


class Disk:
    """The rows of the sys catalog, which outlive masters."""

    def __init__(self, rows):
        self.rows = dict(rows)
        self.batches = 0


class Master:
    """A leader loaded from a disk, with injected failures."""

    def __init__(self, disk, failure=""):
        self.disk, self.failure = disk, failure
        self.sent: list[Action] = []
        self.dropped: list[int] = []
        catalog = loaded(disk.rows)
        self.memory = LeaderMemory(1, catalog, self, self, Locks(), lambda: self.dropped.append(1))

    async def replicate(self, rows):
        assert [o.step for o in self.memory.in_flight.values()] == [OperationStep.REPLICATE]
        if self.failure == "refused":
            raise NotLeader("no")
        if self.failure != "lost":
            self.disk.rows.update({(r.kind, r.id): r for r in rows})
            self.disk.batches += 1
        if self.failure in ("lost", "unknown"):
            raise OutcomeUnknown("leadership was lost")
        if self.failure == "crashed":
            raise Died

    def enqueue(self, actions):
        if self.failure == "published":
            raise Died
        self.sent += actions

    def carry_out(self, operation):
        """Run an operation, which never waits here."""
        work = run(operation, self.memory)
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        finally:
            work.close()
            assert not self.memory.in_flight
            assert not self.memory.locks.held()
        raise AssertionError("the operation waited")
