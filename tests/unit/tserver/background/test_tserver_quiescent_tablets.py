"""Periodic work skips the tablets of quiesced groups, and still reaches them in time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.options import Options
from nyala.env.clock import SystemClock
from nyala.machines import registry
from nyala.replica.status import State
from nyala.tserver import compaction_scheduler
from nyala.tserver.compaction_scheduler import CompactionScheduler
from nyala.tserver.history_holds import HistoryHolds


@pytest.fixture(autouse=True)
def described(monkeypatch):
    """Interface of machines other than tablets."""
    monkeypatch.setattr(registry, "describe", lambda machine: machine.info)


class Tablet:
    """A replica with a state machine that counts its calls."""

    def __init__(self, group):
        self.group = group
        self.state = State.RUNNING
        self.log_bytes = 0
        self.running = ""
        self.asked = 0
        self.machine = self
        self.worth = 0  # compactions that are worth their cost

    def compaction_score(self, _horizon):
        self.asked += 1
        return float(max(0, self.worth))

    async def maintain(self, _prepare):
        self.worth -= 1
        return True

    def maintenance_stats(self):
        return SimpleNamespace(running=self.running, log_bytes=self.log_bytes)

    def status(self):
        return SimpleNamespace(applied_stamp=0)


class Tablets:
    """A host; `awake` are the groups that are not quiescent."""

    def __init__(self):
        self.replicas = {g: Tablet(g) for g in "abc"}
        self.awake = ["a"]
        self.host = self

    def all(self):
        return list(self.replicas.values())

    def active_replicas(self):
        return [self.replicas[g] for g in self.awake]

    def find(self, group):
        return self.replicas.get(group)

    def hosted(self, group):
        info = SimpleNamespace(options={})
        return SimpleNamespace(
            replica=self.replicas[group],
            machine=SimpleNamespace(
                info=info, compaction_score=self.replicas[group].compaction_score
            ),
        )

    def asked(self):
        asked = {g: r.asked for g, r in self.replicas.items()}
        for replica in self.replicas.values():
            replica.asked = 0
        return asked


class Looks:
    """Lets a task sleep a number of times."""

    def __init__(self, count):
        self.left = count
        self.tasks = self

    async def run(self, _lane, work, *args):
        return work(*args)

    def spawn(self, work, _name):
        self.spawned = work

    async def sleep_ms(self, _duration):
        self.left -= 1
        if self.left < 0:
            raise asyncio.CancelledError


def run(looks: Any, tablets: Any) -> None:
    """Run compactions until the number of checks is reached."""
    CompactionScheduler(looks, tablets, HistoryHolds(SystemClock()), Options()).start()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(looks.spawned)


def test_compactions_of_quiescent_tablets_continue_until_done():
    tablets: Any = Tablets()
    tablets.replicas["b"].worth = 3
    run(Looks(10), tablets)
    # Each of the three compactions of "b" is followed by a new score of it, and by a check.
    assert tablets.asked() == {"a": 10 + 3, "b": 1 + 3 + 3, "c": 1}
    tablets.awake = ["c"]
    run(Looks(compaction_scheduler.FULL_CHECK_EVERY), tablets)
    assert tablets.asked() == {"a": 2, "b": 2, "c": compaction_scheduler.FULL_CHECK_EVERY}
