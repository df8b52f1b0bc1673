"""Orders that fail: each error is logged once, a bounded number is kept, and no order stops others."""

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.options import Options
from nyala.master.catalog.actions import Action, AlterTabletAction, DeleteTabletAction
from nyala.master.orders import attempts
from nyala.master.orders.dispatcher import Dispatcher

SERVER = ServerUuid("f" * 32)
FIRST, SECOND, THIRD = (DeleteTabletAction(SERVER, TabletId(c * 32)) for c in "abc")

MINUTE_US = 60_000_000


class Refusing:
    """A dispatcher of which every order fails."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        tasks = SimpleNamespace(spawn=self._spawn)
        times = itertools.count(0, MINUTE_US)  # no order waits for its next turn
        clock = SimpleNamespace(monotonic_us=lambda: next(times))
        env: Any = SimpleNamespace(tasks=tasks, clock=clock)
        servers: Any = SimpleNamespace(get=self._get)
        self.dispatcher = Dispatcher(env, SimpleNamespace(), servers, 1, Options())  # type: ignore[arg-type]

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        self._tasks.append(asyncio.ensure_future(work))
        return self._tasks[-1]

    @staticmethod
    def _get(server: ServerUuid) -> None:
        raise Unavailable("no answer")

    async def order_together(self, *actions: Action) -> None:
        """Send orders concurrently."""
        self.dispatcher.enqueue(actions)
        await asyncio.gather(*self._tasks)

    async def order(self, *actions: DeleteTabletAction) -> None:
        """Send orders one after the other; each fails before the next."""
        for action in actions:
            self.dispatcher.enqueue([action])
            await asyncio.gather(*self._tasks)
            self._tasks.clear()


def test_evicted_order_error_is_logged_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(attempts, "MAX_ATTEMPTED", 2)
    refusing = Refusing()
    asyncio.run(refusing.order(FIRST, SECOND, FIRST, SECOND))
    assert len(caplog.records) == 2
    asyncio.run(refusing.order(THIRD, SECOND, THIRD))
    assert len(caplog.records) == 3
    asyncio.run(refusing.order(FIRST))
    assert len(caplog.records) == 4, "the oldest error was dropped, so it is logged again"
    assert refusing.dispatcher.pending() == 0


def test_failing_orders_for_one_tablet_end_independently():
    refusing = Refusing()
    asyncio.run(refusing.order_together(FIRST, AlterTabletAction(SERVER, FIRST.tablet)))
    assert refusing.dispatcher.pending() == 0
