"""Reads of several tablets at the same time: order, bounded memory, errors, and an early end."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.read.side_by_side import (
    AT_FIRST,
    LARGEST_BATCH,
    SMALLEST_BATCH,
    SideBySide,
    sharing,
)
from nyala.client.read.token_reader import PARALLEL_TOKENS
from nyala.common.errors import RangesChanged, Unavailable
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks


class Tablets:
    """Tablets in place of servers.

    Args:
        env: clock.
        batches: number of batches of each tablet.
        time_ms: returns the time until a batch of a tablet comes.
        failures: error of a tablet, by its number, and the batch before which it is raised.

    Attributes:
        most: largest number of tablets that were read at the same time.
        ahead: largest number of batches that were fetched and not taken by the caller.
    """

    def __init__(
        self,
        env: Env,
        batches: list[int],
        time_ms: Callable[[int], float] = lambda _: 1,
        failures: dict[int, tuple[int, Exception]] | None = None,
    ) -> None:
        self.env, self.batches, self.time_ms = env, batches, time_ms
        self.failures = failures or {}
        self.open = self.most = self.fetched = self.taken = self.ahead = 0

    @property
    def tokens(self) -> list[pb.ScanToken]:
        return [pb.ScanToken(tablet_id=f"{n}") for n in range(len(self.batches))]

    async def run(
        self, token: pb.ScanToken, *, on_header: Any = None
    ) -> AsyncIterator[pa.RecordBatch]:
        number = int(token.tablet_id)
        at, error = self.failures.get(number, (-1, None))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            for n in range(self.batches[number]):
                await self.env.tasks.sleep_ms(self.time_ms(number))
                if n == at and error is not None:
                    raise error
                self.fetched += 1
                self.ahead = max(self.ahead, self.fetched - self.taken)
                yield pa.record_batch({"tablet": [number], "n": [n]})
            if at == self.batches[number] and error is not None:
                raise error
        finally:
            self.open -= 1


def scenario(work: Callable[[Env], Any], seed: int = 1) -> Any:
    """Return what `work` returns on virtual time."""

    async def main(loop: SimLoop) -> Any:
        rng = random.Random(seed)
        return await work(Env(SimClock(loop), rng, SystemFiles(), SimTasks(loop, rng), GrpcRpc()))

    return run(main)


async def read(tablets: Tablets, found: list[tuple[str, int | None]], caller_ms: float = 0) -> None:
    """Read all tablets; add each batch and each end to `found`."""
    async for token, batch in SideBySide(tablets.env, tablets, tablets.tokens).run():
        if batch is not None:
            tablets.taken += 1
            assert batch.column("tablet")[0].as_py() == int(token.tablet_id)
        found.append((token.tablet_id, None if batch is None else batch.column("n")[0].as_py()))
        await tablets.env.tasks.sleep_ms(caller_ms)


@pytest.mark.parametrize("seed", range(20))
def test_every_batch_comes_once_in_its_tablets_order_before_the_end(seed):
    async def work(env: Env) -> None:
        rng = env.random
        counts = [rng.choice([0, 0, 1, 3, 9]) for _ in range(rng.choice([0, 1, 2, 5, 30]))]
        tablets = Tablets(env, counts, lambda _: rng.choice([0, 1, 30]))
        found: list[tuple[str, int | None]] = []
        await read(tablets, found, rng.choice([0, 5]))
        for number, count in enumerate(counts):
            assert [n for tablet, n in found if tablet == f"{number}"] == [*range(count), None]
        assert len(found) == sum(counts) + len(counts)
        assert tablets.open == 0

    scenario(work, seed)


def test_caller_that_waits_gets_more_tablets_and_batches_as_they_come():
    async def work(env: Env) -> None:
        tablets = Tablets(env, [20] * 20, lambda number: 500 if number == 0 else 20)
        found: list[tuple[str, int | None]] = []
        await read(tablets, found)
        assert tablets.most == PARALLEL_TOKENS
        assert tablets.ahead <= PARALLEL_TOKENS
        assert found[-1] == ("0", None), "a slow tablet holds back no other"

    scenario(work)


def test_slow_caller_keeps_few_tablets_open_and_few_batches():
    async def work(env: Env) -> None:
        tablets = Tablets(env, [20] * 20)
        await read(tablets, [], caller_ms=100)
        assert tablets.most <= AT_FIRST + 1
        assert tablets.ahead <= AT_FIRST + 1

    scenario(work)


def test_tablets_that_were_begun_are_read_to_their_ends_when_ranges_change():
    async def work(env: Env) -> None:
        failures: dict[int, tuple[int, Exception]] = {1: (0, RangesChanged("others"))}
        tablets = Tablets(env, [5] * 20, failures=failures)
        found: list[tuple[str, int | None]] = []
        with pytest.raises(RangesChanged):
            await read(tablets, found)
        begun = {tablet for tablet, _ in found}
        assert begun
        assert "1" not in begun
        for tablet in begun:
            assert [n for which, n in found if which == tablet] == [0, 1, 2, 3, 4, None]
        assert tablets.fetched == 5 * len(begun), "no further tablet was begun"

    scenario(work)


@pytest.mark.parametrize("at", [0, 3, 5])
def test_error_of_a_tablet_ends_the_read_and_the_other_tablets(at):
    async def work(env: Env) -> None:
        failures: dict[int, tuple[int, Exception]] = {2: (at, Unavailable("it broke"))}
        tablets = Tablets(env, [5, 500, 5, 500], failures=failures)
        found: list[tuple[str, int | None]] = []
        with pytest.raises(Unavailable, match="it broke"):
            await read(tablets, found)
        assert [n for tablet, n in found if tablet == "2"] == list(range(at))
        assert tablets.open == 0
        assert tablets.taken < 200

    scenario(work)


def test_read_that_is_left_early_ends_its_tablets():
    async def work(env: Env) -> None:
        tablets = Tablets(env, [50] * 5)
        reading = SideBySide(env, tablets, tablets.tokens).run()
        async for _ in reading:
            break
        await reading.aclose()
        assert tablets.open == 0

    scenario(work)


def test_read_of_a_client_that_is_closed_is_no_short_read():
    async def work(env: Env) -> None:
        tablets = Tablets(env, [50] * 5)

        async def close() -> None:
            await env.tasks.sleep_ms(20)
            for task in asyncio.all_tasks():
                if task.get_coro().__name__ == "_read":  # type: ignore[union-attr]
                    task.cancel()

        closing = asyncio.ensure_future(close())
        with pytest.raises(Unavailable, match="closed"):
            await read(tablets, [])
        await closing
        assert tablets.open == 0

    scenario(work)


@pytest.mark.parametrize(
    ("tokens", "size"), [(1, 1 << 20), (8, 1 << 20), (64, 128 << 10), (5_000, SMALLEST_BATCH)]
)
def test_batches_of_many_tablets_share_the_memory(tokens, size):
    whole = [pb.ScanToken(tablet_id=f"{n}", batch_bytes=1 << 20) for n in range(tokens)]
    made = sharing(whole, 8 << 20)
    assert {t.batch_bytes for t in made} == {size}
    assert [t.tablet_id for t in made] == [t.tablet_id for t in whole]
    assert {t.batch_bytes for t in whole} == {1 << 20}
    assert {t.batch_bytes for t in sharing([pb.ScanToken()], 8 << 20)} == {LARGEST_BATCH}
