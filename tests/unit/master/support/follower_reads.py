"""Masters with a table, for the tests of look-ups at followers."""

from nyala.wire.proto import nyala_pb2 as pb

BOUND_MS = 5_000


def within(max_age_ms=BOUND_MS, not_before=0):
    return pb.Staleness(max_age_ms=max_age_ms, not_before=not_before)


async def started(masters):
    """Start, with three tablet servers and a table; return the leader and the table."""
    masters.start()
    leader = await masters.leader()
    await masters.heartbeat("a", "b", "c")
    await masters.loop.delay(2_000_000)
    await masters.heartbeat("a", "b", "c")
    table_id = await masters.create(leader, "t")
    await masters.loop.delay(1_000_000)
    return leader, table_id
