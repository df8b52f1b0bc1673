"""Slow scans keep their snapshot; a client reads its own writes and reads. In virtual time."""

import pyarrow as pa
import pytest

from nyala.client.read.read_spec import ReadSpec, scan_spec
from nyala.client.read.token_reader import STALL_MS
from nyala.common.errors import HistoryGone
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
    assert STALL_MS / 1000 <= s.loop.time() - began < STALL_MS / 1000 + 10


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
