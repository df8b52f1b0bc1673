"""Health of members as leaders report it: by answers, and by this server's time while a group is quiesced."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.options import Options
from nyala.tserver.health import FAILED, HEALTHY, SILENT, PeerHealth

OPTIONS = Options(member_failed_after_ms=2000, raft_tick_ms=50, election_timeout_ms=500)


class Leader:
    """A leading replica with the attributes that are read."""

    group, uuid = "t", "a"

    def __init__(self):
        self.is_leader, self.quiesced = True, False
        self.silent = {"b": 0, "c": 0}
        self.needs_copy = ""
        self.stuck = {"b": 0, "c": 0}
        self.node = self

    @property
    def config(self):
        return SimpleNamespace(members=[SimpleNamespace(uuid=u) for u in ("a", *self.silent)])

    def status(self):
        peers = [
            SimpleNamespace(
                uuid=u, ticks_silent=n, needs_copy=u == self.needs_copy, ticks_stuck=self.stuck[u]
            )
            for u, n in self.silent.items()
        ]
        return SimpleNamespace(peers=peers)


class World:
    """One leader, a clock, and the recorded changes."""

    def __init__(self):
        self.leader: Any = Leader()
        self.now_ms = 100_000
        self.changed: list[str] = []
        clock = SimpleNamespace(monotonic_us=lambda: self.now_ms * 1000)
        env: Any = SimpleNamespace(clock=clock)
        self.env = env
        host: Any = self
        self.health = PeerHealth(env, host, OPTIONS, self.changed.append)

    def find(self, group):
        return self.leader

    def active_replicas(self):
        return [] if self.leader.quiesced else [self.leader]

    def reported(self, passed_ms=0, **ticks):
        """Let time pass; return the states of b and c, and the number of changes so far."""
        self.now_ms += passed_ms
        self.leader.silent.update(ticks)
        self.health.check()
        replica: Any = self.leader
        return [h.state for h in self.health.of(replica)], len(self.changed)


def test_bug_in_one_check_does_not_end_the_checks():
    """Without them no failed member would ever be replaced."""
    world, rounds = World(), iter([None, None])

    async def sleep_ms(duration_ms: int) -> None:
        if next(rounds, "over"):
            raise asyncio.CancelledError

    checked: list[int] = []

    def check() -> None:
        checked.append(1)
        raise ZeroDivisionError("planted")

    world.health.check = check  # type: ignore[method-assign]
    tasks = SimpleNamespace(sleep_ms=sleep_ms, spawn=lambda work, name: asyncio.ensure_future(work))

    world.env.tasks = tasks

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await world.health.start()

    asyncio.run(run())
    assert len(checked) == 2


def unrecoverable(world):
    """The members that the leader reports as unrecoverable."""
    return [h.uuid for h in world.health.of(world.leader) if h.unrecoverable]


def test_member_is_silent_after_election_timeout_and_failed_after_option():
    world = World()
    assert world.reported() == ([HEALTHY, HEALTHY], 1)
    assert world.reported(500, c=10) == ([HEALTHY, HEALTHY], 1)
    assert world.reported(50, c=11) == ([HEALTHY, SILENT], 2)
    assert world.reported(1400, c=39) == ([HEALTHY, SILENT], 2)
    assert world.reported(50, c=40) == ([HEALTHY, FAILED], 3)
    assert world.reported(50, c=0) == ([HEALTHY, HEALTHY], 4)


def test_member_that_acknowledges_nothing_fails_after_option():
    world = World()
    world.leader.stuck["c"] = 40
    assert world.reported() == ([HEALTHY, HEALTHY], 1)
    world.leader.stuck["c"] = 41
    assert world.reported(50) == ([HEALTHY, FAILED], 2)
    world.leader.stuck["c"] = 0
    assert world.reported(50) == ([HEALTHY, HEALTHY], 3)


@pytest.mark.row("A9")
def test_member_failure_time_advances_while_group_is_quiescent():
    world = World()
    assert world.reported(c=20) == ([HEALTHY, SILENT], 1)
    world.leader.quiesced = True
    assert world.reported(900) == ([HEALTHY, SILENT], 1)
    assert world.reported(100) == ([HEALTHY, FAILED], 2)


def test_healthy_quiescent_group_is_not_examined():
    world = World()
    world.reported()
    world.leader.quiesced = True
    world.leader.status = None
    world.health.check()


def test_member_that_answers_but_lacks_entries_permanently_fails():
    world = World()
    world.leader.needs_copy = "b"
    assert world.reported(b=0) == ([SILENT, HEALTHY], 1)
    assert world.reported(2000, b=0) == ([FAILED, HEALTHY], 2)


def test_member_is_unrecoverable_after_it_has_lacked_collected_entries_while_it_replied():
    world = World()
    world.leader.needs_copy = "c"
    assert world.reported(3000, c=60) == ([HEALTHY, FAILED], 1), (
        "the member is silent, and its server may be down"
    )
    assert unrecoverable(world) == []
    assert world.reported(50, c=0)[0] == [HEALTHY, FAILED]
    assert world.reported(1999, c=1)[0] == [HEALTHY, FAILED]
    assert unrecoverable(world) == []
    world.reported(1)
    assert unrecoverable(world) == ["c"]
    assert world.reported(50, c=11)[0] == [HEALTHY, FAILED]
    assert unrecoverable(world) == [], "the member is silent again"
    world.reported(2000, c=0)
    assert unrecoverable(world) == [], "the time is counted from the beginning"
    world.leader.needs_copy = ""
    assert world.reported(50)[0] == [HEALTHY, HEALTHY]


def test_stuck_member_that_lacks_collected_entries_is_unrecoverable():
    world = World()
    world.leader.needs_copy = "c"
    world.leader.stuck["c"] = 41
    assert world.reported()[0] == [HEALTHY, FAILED]
    world.reported(2000)
    assert unrecoverable(world) == ["c"]
    world.leader.needs_copy = ""
    assert world.reported(50)[0] == [HEALTHY, FAILED], "the member may accept entries again"
    assert unrecoverable(world) == []


def test_non_leader_reports_no_member_health():
    world = World()
    world.reported(c=50)
    world.leader.is_leader = False
    assert world.reported() == ([], 1)
    world.leader.is_leader = True
    assert world.reported(c=0) == ([HEALTHY, HEALTHY], 2)
