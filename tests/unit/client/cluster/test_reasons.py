"""An error at the deadline names the last real reason, not that the last try had no time. On virtual time."""

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.deadline import SHORT_TRY_MS, Attempts, is_cut_short
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.snapshot_time import Times
from nyala.client.read.split_tokens import split_all
from nyala.common.errors import (
    NOT_SENT,
    NotFound,
    NotLeader,
    NotReady,
    NyalaError,
    RangesChanged,
    TimedOut,
    Unavailable,
)
from nyala.common.ids import ServerUuid
from nyala.env.env import Env
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run, seeded
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.client.support.client_bulk import opened

DEADLINES_MS = (40, 50, 61, 300, 900, 2_000)
ENOUGH_MS = 5
"""Time that an answer takes; a call with less gets none."""


class Slow:
    """Servers whose answers take `ENOUGH_MS`.

    Args:
        tasks: sleeps.
        answers: response or error, or a function of the address that returns one, by method.
    """

    def __init__(self, tasks: SimTasks, answers: dict[Any, Any]) -> None:
        self._tasks, self._answers = tasks, answers

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        if timeout_ms < ENOUGH_MS:
            await self._tasks.sleep_ms(timeout_ms)
            raise TimedOut(f"no response from {address} within {timeout_ms} ms")
        await self._tasks.sleep_ms(ENOUGH_MS)
        answer = self._answers.get(method, Unavailable("not here"))
        if callable(answer):
            answer = answer(address)
        if isinstance(answer, NyalaError):
            raise answer
        return answer


def failure(work: Any, answers: dict[Any, Any], timeout_ms: int, seed: int) -> NyalaError:
    """Return the error of `work(core)`, whose calls are answered by `answers`."""

    async def main(loop: Any) -> NyalaError:
        tasks = SimTasks(loop, seeded(seed))
        env = Env(SimClock(loop), seeded(seed), None, tasks, Slow(tasks, answers))  # type: ignore[arg-type]
        core = ClientCore(env, ["m:1", "m:2"], ClientOptions(timeout_ms=timeout_ms))
        with pytest.raises(NyalaError) as raised:
            await work(core)
        return raised.value

    return run(main)


def every_deadline(
    work: Any, answers: dict[Any, Any], expected: type[NyalaError], text: str
) -> None:
    """Check the error at many deadlines, so that some leave hardly any time for the last try."""
    for timeout_ms in DEADLINES_MS:
        for seed in range(8):
            err = failure(work, answers, timeout_ms, seed)
            assert isinstance(err, expected), f"{timeout_ms} ms, seed {seed}: {err!r}"
            assert text in err.message, f"{timeout_ms} ms, seed {seed}: {err.message}"


def servers(*addresses: str) -> pb.ListServersResponse:
    entries = [pb.ServerEntry(address=a, role="tserver", alive=True) for a in addresses]
    return pb.ListServersResponse(servers=entries)


def test_time_without_tablet_servers_names_them():
    every_deadline(
        ClientCore.now, {methods.LIST_SERVERS: servers()}, Unavailable, "no live tablet servers"
    )


def test_time_beside_servers_that_refuse_names_them():
    answers = {
        methods.LIST_SERVERS: servers("t:1", "t:2"),
        methods.SERVER_INFO: Unavailable("refused", NOT_SENT),
    }
    every_deadline(ClientCore.now, answers, Unavailable, "t:1, t:2 do not answer")


def located() -> OpenTable:
    """Return an open table whose tablets have three replicas."""
    table = opened()
    for tablet in table.tablets:
        tablet.replicas = tuple((ServerUuid(f"{n:032x}"), f"t:{n}") for n in (1, 2, 3))
    return table


def locations(table: OpenTable) -> pb.TabletLocationsResponse:
    answer = pb.TabletLocationsResponse(
        partition=convert.partition_schema_to_proto(table.partition_schema)
    )
    for tablet in table.tablets:
        added = answer.tablets.add(id=tablet.id, state="RUNNING")
        added.partition.CopyFrom(convert.partition_to_proto(tablet.partition))
        for uuid, address in tablet.replicas:
            added.replicas.add(uuid=uuid, address=address, voter=True)
    return answer


def test_snapshot_names_the_silent_replicas():
    table = located()
    answers = {
        methods.SERVER_INFO: Unavailable("refused", NOT_SENT),
        methods.TABLET_LOCATIONS: locations(table),
    }

    async def work(core: ClientCore) -> None:
        times = Times(core.env, core.locations, core.clock)
        await times.snapshot(table, core.options.timeout_ms)

    every_deadline(work, answers, Unavailable, "silent: t:1, t:2, t:3")


