"""Small writes combined in one request: combinations, and the results of each caller."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pyarrow as pa
import pytest

from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.client.request_queue import IN_FLIGHT
from nyala.client.write.coalescer import Coalescer
from nyala.client.write.pending_call import Call, Written
from nyala.common.errors import InvalidArgument, NyalaError, OutcomeUnknown, TimedOut, Unavailable
from nyala.common.schema import Schema
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.client.support.client_combining import SCHEMA, rows, table


class Server:
    """Server that answers requests on the test's command."""

    def __init__(self, loop: SimLoop) -> None:
        self.requests: list[tuple[str, int, list[int]]] = []
        self.answers: list[asyncio.Future[pb.WriteResult]] = []
        self.deadlines: list[int] = []
        self._loop = loop

    def send(
        self, tablet: TabletLocation, like: Call, batch: pa.RecordBatch, deadline_us: int
    ) -> Awaitable[pb.WriteResult]:
        self.requests.append((tablet.id, like.op, batch.column(0).to_pylist()))
        self.deadlines.append(deadline_us)
        self.answers.append(self._loop.create_future())
        return self.answers[-1]

    def sent(self) -> list[list[int]]:
        return [keys for _, _, keys in self.requests]

    def answer(self, number: int, *errors: tuple[int, str], timestamp: int = 9) -> None:
        errors_of_rows = [pb.RowError(row=row, code=code, message="m") for row, code in errors]
        self.answers[number].set_result(
            pb.WriteResult(timestamp=timestamp, row_errors=errors_of_rows)
        )

    def refuse(self, number: int, error: NyalaError) -> None:
        self.answers[number].set_exception(error)


class Bench:
    """A combiner, a server, and callers."""

    def __init__(self, loop: SimLoop, max_rows: int = 1000, max_bytes: int = 1 << 20) -> None:
        self.loop = loop
        self.server = Server(loop)
        self.alone: list[list[int | None]] = []
        clock, tasks = SimClock(loop), SimTasks(loop, random.Random(7))
        env = Env(clock, random.Random(7), SystemFiles(), tasks, GrpcRpc())
        self.combiner = Coalescer(
            env, self.server.send, self._alone, max_rows=max_rows, max_bytes=max_bytes
        )

    async def _alone(self, call: Call) -> Written:
        self.alone.append(call.batch.column(0).to_pylist())
        return Written(call.batch.num_rows, [], 1)

    def call(
        self, where: OpenTable, batch: pa.RecordBatch, op: int = pb.UPSERT, timeout_ms: int = 1000
    ) -> Call:
        made = Call(
            where, op, batch, batch.nbytes, self.loop.now_us() + timeout_ms * 1000, lambda: None
        )
        self.combiner.take(made)
        return made

    async def settle(self) -> None:
        await self.loop.delay(10)


