"""The search for a leader: removed replicas that name each other do not keep a call from the others."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nyala.client.cluster.leader_search import LeaderSearch
from nyala.client.cluster.tablet_cache import TabletCache, TabletLocation
from nyala.client.core import ClientCore, ClientOptions
from nyala.common.errors import NotLeader, Throttled, TimedOut, Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.partitioning.partition import TabletPartition
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


SILENT = Unavailable("did not answer")


def names(address: str | None) -> NotLeader:
    return NotLeader("not the leader", {} if address is None else {"address": address})


def search_of(leader: str | None) -> tuple[LeaderSearch, TabletLocation]:
    replicas = tuple((ServerUuid(a), a) for a in (A, B, C))
    tablet = TabletLocation(TabletId("t"), TabletPartition(), replicas, leader)
    return LeaderSearch(TabletCache(None), tablet), tablet  # type: ignore[arg-type]


def test_named_leader_is_asked_next_once_in_a_round():
    search, tablet = search_of(A)
    assert search.refused(A, names(B))
    assert tablet.leader == B
    assert not search.refused(B, names(A)), "A was asked"
    assert not search.refused(C, names(B)), "B was asked"
    search.end_round()
    assert tablet.leader is None
    assert search.refused(A, names(B)), "another round"


def test_replica_that_failed_is_not_asked_again_because_it_is_named():
    search, tablet = search_of(A)
    search.failed(A, SILENT, 4_000)
    assert tablet.leader is None
    assert not search.refused(B, names(A))


def test_leader_is_found_by_its_uuid():
    search, tablet = search_of(None)
    assert search.refused(A, NotLeader("not the leader", {"leader": C}))
    assert tablet.leader == C


def test_replica_that_knows_no_leader_is_passed_over():
    search, tablet = search_of(A)
    assert not search.refused(A, names(None))
    assert tablet.leader is None


def test_leader_that_another_call_has_found_is_kept_at_the_end_of_a_round():
    search, tablet = search_of(A)
    search.failed(A, SILENT, 4_000)
    tablet.leader = C
    search.end_round()
    assert tablet.leader == C


def test_reason_is_the_last_one_that_the_deadline_did_not_cut_short():
    search, _ = search_of(A)
    assert search.reason == "no replica of it is known"
    search.failed(A, SILENT, 10)
    assert search.reason == f"{A}: did not answer", "the only one"
    search.failed(B, Unavailable("its disk is full"), 4_000)
    search.failed(C, TimedOut("no answer within 10 ms"), 10)
    assert search.reason == f"{B}: its disk is full"
    search.look_up_failed(Unavailable("no master answers"))
    search.look_up_failed(Unavailable("no master answers"))
    assert search.reason == f"{B}: its disk is full; no master answers"
    search.refused(A, names(None))
    assert search.reason == f"{A}: not the leader"
    search.refused(A, names(C))
    assert search.reason == f"{A}: not the leader", "C is asked"
    search.delayed(Throttled("over the limit"))
    assert search.reason == "over the limit"


class Naming:
    """Servers of scans, each of which names another; a master that knows the leader."""

    def __init__(self, named: dict[str, str | None]) -> None:
        self.named = named
        self.asked: list[str] = []

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        replicas = [pb.ReplicaLocation(uuid=a, address=a, leader=a == C) for a in (A, B, C)]
        place = pb.TabletLocation(id="t", replicas=replicas, state="RUNNING")
        return pb.TabletLocationsResponse(tablets=[place])

    async def stream(
        self, address: str, method: Any, request: flight_pb2.Ticket
    ) -> AsyncIterator[Any]:
        self.asked.append(address)
        raise names(self.named[address])
        yield  # an asynchronous generator


def test_scan_asks_all_replicas_although_two_name_each_other():
    async def main(loop: SimLoop) -> list[str]:
        rng, servers = random.Random(1), Naming({A: B, B: A, C: None})
        env = Env(SimClock(loop), rng, SystemFiles(), SimTasks(loop, rng), servers)  # type: ignore[arg-type]
        core = ClientCore(env, ["m:1"], ClientOptions(timeout_ms=1_000))
        token = pb.ScanToken(tablet_id="t", table_id="b" * 32, replicas=[A, B, C], timeout_ms=1_000)
        with pytest.raises(TimedOut, match="no leader of tablet t served a read in time"):
            await core.reader.collect(token)
        return servers.asked

    asked = run(main)
    assert asked[:4] == [A, B, A, C], "the one named, then those that were not asked"
    assert asked[4] == C, "the leader that the masters know"