def test_only_servers_that_were_silent_at_the_last_real_try_are_named():
    def silent_at(timeout_ms: int, seed: int) -> str:
        asked: list[str] = []

        def answer(address: str) -> Any:
            asked.append(address)
            starting = address == "t:1" and len(asked) <= 2
            if starting or address == "t:2":
                return Unavailable("refused", NOT_SENT)
            return pb.ServerInfoResponse(hybrid_time=5 << 12)

        async def work(core: ClientCore) -> None:
            times = Times(core.env, core.locations, core.clock)
            both = {"t:1": None, "t:2": None}
            await times.time_of(both, [list(both)], core.options.timeout_ms)

        return failure(work, {methods.SERVER_INFO: answer}, timeout_ms, seed).message

    for timeout_ms in (SHORT_TRY_MS + 50, 900):
        for seed in range(40):
            assert "silent: t:2." in silent_at(timeout_ms, seed)


def test_hold_names_why_servers_refuse_it():
    table = located()
    answers = {
        methods.HOLD_HISTORY: Unavailable("its disk is full"),
        methods.TABLET_LOCATIONS: locations(table),
    }

    async def work(core: ClientCore) -> None:
        await core.hold(table, 5 << 12, 60_000)

    every_deadline(work, answers, Unavailable, "its disk is full")


def test_read_whose_ranges_change_at_every_try_says_so():
    table = located()

    async def work(core: ClientCore) -> None:
        plan = core.plan(table, ReadSpec())
        attempts = plan.attempts()
        while True:
            await plan.changed(attempts)

    every_deadline(
        work, {methods.TABLET_LOCATIONS: locations(table)}, RangesChanged, "changed at every try"
    )


def test_lookup_whose_ranges_change_at_every_try_says_so():
    table = located()
    keys = pa.record_batch([pa.array([1], pa.int64())], names=["k"])

    async def work(core: ClientCore) -> None:
        async def changed(*given: Any) -> Any:
            await core.env.tasks.sleep_ms(min(ENOUGH_MS, given[-1]))
            if given[-1] < ENOUGH_MS:
                raise TimedOut("no response")
            raise RangesChanged("its range was dropped")

        with patch.object(core.getter, "get", changed):
            await core.get(table, keys, None)

    every_deadline(
        work, {methods.TABLET_LOCATIONS: locations(table)}, RangesChanged, "its range was dropped"
    )


def test_lookup_that_has_no_time_for_a_scan_names_the_error_of_the_first_try():
    table = opened()

    async def work(core: ClientCore) -> None:
        attempts = Attempts(core.env, 20)
        broken = Unavailable("the stream is broken")
        keys = pa.record_batch([pa.array([1], pa.int64())], names=["k"])
        await core.getter.retry_via_scan(table, table.tablets[0], keys, None, attempts, broken)

    answers = {methods.TABLET_LOCATIONS: NotLeader("does not lead")}
    every_deadline(work, answers, Unavailable, "the stream is broken")


def test_split_names_why_replicas_refuse_it():
    table = located()

    async def work(core: ClientCore) -> None:
        timeout_ms = core.options.timeout_ms
        token = core.reader.token(table, table.tablets[0], ReadSpec(), 5 << 12, timeout_ms)
        await split_all(core.env, core.reader, [token], 1 << 20)

    answers = {
        methods.SPLIT_KEY_RANGE: Unavailable("its memory is full"),
        methods.TABLET_LOCATIONS: locations(table),
    }
    every_deadline(work, answers, TimedOut, "its memory is full")


def description(table: OpenTable, **more: Any) -> pb.DescribeTableResponse:
    spec = pb.TableSpec(
        name=table.name,
        schema=convert.schema_to_proto(table.schema),
        partition=convert.partition_schema_to_proto(table.partition_schema),
    )
    return pb.DescribeTableResponse(id=table.id, table=spec, **more)


def test_newer_schema_that_no_master_knows_is_named():
    table = located()

    async def work(core: ClientCore) -> None:
        await core.locations.open_again(table, 9, Attempts(core.env, core.options.timeout_ms))

    answers = {
        methods.DESCRIBE_TABLE: description(table),
        methods.TABLET_LOCATIONS: locations(table),
    }
    every_deadline(work, answers, Unavailable, "no master answers with version 9 of table 't'")


@pytest.mark.parametrize("fails", [False, True])
def test_creation_names_its_progress_or_why_it_is_not_known(fails):
    table = located()

    async def work(core: ClientCore) -> None:
        spec = pb.TableSpec(name="t")
        await core.ddl.create(spec, core.locations.open)

    answers = {
        methods.CREATE_TABLE: pb.CreateTableResponse(table_id=table.id),
        methods.DESCRIBE_TABLE: Unavailable("its catalog is full")
        if fails
        else description(table, tablets=4, tablets_running=1),
    }
    text = "its catalog is full" if fails else "only 1 of 4 tablets run yet, and 0 follow; watch it"
    every_deadline(work, answers, NotReady, text)


def test_only_errors_without_an_answer_are_cut_short():
    assert is_cut_short(TimedOut("late"), SHORT_TRY_MS - 1)
    assert is_cut_short(Unavailable("late"), SHORT_TRY_MS - 1)
    assert not is_cut_short(TimedOut("late"), SHORT_TRY_MS)
    assert not is_cut_short(Unavailable("refused", NOT_SENT), 1)
    assert not is_cut_short(NotFound("no such table"), 1)
    answered = Unavailable("starting")
    answered.answered = True
    assert not is_cut_short(answered, 1)