def simulated(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on a loop of virtual time."""

    def wrapper() -> None:
        async def main(loop: SimLoop) -> None:
            await test(Bench(loop))

        run(main)

    wrapper.__name__ = test.__name__
    wrapper.__doc__ = test.__doc__
    return wrapper


@simulated
async def test_idle_queue_sends_immediately(bench):
    bench.call(table(), rows(1))
    await bench.settle()
    assert bench.server.sent() == [[1]]


@simulated
async def test_callers_of_one_loop_iteration_share_a_request_in_order(bench):
    for key in (3, 1, 2):
        bench.call(table(), rows(key))
    await bench.settle()
    assert bench.server.sent() == [[3, 1, 2]]


@simulated
async def test_callers_wait_while_queue_is_busy_and_are_sent_together(bench):
    for key in range(IN_FLIGHT + 3):
        bench.call(table(), rows(key))
        await bench.settle()
    alone = [[n] for n in range(IN_FLIGHT)]
    assert bench.server.sent() == alone
    bench.server.answer(0)
    await bench.settle()
    assert bench.server.sent() == [*alone, [IN_FLIGHT, IN_FLIGHT + 1, IN_FLIGHT + 2]]


@simulated
async def test_second_request_waits_for_as_many_callers_as_the_first(bench):
    for key in (1, 2, 3):
        bench.call(table(), rows(key))
    await bench.settle()
    for key in (4, 5):
        bench.call(table(), rows(key))
        await bench.settle()
    assert bench.server.sent() == [[1, 2, 3]]
    bench.call(table(), rows(6))
    await bench.settle()
    assert bench.server.sent() == [[1, 2, 3], [4, 5, 6]]
    bench.call(table(), rows(7))
    bench.server.answer(0)
    await bench.settle()
    assert len(bench.server.sent()) == 2
    bench.server.answer(1)  # no request is in flight any more
    await bench.settle()
    assert bench.server.sent()[2:] == [[7]]


@simulated
async def test_each_caller_gets_its_own_row_errors(bench):
    calls = [bench.call(table(), rows(*keys)) for keys in ((1, 2), (3,), (4, 5, 6), (7,))]
    await bench.settle()
    bench.server.answer(0, (4, "not_found"), (2, "immutable"), (1, "not_found"), timestamp=77)
    await bench.settle()
    assert [c.outcome() for c in calls] == [
        Written(1, [(1, "not_found", "m")], 77),
        Written(0, [(0, "immutable", "m")], 77),
        Written(2, [(1, "not_found", "m")], 77),
        Written(1, [], 77),
    ]


@simulated
async def test_different_ops_columns_and_tablets_are_not_combined(bench):
    where = table()
    bench.call(where, rows(1))
    bench.call(where, rows(2), op=pb.DELETE)
    bench.call(where, rows(3, columns=("k",)))
    bench.call(where, rows(4))
    await bench.settle()
    assert bench.server.sent() == [[1, 4], [2], [3]]
    assert [op for _, op, _ in bench.server.requests] == [pb.UPSERT, pb.DELETE, pb.UPSERT]


@simulated
async def test_another_schema_version_is_another_request(bench):
    newer = table()
    newer.schema = Schema(SCHEMA.columns, SCHEMA.key_ids, version=SCHEMA.version + 1)
    bench.call(table(), rows(1))
    bench.call(newer, rows(2))
    await bench.settle()
    assert bench.server.sent() == [[1], [2]]


@simulated
async def test_rows_are_routed_to_their_tablets_and_multi_tablet_call_is_not_combined(bench):
    where = table(buckets=4)
    for key in range(40):
        bench.call(where, rows(key))
    wide = bench.call(where, rows(*range(40)))
    await bench.settle()
    assert len(bench.server.requests) == 4
    assert sorted(k for keys in bench.server.sent() for k in keys) == list(range(40))
    assert bench.alone == [list(range(40))]
    assert wide.outcome().rows == 40


@simulated
async def test_null_key_is_not_combined(bench):
    bench.call(table(), rows(1))
    bench.call(table(), rows(None))
    await bench.settle()
    assert bench.server.sent() == [[1]]
    assert bench.alone == [[None]]


@simulated
async def test_refused_combined_request_fails_only_the_responsible_caller(bench):
    calls = [bench.call(table(), rows(key)) for key in (1, 2, 3)]
    await bench.settle()
    bench.server.refuse(0, InvalidArgument("one of them"))
    await bench.settle()
    assert bench.server.sent() == [[1, 2, 3], [1], [2], [3]]
    bench.server.answer(1)
    bench.server.refuse(2, InvalidArgument("it was me"))
    bench.server.answer(3)
    await bench.settle()
    assert calls[0].outcome().rows == calls[2].outcome().rows == 1
    with pytest.raises(InvalidArgument, match="it was me"):
        calls[1].outcome()


@simulated
async def test_unknown_outcome_is_raised_to_all_callers_without_resend(bench):
    calls = [bench.call(table(), rows(key)) for key in (1, 2)]
    await bench.settle()
    bench.server.refuse(0, OutcomeUnknown("?"))
    await bench.settle()
    assert bench.server.sent() == [[1, 2]]
    assert len({call.error for call in calls}) == 2, "each caller has an error of its own"
    for call in calls:
        with pytest.raises(OutcomeUnknown):
            call.outcome()


@simulated
async def test_cancelled_waiting_caller_is_not_sent(bench):
    calls = []
    for key in range(IN_FLIGHT + 2):
        calls.append(bench.call(table(), rows(key)))
        await bench.settle()
    calls[-2].over = True
    bench.server.answer(0)
    await bench.settle()
    assert bench.server.sent()[-1] == [IN_FLIGHT + 1]


@simulated
async def test_each_caller_has_its_own_deadline(bench):
    calls = []
    for number in range(IN_FLIGHT):  # a request is in flight
        calls.append(bench.call(table(), rows(0), timeout_ms=60_000 if number else 200))
        await bench.settle()
    short = bench.call(table(), rows(1), timeout_ms=200)
    await bench.loop.delay(1_000_000)
    with pytest.raises(OutcomeUnknown, match="may or may not have taken effect"):
        calls[0].outcome()
    with pytest.raises(TimedOut, match="no effect"):
        short.outcome()
    assert not calls[1].over


@simulated
async def test_combined_request_has_earliest_deadline_of_its_callers(bench):
    """The rows of a request are not sent again after a time-out of one of its callers."""
    for _ in range(IN_FLIGHT):
        bench.call(table(), rows(0), timeout_ms=60_000)
        await bench.settle()
    sharing = [
        bench.call(table(), rows(key), timeout_ms=timeout_ms)
        for key, timeout_ms in enumerate((55_000, 50_000, 57_000), 1)
    ]
    bench.server.answer(0)
    bench.server.answer(1)
    await bench.settle()
    assert bench.server.sent()[-1] == [1, 2, 3]
    assert bench.server.deadlines[-1] == min(c.deadline_us for c in sharing)


@simulated
async def test_callers_with_distant_deadlines_do_not_share_a_request(bench):
    for _ in range(IN_FLIGHT):
        bench.call(table(), rows(0), timeout_ms=60_000)
        await bench.settle()
    for key, timeout_ms in enumerate((1_000, 60_000, 1_200, 1_100, 1_000), 1):
        bench.call(table(), rows(key), timeout_ms=timeout_ms)
    for number in range(5):
        bench.server.answer(number)
        await bench.settle()
    assert bench.server.sent()[IN_FLIGHT:] == [[1], [2], [3, 4], [5]]


@simulated
async def test_combined_request_is_bounded_in_rows_and_bytes(bench):
    bench = Bench(bench.loop, max_rows=3)
    for key in range(0, 10, 2):
        bench.call(table(), rows(key, key + 1))
    bench.call(table(), rows(*range(100, 110)))
    for number in range(5):
        await bench.settle()
        bench.server.answer(number)
    await bench.settle()
    assert bench.server.sent() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], list(range(100, 110))]


@simulated
async def test_close_fails_all_waiting_callers(bench):
    calls = []
    for key in range(IN_FLIGHT + 1):
        calls.append(bench.call(table(), rows(key)))
        await bench.settle()
    bench.combiner.close()
    for call in calls[:-1]:
        with pytest.raises(OutcomeUnknown, match="closed"):
            call.outcome()
    with pytest.raises(Unavailable, match="nothing took effect"):
        calls[-1].outcome()
