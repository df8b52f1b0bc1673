"""Choice of the next flush and compaction among all tablets of a server."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import Unavailable
from nyala.common.ids import TabletId
from nyala.common.options import MIB, Options
from nyala.env.clock import SystemClock
from nyala.machines import registry
from nyala.replica.memory import MemoryPart, MemoryTracker
from nyala.replica.status import State
from nyala.tserver.compaction_scheduler import CompactionScheduler
from nyala.tserver.flush_scheduler import FlushScheduler
from nyala.tserver.history_holds import HistoryHolds

OPTIONS = Options(memory_budget_bytes=1000 * MIB, wal_retain_mb=200)


@pytest.fixture(autouse=True)
def described(monkeypatch):
    """Interface of machines other than tablets."""
    monkeypatch.setattr(registry, "describe", lambda machine: machine.info)


class Tablet:
    """A replica and its machine; `merges` are the scores of its next compactions."""

    def __init__(self, host, group, memory=0, log=0, merges=()):
        self.host, self.group, self.log_bytes = host, group, log * MIB
        self.memory = memory * MIB
        self.merges = list(merges)
        self.state, self.machine, self.tablet, self.replica = State.RUNNING, self, self, self
        self.info = SimpleNamespace(options={})
        self.running, self.broken = "", False
        self.reserves: list[int] = []

    @property
    def memory(self):
        return self.host.memory.sizes(MemoryPart.ROWS)[self.group]

    @memory.setter
    def memory(self, size_bytes):
        self.host.memory.set_size(MemoryPart.ROWS, self.group, size_bytes)

    def maintenance_stats(self):
        return SimpleNamespace(running=self.running, log_bytes=self.log_bytes)

    def status(self):
        return SimpleNamespace(applied_stamp=0)

    def compaction_score(self, _horizon):
        return float(self.merges[0]) if self.merges else 0.0

    def prepare_compaction(self, _horizon, *, force, reserve_bytes):
        self.reserves.append(reserve_bytes)

    async def maintain(self, prepare):
        prepare()
        self.host.events.append(f"merge {self.group}")
        if self.broken:
            raise OSError("no space left")
        self.merges.pop(0)
        return True

    async def flush(self):
        self.host.events.append(f"flush {self.group}")
        if self.broken:
            raise OSError("no space left")
        self.memory = self.log_bytes = 0
        return True


class Server:
    """Tablets, and a clock that stops after a number of sleeps."""

    def __init__(self, **tablets):
        self.events: list[str] = []
        self.memory = MemoryTracker(OPTIONS)
        self.tablets = {g: Tablet(self, g, **given) for g, given in tablets.items()}
        self.host = self.tasks = self
        self.left = 0

    def all(self):
        return list(self.tablets.values())

    active_replicas = all

    def find(self, group):
        return self.tablets.get(group)

    def hosted(self, group):
        if group not in self.tablets:
            raise Unavailable("not here")
        return self.tablets[group]

    async def run(self, _lane, work, *args):
        return work(*args)

    def spawn(self, work, _name):
        self.spawned = work

    async def sleep_ms(self, _duration):
        self.events.append("-")
        self.left -= 1
        if self.left < 0:
            raise asyncio.CancelledError

    def merge(self, sleeps):
        anything: Any = self
        return self._events_of(
            CompactionScheduler(anything, anything, HistoryHolds(SystemClock()), OPTIONS), sleeps
        )

    def flush(self, sleeps):
        anything: Any = self
        return self._events_of(FlushScheduler(anything, anything, OPTIONS, ()), sleeps)

    def _events_of(self, part, sleeps):
        self.left, self.events = sleeps, []
        part.start()
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(self.spawned)
        return " ".join(self.events).replace("merge ", "").replace("flush ", "").split()[1:-1]


def test_memory_is_checked_often_only_while_much_of_it_is_used():
    pauses = []
    for used in (10, 240, 260, 900):
        server: Any = Server(a={"memory": used})
        pauses.append(FlushScheduler(server, server, OPTIONS, ()).pause_ms())
    assert pauses == [500, 500, 100, 100]


@pytest.mark.row("A16")
def test_best_compaction_of_all_tablets_is_chosen_first():
    server = Server(a={"merges": [1]}, b={"merges": [5, 0.5]}, c={"merges": [3]}, d={})
    assert server.merge(1) == ["b", "c", "a", "b"]
    assert server.merge(3) == ["-", "-"]


def test_compactions_leave_the_reserve_of_the_log_free():
    server = Server(a={"merges": [1, 1]})
    server.merge(1)
    assert server.tablets["a"].reserves == [OPTIONS.wal_reserve_mb * MIB] * 2


def test_expensive_compaction_is_not_starved():
    server = Server(small={"merges": [10] * 30}, large={"merges": [1]})
    order = server.merge(1)
    assert order.index("large") == 10  # it counts once more at every choice
    assert len(order) == 31


def test_scores_are_those_after_a_compaction_that_was_ordered():
    server: Any = Server(a={"merges": [4, 2]}, b={"merges": [1]}, c={"merges": [3]})
    compactions = CompactionScheduler(server, server, HistoryHolds(SystemClock()), OPTIONS)
    a, b, c = (TabletId(group) for group in "abc")
    compactions.scores = {a: 4.0, b: 1.0, c: 3.0}
    for group, left in ((a, {a: 2.0, b: 1.0, c: 3.0}), (c, {a: 2.0, b: 1.0})):
        assert asyncio.run(compactions.compact(server.hosted(group), force=True))
        assert compactions.scores == left


def test_failed_compaction_is_retried_later_without_blocking_others():
    server = Server(a={"merges": [9]}, b={"merges": [1, 1]})
    server.tablets["a"].broken = True
    assert server.merge(2) == ["a", "b", "b", "-", "a"]


@pytest.mark.row("A16")
def test_near_budget_flush_freeing_most_memory_and_log_is_chosen_first():
    server = Server(
        small={"memory": 100, "log": 10},
        log={"memory": 90, "log": 100},
        large={"memory": 500, "log": 20},
        busy={"memory": 600, "log": 200},
    )
    server.tablets[
        "busy"
    ].running = "compaction"  # it is being compacted: its flush would have to wait
    assert server.flush(3) == ["large", "-", "log", "-"]  # 690 MiB are left, below three quarters
    server.tablets["busy"].running = ""
    server.tablets["large"].memory = 300 * MIB
    assert server.flush(2) == ["busy", "-"]


def test_failed_flush_is_followed_by_next_best_flush():
    server = Server(a={"memory": 800}, b={"memory": 400}, c={"memory": 300})
    server.tablets["a"].broken = True
    assert server.flush(3) == ["a", "-", "b", "-", "a"]
    assert server.flush(4) == ["a", "-", "c", "-", "a", "-"]
