"""Splits of scans by bytes, with the real client, servers and replicas in virtual time; refusals."""

import functools

import pyarrow as pa
import pytest

from nyala.client.core import ClientOptions
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.split_tokens import split_all
from nyala.client.scan_token import ScanToken
from nyala.common.errors import InvalidArgument
from nyala.common.ids import TabletId
from nyala.common.schema import from_arrow
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.unconnected import unconnected_table

ROWS, TABLETS = 3000, 2
ROW_BYTES = 16


class Scenario:
    """A cluster with one table of a few tablets, and one client."""

    def __init__(self, loop: SimLoop) -> None:
        self.cluster = SimCluster(loop, seed=6, masters=1)

    async def start(self) -> "Scenario":
        await self.cluster.start()
        self.core = self.cluster.client(ClientOptions(timeout_ms=20_000))
        self.do = functools.partial(self.cluster.run, self.cluster.clients[-1])
        self.table = await self.cluster.create_table(self.core, tablets=TABLETS)
        await self.do(self._write, range(ROWS))
        return self

    async def _write(self, keys: range) -> None:
        batch = pa.record_batch([pa.array(keys), pa.array(keys)], names=["k", "v"])
        await self.core.session.write(
            self.table, pb.UPSERT, batch, all_or_nothing=False, timeout_ms=20_000
        )

    async def split(self, size: int, **spec: object) -> list[pb.ScanToken]:
        """Return the splits of a scan after serialisation."""

        async def made() -> list[pb.ScanToken]:
            wanted = ReadSpec(**spec)  # type: ignore[arg-type]  # what the caller says
            tokens = await self.core.reader.tokens(self.table, wanted, 20_000)
            assert len(tokens) == TABLETS
            return await split_all(self.core.env, self.core.reader, tokens, size)

        pieces = await self.do(made)
        assert isinstance(pieces, list)
        return [pb.ScanToken.FromString(bytes(ScanToken(p))) for p in pieces]

    async def read(self, pieces: list[pb.ScanToken], column: str = "k") -> list[list[int]]:
        found = await self.do(self.core.reader.collect_all, pieces)
        assert isinstance(found, list)
        return [[v for b in part for v in b.column(column).to_pylist()] for part in found]


def scenario(fn):
    def wrapped():
        async def main(loop: SimLoop) -> None:
            await fn(await Scenario(loop).start())

        run(main, max_time_s=200)

    wrapped.__name__ = fn.__name__
    return wrapped


@pytest.mark.row("A6")
@scenario
async def test_splits_return_all_rows_once_at_one_snapshot_in_any_process(s):
    size = 200 * ROW_BYTES
    pieces = await s.split(size, ordered=True)
    assert ROWS / 200 * 0.8 < len(pieces) < ROWS / 200 * 1.2
    assert len({p.at for p in pieces}) == 1
    await s.do(s._write, range(ROWS, ROWS + 500))
    found = await s.read(pieces)
    assert sorted(k for part in found for k in part) == list(range(ROWS))
    assert all(100 < len(part) < 300 for part in found)
    for tablet in s.table.tablets:
        of_tablet = [
            part for p, part in zip(pieces, found, strict=True) if p.tablet_id == tablet.id
        ]
        keys = [k for part in of_tablet for k in part]
        assert keys == sorted(keys)
    counts = await s.read(await s.split(size, at=pieces[0].at, columns=("k",)))
    assert sum(map(len, counts)) == ROWS
    for piece in pieces:
        piece.count_only = True
    assert [n for [n] in await s.read(pieces, "_count")] == [len(part) for part in found]


@pytest.mark.row("A6")
@scenario
async def test_split_names_its_servers_with_leader_first(s):
    pieces = await s.split(200 * ROW_BYTES)
    addresses = {t.address for t in s.cluster.tservers}
    for token in map(ScanToken, pieces):
        leader = s.cluster.leader_of(TabletId(token.tablet_id))
        assert token.replicas[0] == leader.address
        assert set(token.replicas) == addresses
        assert len(token.replicas) == 3


@scenario
async def test_split_points_are_available_from_any_replica(s):
    leader = s.cluster.leader_of(s.table.tablets[0].id)
    before = await s.split(200 * ROW_BYTES, at=1 << 62)
    leader.kill()
    s.core.reader.relocate = None  # without a call to the masters
    after = await s.split(200 * ROW_BYTES, at=1 << 62)
    assert [p.key_lower for p in after] == [p.key_lower for p in before]


@scenario
async def test_unsplittable_scan_is_refused_by_server(s):
    with pytest.raises(InvalidArgument, match="at most 4096: choose pieces of"):
        await s.split(1)
    with pytest.raises(InvalidArgument, match="only scans can be split"):
        await s.split(1000, changes=True, at=1 << 40)


def test_unsplittable_scan_is_refused_by_client_without_request():
    schema = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
    table = unconnected_table(schema)
    for wrong in (0, -1, 1.5, True, "64M", 1 << 63):
        with pytest.raises(InvalidArgument, match="a positive number of bytes, for instance"):
            table.scan().tokens(split_bytes=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="order of time"):
        table.changes(1).tokens(split_bytes=1000)
    for scan in (table.scan(mode="latest"), table.scan(mode="stale", max_age_ms=5)):
        with pytest.raises(InvalidArgument, match='mode="snapshot"'):
            scan.tokens(split_bytes=1000)
