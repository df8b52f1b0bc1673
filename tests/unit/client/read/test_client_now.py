"""`client.now()` and the times of snapshots: above every acknowledged write, also with one wrong clock."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.client.cluster.tablet_cache import TabletLocation
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.read.snapshot_time import Times
from nyala.common.errors import Unavailable
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.partition import TabletPartition
from nyala.env.clock import SystemClock
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

NOW_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


def at(ahead_s: float) -> int:
    return from_micros(NOW_US + round(ahead_s * SECOND_US))


class Cluster:
    """A master that lists tablet servers and tablets, and servers that return times; None: no answer."""

    def __init__(self, times, groups=(), dead=()):
        self.times, self.groups, self.dead = times, groups, dead

    async def call(self, address, method, request, *, timeout_ms):
        if method is methods.LIST_SERVERS:
            entries = [
                pb.ServerEntry(address=a, role="tserver", alive=a not in self.dead)
                for a in self.times
            ]
            return pb.ListServersResponse(servers=entries)
        if method is methods.LIST_TABLES:
            return pb.ListTablesResponse(tables=[pb.TableSummary(id="t", name="t")])
        if method is methods.TABLET_LOCATIONS:
            tablets = [
                pb.TabletLocation(
                    replicas=[pb.ReplicaLocation(address=a, voter=True) for a in group]
                )
                for group in self.groups
            ]
            return pb.TabletLocationsResponse(tablets=tablets)
        if method is methods.SERVER_INFO and self.times[address] is not None:
            return pb.ServerInfoResponse(hybrid_time=self.times[address])
        raise Unavailable(f"{address} does not answer")

    def run(self, ask):
        async def main():
            rpc: Any = self
            env = Env(SystemClock(), random.Random(7), SystemFiles(), LoopTasks(1), rpc)
            core = ClientCore(env, ["m:1"], ClientOptions(timeout_ms=300))
            try:
                return await ask(core)
            finally:
                await core.close()

        return asyncio.run(main())

    def now(self):
        return self.run(lambda core: core.now())


def test_snapshot_time_is_largest_time_when_all_answer_within_bound():
    assert Cluster({"a": at(0), "b": at(0.4), "c": at(0.2)}).now() == at(0.4)


@pytest.mark.parametrize("dead", [(), ("a",)])
def test_snapshot_time_is_not_below_write_acknowledged_by_silent_server(dead):
    cluster = Cluster({"a": None, "b": at(0), "c": at(0)}, groups=[["a"]], dead=dead)
    with pytest.raises(Unavailable, match=r"silent: a\."):
        cluster.now()


def test_snapshot_time_ignores_silent_server_not_needed_for_majorities():
    cluster = Cluster({"a": None, "b": at(0.1), "c": at(0.3)}, groups=[["a", "b", "c"], ["b"]])
    assert cluster.now() == at(0.3), "the time is above acknowledgements of any majority"


def test_snapshot_time_ignores_one_wrong_clock():
    times = {"a": at(0), "b": at(0.5), "c": at(800_000_000), "d": at(0.7)}
    assert Cluster(times, groups=[["a", "b", "c"], ["d"]]).now() == at(0.7)


def test_snapshot_time_requires_a_tablet_server():
    with pytest.raises(Unavailable, match="no live tablet servers"):
        Cluster({}).now()


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((0, 0.1, 5), 0.1),
        ((0, 5, 5.1), 5),  # a write at this time may be acknowledged by two of three
        ((5, 5, 0), 5),
        ((0, 0.2, None), 0.2),
        ((0, 9, None), 9),
    ],
)
def test_snapshot_time_is_passed_by_majority_of_each_tablet(times, expected):
    clocks = {a: None if t is None else at(t) for a, t in zip("abc", times, strict=True)}

    async def ask(core):
        seen = Times(core.env, core.locations, core.clock)
        return await seen.time_of(dict.fromkeys("abc"), [list("abc")], 300)

    assert Cluster(clocks).run(ask) == at(expected)


@pytest.mark.parametrize(
    ("voters", "times", "expected"),
    [
        ("v", {"v": at(5), "n": at(0), "o": at(0)}, at(5)),
        ("v", {"v": at(5), "n": None, "o": None}, at(5)),
        ("uvw", {"u": at(5), "v": at(5), "w": at(0), "n": at(0), "o": at(0)}, at(5)),
        ("uvw", {"u": at(0.1), "v": at(0), "w": None, "n": None, "o": None}, at(0.1)),
    ],
)
def test_time_of_scan_depends_on_voters_only(voters, times, expected):
    cluster = Cluster(times)

    async def ask(core):
        replicas = tuple((ServerUuid(a), a) for a in times)
        tablet = TabletLocation(TabletId("t"), TabletPartition(), replicas, voters=tuple(voters))
        table: Any = SimpleNamespace(with_rows=lambda: [tablet])
        return await Times(core.env, core.locations, core.clock).snapshot(table, 300)

    assert cluster.run(ask) == expected
