"""Hostile requests to every method of tablet servers: answers or clean refusals, and replicas stay equal."""

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nyala.env.rpc import Shape
from nyala.wire import flight, methods, status
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.direct import mutations
from tests.properties.hostile.requests import SEED, kind_of, outcome, requests_of, unclean
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run
from tests.unit.tserver.support.tablet_group import Group, started

BY_OPERATORS = (
    methods.CHANGE_CONFIG, methods.UNSAFE_CHANGE_CONFIG, methods.DELETE_TABLET, methods.CREATE_WITNESS,
    methods.LEADER_STEP_DOWN, methods.START_COPY,
)  # fmt: skip
"""Methods that, with the uuid of the server, may do what they say."""


def with_table(work: Any) -> None:
    async def main(loop: Any) -> None:
        group = Group(*await started(SimCluster(loop, 5, tservers=3, masters=1)))
        for number in range(5):
            await group.add(number)
        await work(group)
        await group.add(7)
        assert [n for n in await group.added() if n < 100] == [0, 1, 2, 3, 4, 7]
        assert all(p.alive and not p.failures for p in group.cluster.tservers)
        group.cluster.look()

    run(main, max_time_s=600)


def tokens(rng: random.Random, group: Group, count: int) -> list[bytes]:
    """Return damaged scan tokens, and random ones."""
    good = pb.ScanToken(tablet_id=group.tablet, column_ids=[0, 1], all_columns=False, batch_rows=10)
    fixed = {"tablet_id": str(group.tablet), "schema_version": 0, "ranges_version": 0}
    texts, numbers = (str(group.tablet), "k", "v"), (1, 2, 3)
    made = requests_of(rng, pb.ScanToken, count, texts, numbers, [good], fixed)
    found = [m.SerializeToString() for m in made]
    return [*found, *mutations(good.SerializeToString(), rng.randrange(1 << 30), count // 4)]


def headers(rng: random.Random, group: Group, count: int) -> list[bytes]:
    """Return damaged headers of writes, and random ones."""
    good = pb.WriteHeader(
        tablet_id=group.tablet, op=pb.INSERT, client_id=b"c" * 16, sequence=1, first_outstanding=1,
        column_ids=[0, 1], timeout_ms=5_000, request=9,
    )  # fmt: skip
    fixed = {"tablet_id": str(group.tablet), "schema_version": 0}
    made = requests_of(rng, pb.WriteHeader, count, (str(group.tablet),), (1, 2, 3), [good], fixed)
    return [m.SerializeToString() for m in made]


@pytest.mark.parametrize("seed", range(2))
def test_tablet_servers_answer_or_refuse_every_request(seed, caplog):
    asked: Counter[tuple[str, str]] = Counter()

    async def work(group: Group) -> None:
        rng, leader = random.Random(SEED + seed), group.leader
        tablet, uuid = str(group.tablet), str(group.uuid(leader))
        handlers: dict[Any, Any] = dict(leader.server.handlers())
        for method in handlers:
            if method.shape is not Shape.UNARY:
                continue
            texts = (tablet,) if method in BY_OPERATORS else (tablet, uuid, group.cluster_id)
            fixed = {"tablet_id": tablet} | (
                {} if method in BY_OPERATORS else {"destination_uuid": uuid}
            )
            for request in requests_of(rng, kind_of(method), 44, texts, (1, 2), (), fixed):
                asked[method.path, await outcome(group.ask, leader, method, request)] += 1

    with caplog.at_level(logging.ERROR):
        with_table(work)
    assert not unclean(asked)
    assert not [r.getMessage() for r in caplog.records if r.exc_info]
    assert asked.total() > 700


@pytest.mark.parametrize("seed", range(2))
def test_scans_and_writes_answer_or_refuse_every_message(seed, caplog):
    asked: Counter[tuple[str, str]] = Counter()

    async def work(group: Group) -> None:
        rng, leader = random.Random(SEED + seed), group.leader
        handlers: dict[Any, Any] = dict(leader.server.handlers())
        for raw in tokens(rng, group, 250):

            async def scan(ticket: Any) -> None:
                async for _ in handlers[methods.DO_GET](ticket):
                    pass

            ticket = flight_pb2.Ticket(ticket=raw)
            asked["scan", await outcome(group.cluster.run, leader, scan, ticket)] += 1
        batch = flight.batch_data(_rows())
        for header in headers(rng, group, 250):
            hidden = rng.random() < 0.3

            async def write(raw: bytes, damaged: bool) -> None:
                async def sent() -> AsyncIterator[FlightData]:
                    yield flight.schema_data(_rows().schema)
                    body = (
                        mutations(bytes(batch.body or b"\0"), len(raw), 1)[0]
                        if damaged
                        else batch.body
                    )
                    yield FlightData(batch.header, body, raw)

                async for answer in handlers[methods.DO_PUT](sent()):
                    result = pb.WriteResult.FromString(answer.app_metadata)
                    if result.HasField("error"):
                        raise status.from_proto(result.error)

            asked["write", await outcome(group.cluster.run, leader, write, header, hidden)] += 1

    with caplog.at_level(logging.ERROR):
        with_table(work)
    assert not unclean(asked)
    assert not [r.getMessage() for r in caplog.records if r.exc_info]
    assert asked.total() > 300


def _rows() -> Any:
    import pyarrow as pa

    return pa.record_batch([pa.array([100, 101]), pa.array([1, 2])], names=["k", "v"])
