"""Reads and tails of a journal that is closed, or fails, before their turn in lane APPLY."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import Corrupt, Unavailable
from nyala.common.ids import CommittedOperation, OpId
from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.journal import steps
from nyala.security.limits.caller_shares import CallerShares
from nyala.tserver.journals.service import JournalService
from nyala.tserver.tablets import HostedJournal
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.world.files import SimDisk
from tests.unit.journal.journal_disk import JournalOnDisk


def failed(one: JournalOnDisk) -> None:
    """Fail in the middle of a group of operations, as a damaged entry does."""
    with pytest.raises(Corrupt):
        one.journal.apply([CommittedOperation(OpId(1, 2), 1 << 40, b"damaged")])


def closed(one: JournalOnDisk) -> None:
    one.journal.close()


@pytest.mark.parametrize("end", [failed, closed])
@pytest.mark.parametrize("call", ["read", "tail"])
def test_journal_that_ended_before_the_turn_of_a_read_does_not_seem_empty(call, end):
    one = JournalOnDisk(SimDisk(random.Random(1)))
    one.apply(steps.SetKey("k", b"v"))
    received: list[pb.JournalTailResponse] = []

    async def read_point(at: int | None, timeout_ms: int) -> int:
        return 1

    async def run_brief(lane, fn, *args):
        end(one)  # the lane has this to do first
        return fn(*args)

    member = SimpleNamespace(
        node=SimpleNamespace(is_leader=True), on_progress=lambda listener: lambda: None
    )
    replica = SimpleNamespace(read_point=read_point, running_member=lambda: member)
    hosted = HostedJournal(_any(replica), one.journal)
    tasks = SimpleNamespace(run_brief=run_brief)
    env = SimpleNamespace(tasks=tasks, clock=SimpleNamespace(monotonic_us=lambda: 0))
    tablets = SimpleNamespace(journal=lambda tablet_id: hosted)
    options = Options()
    shares = CallerShares(options, Metrics())
    service = _any(JournalService)(env, tablets, None, None, options, shares)

    async def work() -> None:
        if call == "read":
            with pytest.raises(Unavailable, match="failed or was closed here"):
                await service.read(pb.JournalReadRequest(key="k"))
            return
        tasks.spawn = lambda coroutine, name: asyncio.ensure_future(coroutine)
        service.tail(pb.JournalTailRequest(log="a"), received.append)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        assert "failed or was closed here" in received[0].error.message

    asyncio.run(work())


def _any(value: object) -> Any:
    return value
