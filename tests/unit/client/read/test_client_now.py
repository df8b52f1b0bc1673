"""`client.now()` and the times of snapshots: above every acknowledged write, also with one wrong clock."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.client.cluster.tablet_cache import TabletCache, TabletLocation
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.snapshot_time import Times
from nyala.client.read.token_reader import Reader
from nyala.common.errors import Unavailable
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.partitioning.partition import PartitionSchema, TabletPartition, partitions
from nyala.env.clock import SystemClock
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import SCHEMA, opened

NOW_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


def at(ahead_s: float) -> int:
    return from_micros(NOW_US + round(ahead_s * SECOND_US))


class Cluster:
    """A master that lists tablet servers and tablets, and servers that return times; None: no answer."""

    def __init__(self, times, groups=(), dead=()):
        self.times, self.groups, self.dead = times, groups, dead
        self.clock: Any = SystemClock()

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
            env = Env(self.clock, random.Random(7), SystemFiles(), LoopTasks(1), rpc)
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
        ((0, 5, 0.1), 0.1),  # the third answer decides whose clock is wrong
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


def test_time_of_scan_is_above_writes_to_range_that_is_learned_meanwhile():
    def tablet(name: str) -> TabletLocation:
        return TabletLocation(TabletId(name), TabletPartition(), voters=(name,))

    tablets = [tablet("a")]
    table: Any = SimpleNamespace(with_rows=lambda: tablets, ranges_version=1)

    class Altered(Cluster):
        async def call(self, address, method, request, *, timeout_ms):
            if address == "a":  # another read of this client looks the ranges up
                table.ranges_version = 2
                tablets.append(tablet("b"))
            return await super().call(address, method, request, timeout_ms=timeout_ms)

    async def ask(core):
        async def keep(_table):
            return None

        locations: Any = SimpleNamespace(refresh_old=keep)
        reader = Reader(core.env, core.masters, locations, core.clock)
        return await reader.time_for(table, ReadSpec(), 300)

    assert Altered({"a": at(0), "b": at(7)}).run(ask) == at(7)


class Slow(Cluster):
    """Masters that need 250 of the 300 ms of a call for each list; notes the time given for each request."""

    def __init__(self) -> None:
        super().__init__({"a": None, "b": at(0)}, groups=[["b"]])
        self.given: dict[Any, int] = {}
        self.later_us, real = 0, SystemClock()
        self.clock = SimpleNamespace(
            monotonic_us=lambda: real.monotonic_us() + self.later_us, wall_us=real.wall_us
        )

    async def call(self, address, method, request, *, timeout_ms):
        self.given[method] = timeout_ms
        if method is methods.LIST_SERVERS:
            self.later_us += 250_000
        return await super().call(address, method, request, timeout_ms=timeout_ms)


def test_all_requests_for_a_time_share_one_deadline():
    cluster = Slow()
    assert cluster.now() == at(0)
    assert cluster.given[methods.LIST_TABLES] <= 50
    assert cluster.given[methods.TABLET_LOCATIONS] <= 50


def test_hold_of_the_present_has_one_deadline(monkeypatch):
    cluster, given = Slow(), list[int]()

    class Holding:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        async def begin(self, timeout_ms: int) -> None:
            given.append(timeout_ms)

    class Plan:
        at = 5

        async def verified(self) -> None:
            cluster.later_us += 250_000

    monkeypatch.setattr("nyala.client.core.Holding", Holding)
    monkeypatch.setattr("nyala.client.core.ReadPlan", lambda *_: Plan())
    table: Any = None
    cluster.run(lambda core: core.hold(table, None, 1_000))
    assert given[0] <= 50


class Moving(Cluster):
    """One tablet, whose only replica moves after the table is opened; the clock of the old one is behind."""

    def __init__(self) -> None:
        super().__init__({"old": at(0), "new": at(0.5)})
        self.lists, self.master_answers, self.replica = 0, True, "old"
        self.later_us, real = 0, SystemClock()
        self.clock = SimpleNamespace(
            monotonic_us=lambda: real.monotonic_us() + self.later_us, wall_us=real.wall_us
        )

    async def call(self, address, method, request, *, timeout_ms):
        if method is not methods.TABLET_LOCATIONS:
            return await super().call(address, method, request, timeout_ms=timeout_ms)
        self.lists += 1
        if not self.master_answers:
            self.later_us += timeout_ms * 1000
            raise Unavailable("the master is down")
        replica = pb.ReplicaLocation(address=self.replica, uuid=self.replica, voter=True)
        tablet = pb.TabletLocation(id="t", state="RUNNING", replicas=[replica])
        (partition,) = partitions(SCHEMA, PartitionSchema())
        tablet.partition.CopyFrom(convert.partition_to_proto(partition))
        whole = convert.partition_schema_to_proto(PartitionSchema())
        return pb.TabletLocationsResponse(tablets=[tablet], ttl_ms=60_000, partition=whole)

    def time_after_move(self) -> Any:
        async def ask(core):
            table = opened(PartitionSchema())
            await core.locations.refresh(table)
            self.replica, self.later_us, self.lists = "new", 60_000_000, 0
            found = await core.reader.time_for(table, ReadSpec(), 300)
            assert await core.reader.time_for(table, ReadSpec(), 300) == found
            return found

        return self.run(ask)


def test_snapshot_time_depends_on_the_present_replicas_of_a_table_that_was_opened_long_ago():
    cluster = Moving()
    assert cluster.time_after_move() == at(0.5), "a write that the new replica has acknowledged"
    assert cluster.lists == 1, "locations are looked up once in locations_ttl_ms"


def test_old_locations_are_used_while_no_master_answers(monkeypatch):
    cluster = Moving()
    original = TabletCache.refresh_old

    async def without_masters(self: TabletCache, table: Any) -> None:
        cluster.master_answers = False
        await original(self, table)

    monkeypatch.setattr(TabletCache, "refresh_old", without_masters)
    assert cluster.time_after_move() == at(0)
    began = cluster.later_us - 60_000_000
    assert began <= 2_000_000, "reads do not wait for masters at each time"
