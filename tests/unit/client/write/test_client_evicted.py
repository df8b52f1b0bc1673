"""A tablet that has evicted clients refuses an operation: a client that sent it only once repeats it."""

import random
from typing import cast

import pyarrow as pa
import pytest

from nyala.client.cluster.tablet_cache import TabletCache
from nyala.client.deadline import Attempts
from nyala.client.write.delivery import Delivery
from nyala.client.write.put_streams import PutStreams
from nyala.client.write.sequencer import Sequencer, Sequences
from nyala.common.errors import (
    InvalidArgument,
    NyalaError,
    OutcomeUnknown,
    SessionExpired,
    Throttled,
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
from tests.unit.client.support.client_delivery import Places, Streams


def session_expired(until: int) -> SessionExpired:
    details = {"reason": "CLIENT_FORGOTTEN", "forgotten_until": str(until)}
    return SessionExpired("not known (any more)", details)


def too_far_ahead(latest: int) -> InvalidArgument:
    return InvalidArgument("ahead of this server's clock", {"latest_since": str(latest)})


class RecordingStreams(Streams):
    """Records the `since` of each attempt."""

    def __init__(self, script: list[NyalaError | None]) -> None:
        super().__init__(script)
        self.since: list[int] = []

    async def put(
        self, header: pb.WriteHeader, parts: tuple[memoryview, memoryview], timeout_ms: int
    ) -> pb.WriteResult:
        self.since.append(header.since)
        return await super().put(header, parts, timeout_ms)


def deliver(
    *script: NyalaError | None, since: int | None = None, seen: int = 7
) -> tuple[list[int], NyalaError | None]:
    """Deliver a request; return the times that were sent, and the error."""
    streams = RecordingStreams(list(script))

    async def main(loop: SimLoop) -> NyalaError | None:
        env = Env(
            SimClock(loop),
            random.Random(7),
            SystemFiles(),
            SimTasks(loop, random.Random(7)),
            GrpcRpc(),
        )
        where = table()
        where.tablets[0].replicas = ((ServerUuid("1"), "127.0.0.1:1"),)
        clock = HybridClock(SimClock(loop))
        clock.merge(seen)
        delivery = Delivery(cast("TabletCache", Places()), clock, cast("PutStreams", streams))
        requests = Sequencer(b"c" * 16, Sequences(keep_results=since is not None), delivery, since)
        piece: pa.RecordBatch = rows(1)
        try:
            await requests.deliver(where, where.tablets[0], 3, piece, False, Attempts(env, 10_000))
        except NyalaError as err:
            return err
        return None

    error = run(main)
    return streams.since, error


def test_write_sent_once_and_refused_as_forgotten_is_sent_with_new_start_time():
    assert deliver(session_expired(100), None) == ([7, 101], None)
    assert deliver(Throttled("wait"), session_expired(100), session_expired(200), None) == (
        [7, 7, 101, 201],
        None,
    )


def test_possibly_executed_write_is_not_sent_again():
    sent, error = deliver(OutcomeUnknown("?"), session_expired(100))
    assert sent == [7, 7]
    assert isinstance(error, SessionExpired)
    sent, error = deliver(OutcomeUnknown("?"), too_far_ahead(5))
    assert sent == [7, 7]
    assert isinstance(error, OutcomeUnknown)


def test_write_of_client_that_saw_a_wrong_clock_is_sent_with_the_leader_s_time():
    assert deliver(too_far_ahead(100), None, seen=900) == ([900, 100], None)
    assert deliver(
        too_far_ahead(100), session_expired(150), too_far_ahead(140), None, seen=900
    ) == (
        [900, 100, 151, 140],
        None,
    )
    sent, error = deliver(InvalidArgument("no such column"), seen=900)
    assert sent == [900]
    assert isinstance(error, InvalidArgument)


@pytest.mark.parametrize("since", [0, 50])
def test_writes_possibly_sent_by_another_process_keep_their_start_time(since):
    sent, error = deliver(session_expired(100), since=since)
    assert sent == [since]
    assert isinstance(error, SessionExpired)
    sent, error = deliver(too_far_ahead(40), since=since)
    assert sent == [since]
    assert isinstance(error, InvalidArgument)


def test_session_expired_for_other_reason_is_final():
    sent, error = deliver(SessionExpired("its result is not kept any more"))
    assert sent == [7]
    assert isinstance(error, SessionExpired)
