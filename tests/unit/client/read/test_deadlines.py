"""Deadlines of calls hold, whatever the servers do: in virtual time."""

import pyarrow as pa
import pytest

from nyala.client.hold import Holding
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import OutcomeUnknown, TimedOut, Unavailable
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.holds import scenario

TIMEOUT_MS = 3_000


@scenario
async def test_read_of_paused_servers_ends_at_its_deadline(s):
    await s.write(1)
    [token] = await s.on(s.core.reader.tokens, s.table, ReadSpec(), TIMEOUT_MS)
    for process in s.cluster.tservers:
        process.pause()
    began = s.loop.time()
    with pytest.raises(TimedOut, match="sent nothing"):
        await s.on(s.core.reader.collect, token)
    assert s.loop.time() - began <= TIMEOUT_MS / 1000 + 0.5


@scenario
async def test_scan_at_a_silent_leader_waits_for_an_election_and_not_for_the_server(s):
    await s.write(1)
    [token] = await s.on(s.core.reader.tokens, s.table, ReadSpec(latest=True), 20_000)
    leader = s.cluster.leader_of(s.group)
    leader.pause()
    began = s.loop.time()
    [found] = await s.on(s.core.reader.collect, token)
    assert found.column("v").to_pylist() == [1]
    assert s.loop.time() - began < 3
    leader.resume()


async def started(s):
    """Return an ordered scan of 400 rows, more than a stream buffers, after its first ten rows."""
    rows = pa.record_batch([pa.array(range(400)), pa.array([1] * 400)], names=["k", "v"])
    await s.on(
        lambda: s.core.session.write(
            s.table, pb.UPSERT, rows, all_or_nothing=False, timeout_ms=20_000
        )
    )
    [token] = await s.on(s.core.reader.tokens, s.table, ReadSpec(ordered=True), TIMEOUT_MS)
    token.batch_rows = 10
    scan = s.core.reader.run(token)
    assert (await s.on(anext, scan)).num_rows == 10
    return scan


@scenario
async def test_time_of_a_slow_reader_does_not_count_towards_the_deadline(s):
    scan = await started(s)
    await s.loop.delay(3 * TIMEOUT_MS * 1000)
    s.cluster.leader_of(s.group).kill()

    async def rest():
        return [k async for batch in scan for k in batch.column("k").to_pylist()]

    assert await s.on(rest) == list(range(10, 400))


@scenario
async def test_server_that_stops_during_a_read_is_awaited_no_longer_than_the_deadline(s):
    scan = await started(s)
    for process in s.cluster.tservers:
        process.pause()
    last = [s.loop.time()]

    async def rest():
        async for _ in scan:
            last.append(s.loop.time())

    with pytest.raises(TimedOut, match="sent nothing"):
        await s.on(rest)
    assert s.loop.time() - last[-1] <= 2 * TIMEOUT_MS / 1000 + 0.5, (
        "one deadline of the server, one of the others"
    )


async def ends_in_time(s, call, error=TimedOut):
    began = s.loop.time()
    with pytest.raises(error):
        await s.on(call)
    assert s.loop.time() - began <= TIMEOUT_MS / 1000 + 0.5


@scenario
async def test_write_of_unreachable_servers_ends_at_its_deadline(s):
    for process in s.cluster.masters:
        process.pause()
    for process in s.cluster.tservers:
        process.kill()
    rows = pa.record_batch([pa.array([1]), pa.array([1])], names=["k", "v"])

    async def write():
        await s.core.session.write(
            s.table, pb.UPSERT, rows, all_or_nothing=True, timeout_ms=TIMEOUT_MS
        )

    await ends_in_time(s, write, (TimedOut, OutcomeUnknown))


@scenario
async def test_hold_of_silent_servers_ends_at_its_deadline(s):
    at = await s.write(1)
    for process in s.cluster.tservers:
        process.pause()

    async def hold():
        holding = Holding(s.core.env, s.core.locations, s.table, at, 60_000)
        await holding.begin(TIMEOUT_MS)

    await ends_in_time(s, hold, Unavailable)


@scenario
async def test_hold_that_a_majority_keeps_within_the_deadline_succeeds(s):
    at = await s.write(1)
    s.cluster.tservers[0].pause()

    async def hold():
        holding = Holding(s.core.env, s.core.locations, s.table, at, 60_000)
        await holding.begin(TIMEOUT_MS)
        return holding.left_ms()

    assert await s.on(hold) > 50_000


@scenario
async def test_lookup_without_a_known_leader_ends_at_its_deadline(s):
    for process in s.cluster.servers:
        process.pause()
    [tablet] = s.table.tablets
    tablet.leader = None
    keys = pa.record_batch([pa.array([1], pa.int64())], names=["k"])

    async def get():
        await s.core.getter.get(s.table, tablet, [b"k" * 8], lambda: keys, None, TIMEOUT_MS)

    await ends_in_time(s, get)


@scenario
async def test_opening_of_a_table_ends_at_its_deadline(s):
    rpc = s.core.env.rpc
    call = rpc.call

    async def slow(address, method, request, *, timeout_ms):
        if method is methods.DESCRIBE_TABLE:
            await s.core.env.tasks.sleep_ms(TIMEOUT_MS - 500)
        elif method is methods.TABLET_LOCATIONS:
            for process in s.cluster.masters:
                process.pause()
        return await call(address, method, request, timeout_ms=timeout_ms)

    rpc.call = slow

    async def open_table():
        await s.core.locations.open("t", TIMEOUT_MS)

    await ends_in_time(s, open_table)
