"""One request to servers with scripted answers: the final result of the caller."""

import random
from typing import cast

import pytest

from nyala.client.cluster.tablet_cache import TabletCache
from nyala.client.deadline import Attempts
from nyala.client.write.delivery import Delivery
from nyala.client.write.put_streams import PutStreams
from nyala.common.errors import NyalaError, OutcomeUnknown, SchemaMismatch, SessionExpired
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.client.support.client_combining import rows, table
from tests.unit.client.support.client_delivery import Places, Streams


def deliver(*script: NyalaError | None) -> pb.WriteResult:
    async def main(loop: SimLoop) -> pb.WriteResult:
        clock, rng = SimClock(loop), random.Random(7)
        env = Env(clock, rng, SystemFiles(), SimTasks(loop, rng), GrpcRpc())
        where = table()
        where.tablets[0].leader = "127.0.0.1:1"
        delivery = Delivery(
            cast("TabletCache", Places()),
            HybridClock(clock),
            cast("PutStreams", Streams(list(script))),
        )
        header = pb.WriteHeader(tablet_id=where.tablets[0].id)
        return await delivery.send(where, where.tablets[0], header, rows(1), Attempts(env, 10_000))

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
