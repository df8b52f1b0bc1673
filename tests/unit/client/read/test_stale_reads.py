"""Stale reads through the real client, servers and replicas, in virtual time: serving replica and age."""

import pyarrow as pa
import pytest

from nyala.client.core import ClientOptions
from nyala.client.read.read_spec import ReadSpec, scan_spec
from nyala.common.errors import InvalidArgument
from nyala.common.schema import from_arrow
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.unconnected import unconnected_table


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([1] * len(values)), pa.array(values)], names=["k", "v"])


class Scenario:
    """A cluster with one table of one tablet, one client, and the headers of its reads."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop, seed=5, masters=1)
        self.headers: list[pb.ScanHeader] = []

    async def start(self) -> "Scenario":
        await self.cluster.start()
        self.core = self.cluster.client(ClientOptions(timeout_ms=20_000))
        self.table = await self.cluster.create_table(self.core)
        return self

    async def write(self, value: int) -> int:
        done = await self.cluster.run(self.cluster.clients[-1], self._write, value)
        assert isinstance(done, int)
        return done

    async def _write(self, value: int) -> int:
        written = await self.core.session.write(
            self.table, pb.UPSERT, rows(value), all_or_nothing=False, timeout_ms=20_000
        )
        return written.timestamp

    async def stale(self, max_age_ms: int) -> tuple[list[int], pb.ScanHeader]:
        """Return the values read, and the header of the scan."""
        found = await self.cluster.run(self.cluster.clients[-1], self._stale, max_age_ms)
        assert isinstance(found, list)
        return found, self.headers[-1]

    async def _stale(self, max_age_ms: int) -> list[int]:
        spec = ReadSpec(latest=True, max_age_ms=max_age_ms)
        tokens = await self.core.reader.tokens(self.table, spec, 20_000)
        found = await self.core.reader.collect_all(tokens, self.headers.append)
        return [v for part in found for batch in part for v in batch.column("v").to_pylist()]

    def leader_uuid(self) -> str:
        leader = self.cluster.leader_of(self.table.tablets[0].id)
        assert leader is not None
        return str(leader.server.uuid)


def scenario(fn):
    def wrapped():
        async def main(loop: SimLoop) -> None:
            await fn(await Scenario(loop).start())

        run(main, max_time_s=200)

    wrapped.__name__ = fn.__name__
    return wrapped


@scenario
@pytest.mark.row("W8")
async def test_follower_serves_read_within_staleness_bound_and_reports_age(s):
    await s.write(1)
    await s.loop.delay(500_000)
    values, header = await s.stale(5_000)
    assert values == [1]
    assert header.server_uuid != s.leader_uuid()
    assert 0 < header.age_ms <= 5_000


@scenario
async def test_leader_serves_stale_read_when_followers_exceed_bound(s):
    await s.write(1)
    await s.loop.delay(10_000_000)
    await s.write(2)
    values, header = await s.stale(20)
    assert values == [2], "the leader serves the read"
    assert header.server_uuid == s.leader_uuid()
    assert header.age_ms <= 20
    await s.loop.delay(500_000)
    values, header = await s.stale(1_000)
    assert header.server_uuid != s.leader_uuid(), "the leader continues to close time for a while"


@scenario
async def test_stale_read_is_not_older_than_reported(s):
    stamps: dict[int, int] = {}
    for value in range(1, 30):
        stamps[value] = (await s.write(value)) >> 12
        asked_us = s.core.env.clock.wall_us()
        values, header = await s.stale(400)
        assert header.age_ms <= 400
        then_us = asked_us - 1000 * header.age_ms
        assert (values or [0])[0] >= max(
            [v for v, at in stamps.items() if at <= then_us], default=0
        )
        await s.loop.delay(70_000)


@scenario
async def test_stale_reads_continue_without_leader(s):
    await s.write(1)
    await s.loop.delay(500_000)
    leader = s.cluster.leader_of(s.table.tablets[0].id)
    leader.pause()
    began_us = s.loop.time()
    values, header = await s.stale(60_000)
    assert values == [1]
    assert header.server_uuid != s.leader_uuid()
    assert s.loop.time() - began_us < 0.1
    leader.resume()


def test_staleness_bound_must_be_a_number_of_milliseconds():
    schema = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
    table = unconnected_table(schema)
    for wrong in (-1, 1.5, True, 1 << 63, "1s"):
        with pytest.raises(InvalidArgument, match="milliseconds"):
            table.scan(mode="stale", max_age_ms=wrong)  # type: ignore[arg-type]
    spec = scan_spec(schema, None, None, None, None, False, "stale", 250)
    assert (spec.latest, spec.max_age_ms, spec.at) == (True, 250, 0)
    assert table.scan(mode="stale", max_age_ms=0).age_ms == 0
