"""Slow scans keep their snapshot; a client reads its own writes and reads. In virtual time."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.read.progress import ScanProgress
from nyala.client.read.read_spec import ReadSpec, scan_spec
from nyala.client.read.token_reader import STALL_MS
from nyala.common.errors import HistoryGone, Unavailable
from nyala.common.hybrid_time import LOGICAL_BITS
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.holds import SECOND, scenario

ROWS = 400
"""Number of rows, more than a stream buffers without a reader, at ten rows a message."""


async def upsert(s, value):
    rows = pa.record_batch([pa.array(range(ROWS)), pa.array([value] * ROWS)], names=["k", "v"])

    async def writing():
        return await s.core.session.write(
            s.table, pb.UPSERT, rows, all_or_nothing=False, timeout_ms=20_000
        )

    return (await s.on(writing)).timestamp


async def started(s, **spec):
    """Return a scan's token, and the scan after its first batch of ten rows."""
    tokens = await s.on(s.core.reader.tokens, s.table, ReadSpec(**spec), 20_000)
    [token] = tokens
    token.batch_rows = 10
    scan = s.core.reader.run(token)
    return token, scan, (await s.on(anext, scan)).to_pylist()


async def rest_of(s, scan):
    async def reading():
        return [r async for b in scan for r in b.to_pylist()]

    return await s.on(reading)


@pytest.mark.full
@scenario
@pytest.mark.row("A5")
async def test_slowly_read_scan_keeps_its_snapshot_while_history_is_collected(s):
    await upsert(s, 1)
    token, scan, rows = await started(s)
    for value in (2, 3):
        await upsert(s, value)
        await s.loop.delay(3 * SECOND)
    await upsert(s, 4)
    await s.settle()
    with pytest.raises(HistoryGone):
        await s.read(token.at)
    assert len(rows) == 10, "the server waits for a slow reader"
    rows += await rest_of(s, scan)
    assert sorted(r["k"] for r in rows) == list(range(ROWS))
    assert {r["v"] for r in rows} == {1}


@scenario
@pytest.mark.row("A5")
async def test_server_silent_during_scan_is_replaced_by_another(s):
    await upsert(s, 1)
    _, scan, rows = await started(s, ordered=True)
    s.cluster.leader_of(s.group).pause()
    began = s.loop.time()
    rows += await rest_of(s, scan)
    assert [r["k"] for r in rows] == list(range(ROWS))
    assert s.loop.time() - began < 2


@scenario
async def test_read_of_a_server_that_falls_silent_begins_again_at_the_new_leader(s):
    await upsert(s, 1)
    [token] = await s.on(s.core.reader.tokens, s.table, ReadSpec(), 20_000)
    token.batch_rows = 10
    paused: list[Any] = []
    add = ScanProgress.add

    def pause_after_first(read, batch):
        if not paused:
            paused.append(s.cluster.leader_of(s.group))
            paused[0].pause()
        return add(read, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScanProgress, "add", pause_after_first)
        began = s.loop.time()
        batches = await s.on(s.core.reader.collect, token)
    assert sorted(k for b in batches for k in b.column("k").to_pylist()) == list(range(ROWS))
    assert s.loop.time() - began < 3


@scenario
async def test_reads_of_one_tablet_that_wait_for_its_leader_ask_the_masters_together(s):
    await upsert(s, 1)
    [token] = await s.on(s.core.reader.tokens, s.table, ReadSpec(), 20_000)
    asked = []
    look_up = s.core.masters.look_up

    async def counted(*args, **more):
        asked.append(s.loop.time())
        return await look_up(*args, **more)

    s.core.masters.look_up = counted
    s.cluster.leader_of(s.group).pause()

    async def read_all():
        return await asyncio.gather(*(s.core.reader.collect(token) for _ in range(50)))

    found = await s.on(read_all)
    assert {sum(b.num_rows for b in batches) for batches in found} == {ROWS}
    assert len(asked) < 20


@scenario
async def test_stream_without_order_awaits_its_server_for_longer_since_nobody_can_go_on(s):
    await upsert(s, 1)
    _, scan, _ = await started(s)
    s.cluster.leader_of(s.group).pause()
    began = s.loop.time()
    with pytest.raises(Unavailable, match="run it again, or use to_arrow"):
        await rest_of(s, scan)
    assert STALL_MS / 1000 <= s.loop.time() - began < STALL_MS / 1000 + 5


@scenario
async def test_stale_read_of_a_stopped_follower_goes_on_at_another_replica(s):
    stamp = await upsert(s, 1)
    await s.loop.delay(SECOND)
    leader = s.cluster.leader_of(s.group)
    follower = next(p for p in s.cluster.tservers if p is not leader)

    async def read(stop):
        [token] = await s.on(
            s.core.reader.tokens,
            s.table,
            ReadSpec(latest=True, max_age_ms=60_000, ordered=True),
            20_000,
        )
        token.batch_rows = 10
        token.replicas[:] = [leader.address, follower.address]
        headers: list[Any] = []
        began = s.loop.time()
        scan = s.core.reader.run(token, on_header=headers.append)
        if stop == "before":
            follower.pause()
        rows = (await s.on(anext, scan)).to_pylist()
        if stop == "during":
            follower.pause()
        rows += await rest_of(s, scan)
        follower.resume()
        assert [r["k"] for r in rows] == list(range(ROWS))
        uuids = [h.server_uuid for h in headers]
        return uuids, s.loop.time() - began, min(h.at for h in headers)

    own, led = follower.server.uuid, leader.server.uuid
    for stop, served in (("before", [led]), ("during", [own, led]), ("never", [own])):
        uuids, seconds, at = await read(stop)
        assert uuids == served
        assert seconds < 2
        assert at >= stamp


@scenario
@pytest.mark.row("A7")
async def test_read_your_writes_includes_all_writes_and_observed_times(s):
    spec = scan_spec(s.table.schema, None, None, None, None, False, "read_your_writes", None)

    async def read():
        tokens = await s.on(s.core.reader.tokens, s.table, spec, 20_000)
        found = await s.on(s.core.reader.collect_all, tokens)
        return tokens[0].at, [v for p in found for b in p for v in b.column("v").to_pylist()]

    for value in range(6):
        stamp = await s.write(value)
        if value % 3 == 1:
            process = s.cluster.leader_of(s.group)
            process.kill()
            process.start()
        at, values = await read()
        assert at >= stamp
        assert values == [value]
    ahead = s.core.clock.seen + (2 * SECOND << LOGICAL_BITS)
    s.core.clock.merge(ahead)  # as an answer of another cluster or program
    at, values = await read()
    assert at >= ahead
    assert values == [5]
    assert await s.write(6) > ahead
    assert (await read())[1] == [6]
