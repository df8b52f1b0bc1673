"""One request to servers with scripted answers: the final result of the caller."""

import random
from typing import cast

import pytest

from nyala.client.cluster.tablet_cache import TabletCache
from nyala.client.deadline import Attempts
from nyala.client.write.delivery import Delivery
from nyala.client.write.put_streams import PutStreams
from nyala.common.errors import (
    NyalaError,
    OutcomeUnknown,
    RangesChanged,
    SchemaMismatch,
    SessionExpired,
    Throttled,
    Unavailable,
)
from nyala.common.ids import ServerUuid
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.client.support.client_combining import rows, table
from tests.unit.client.support.client_delivery import DroppedRange, Places, Streams


def deliver(
    *script: NyalaError | None, places: Places | None = None, streams: Streams | None = None
) -> pb.WriteResult:
    async def main(loop: SimLoop) -> pb.WriteResult:
        clock, rng = SimClock(loop), random.Random(7)
        env = Env(clock, rng, SystemFiles(), SimTasks(loop, rng), GrpcRpc())
        where = table()
        where.tablets[0].replicas = ((ServerUuid("1"), "127.0.0.1:1"),)
        delivery = Delivery(
            cast("TabletCache", places or Places()),
            HybridClock(clock),
            cast("PutStreams", streams or Streams(list(script))),
        )
        header = pb.WriteHeader(tablet_id=where.tablets[0].id)
        result = await delivery.send(
            where, where.tablets[0], header, rows(1), Attempts(env, 10_000)
        )
        result.timestamp = int(loop.time() * 1000)  # elapsed milliseconds
        return result

    return run(main)


def test_attempt_with_unknown_outcome_is_repeated():
    assert deliver(OutcomeUnknown("?"), None).rows == 1


def test_refusal_of_first_attempt_is_final():
    with pytest.raises(SchemaMismatch):
        deliver(SchemaMismatch("no"))


def test_refusal_after_unknown_outcome_leaves_outcome_unknown():
    with pytest.raises(OutcomeUnknown, match="earlier try"):
        deliver(OutcomeUnknown("?"), SchemaMismatch("no"))


def test_expired_session_is_reported_after_unknown_outcome():
    with pytest.raises(SessionExpired):
        deliver(OutcomeUnknown("?"), SessionExpired("long ago"))


def test_throttled_write_waits_as_long_as_the_server_asks():
    assert deliver(Throttled("full", {"retry_after_ms": "3000"}), None).timestamp >= 3_000
    assert deliver(Throttled("full"), None).timestamp < 1_000


def test_streams_of_a_silent_server_are_abandoned():
    silent, answering = (Streams([OutcomeUnknown("?"), None], silent=s) for s in (True, False))
    deliver(streams=silent)
    deliver(streams=answering)
    assert (silent.abandoned, answering.abandoned) == (["127.0.0.1:1"], [])


def test_dropped_range_leaves_outcome_of_unanswered_attempt_unknown():
    with pytest.raises(OutcomeUnknown, match="an earlier try of the same rows was not answered"):
        deliver(OutcomeUnknown("?"), places=DroppedRange())
    with pytest.raises(RangesChanged):
        deliver(Unavailable("gone", {"sent": "no"}), places=DroppedRange())
