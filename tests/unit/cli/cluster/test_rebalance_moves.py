"""Runs of `nyala cluster rebalance` against servers that refuse moves."""

import asyncio
from types import SimpleNamespace

import pytest

from nyala.common.errors import NotFound, Unavailable
from nyala.env.clock import SystemClock
from nyala.operate.rebalance import moves
from nyala.operate.rebalance.moves import ATTEMPTS, Rebalance, Seen
from nyala.operate.rebalance.plan import PlacedTablet, Placement
from nyala.wire.proto import nyala_pb2 as pb


class Cluster:
    """Replicas of tablets, one each; moves to the server `full` fail."""

    def __init__(self, servers, tablets):
        self.servers, self.where, self.tried, self.silent = servers, tablets, [], []
        self.dropped = set()
        self.env = SimpleNamespace(clock=SystemClock(), tasks=self)
        self.masters = self

    async def call(self, *_args, **_kw):
        return pb.TabletLocationsResponse()

    async def sleep_ms(self, _ms):
        """Return at once."""

    async def look(self, _core, _tables):
        if self.silent and self.silent.pop(0):
            raise Unavailable("tablet server s2 does not answer")
        placed = {t: PlacedTablet(t, "t", (s,), s) for t, s in self.where.items()}
        return Seen(Placement(dict.fromkeys(self.servers, ""), placed), (), {}, {})

    def membership(self, _core, tablet, *, timeout_ms):
        async def move(source, target):
            self.tried.append((tablet, target))
            if tablet in self.dropped:
                self.where.pop(tablet, None)
                raise NotFound("no tablet server has a replica of it")
            if target == "full":
                raise Unavailable("no space left on the device")
            self.where[tablet] = target

        return SimpleNamespace(move=move)


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster(["s1", "s2", "full"], {f"{n}": "s1" for n in range(12)})
    monkeypatch.setattr(moves, "look", made.look)
    monkeypatch.setattr(moves, "Membership", made.membership)
    return made


def test_server_to_which_moves_fail_is_left_alone_and_the_others_are_made_even(cluster):
    result = asyncio.run(Rebalance(cluster, leaders=False).run())
    assert sorted(cluster.where.values()) == ["s1"] * 6 + ["s2"] * 6
    to_full = [target for _, target in cluster.tried if target == "full"]
    assert ATTEMPTS <= len(to_full) <= ATTEMPTS + 1, "two are made at the same time"
    assert len(result.moves) == 6
    assert result.failed
    assert all("no space left" in text for text in result.failed)


def test_tables_that_are_dropped_meanwhile_are_no_failures_of_the_servers(cluster):
    cluster.servers, cluster.dropped = ["s1", "s2"], {str(n) for n in range(6)}
    result = asyncio.run(Rebalance(cluster, leaders=False).run())
    assert result.failed == []
    assert sorted(cluster.where.values()) == ["s1"] * 3 + ["s2"] * 3


def test_run_goes_on_when_a_server_does_not_answer_for_a_moment(cluster):
    cluster.servers, cluster.silent = ["s1", "s2"], [False, True, True, False]
    asyncio.run(Rebalance(cluster, leaders=False).run())
    assert sorted(cluster.where.values()) == ["s1"] * 6 + ["s2"] * 6


@pytest.mark.parametrize("silent", [[True], [False] + [True] * 20])
def test_run_ends_when_a_server_does_not_answer_at_its_begin_or_any_more(cluster, silent):
    cluster.silent = silent
    with pytest.raises(Unavailable, match="does not answer"):
        asyncio.run(Rebalance(cluster, leaders=False).run())
    assert len(cluster.silent) in (0, 10)
