"""The dispatcher sends an order once at a time: one that is queued or under way is not sent again."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from nyala.common.ids import ServerUuid, TabletId
from nyala.common.options import Options
from nyala.master.catalog.actions import CancelCopyAction, DeleteTabletAction
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.orders.dispatcher import Dispatcher
from nyala.master.tservers import TServers
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.master.orders.known_tablets import T, known
from tests.unit.master.support.master_helpers import server_info

A = ServerUuid("a")
ORDER = DeleteTabletAction(A, T)


DEFAULTS = Options()


class Slow:
    """A dispatcher of orders to a tablet server `a`, which answers when the test says so.

    Attributes:
        sent: orders that are not answered yet.
        total: number of orders sent.
        now_us: monotonic time of the dispatcher.
    """

    def __init__(self, loop: SimLoop, tablets: int = 1, options: Options = DEFAULTS) -> None:
        self._loop = loop
        self.sent: list[asyncio.Future[Any]] = []
        self.total = 0
        self.now_us = 0
        catalog = known(cat.TABLET_DELETED)
        cluster = cat.ClusterRecord(cluster_id="c", catalog_incarnation="i")
        others = tuple(
            cat.TabletRecord(id=f"t{n}", table_id="table", state=cat.TABLET_DELETED)
            for n in range(1, tablets)
        )
        catalog.publish(catalog.draft(CatalogPlan(others, cluster=cluster)))
        servers = TServers(1_000_000)
        self.server = servers.record_heartbeat(pb.HeartbeatRequest(server=server_info("a")), 1)
        env: Any = SimpleNamespace(
            tasks=SimpleNamespace(spawn=lambda work, _: asyncio.ensure_future(work)),
            clock=SimpleNamespace(monotonic_us=lambda: self.now_us),
            rpc=SimpleNamespace(call=self._call),
        )
        self.dispatcher = Dispatcher(env, catalog, servers, 1, options)

    async def _call(self, *_: object, timeout_ms: int) -> Any:
        self.total += 1
        self.sent.append(asyncio.get_running_loop().create_future())
        return await self.sent[-1]

    async def passes(self) -> None:
        """Let all tasks continue until they wait."""
        await self._loop.delay(1000)

    async def answer(self) -> None:
        """Answer the oldest order."""
        self.sent.pop(0).set_result(pb.DeleteTabletResponse())
        await self.passes()


def test_order_under_way_is_not_sent_again_until_it_is_answered():
    async def go(loop: SimLoop) -> None:
        slow = Slow(loop)
        for _ in range(3):
            slow.dispatcher.enqueue([ORDER, ORDER])
            await slow.passes()
        assert (slow.total, slow.dispatcher.pending()) == (1, 1)
        await slow.answer()
        assert (slow.total, slow.dispatcher.pending()) == (1, 0), "and not after its answer"
        slow.dispatcher.enqueue([ORDER])
        await slow.passes()
        assert slow.total == 2, "it is derived again while the catalog calls for it"
        await slow.answer()

    run(go)


def test_queued_order_is_sent_once():
    async def go(loop: SimLoop) -> None:
        slow = Slow(loop, tablets=2, options=Options(orders_per_server=1))
        second = DeleteTabletAction(A, TabletId("t1"))
        slow.dispatcher.enqueue([ORDER])
        for _ in range(3):
            slow.dispatcher.enqueue([second])
            await slow.passes()
        assert (slow.total, slow.dispatcher.pending()) == (1, 2)
        for total, pending in ((2, 1), (2, 0)):
            await slow.answer()
            assert (slow.total, slow.dispatcher.pending()) == (total, pending)

    run(go)


def test_two_orders_for_one_tablet_are_sent_one_after_the_other():
    async def go(loop: SimLoop) -> None:
        slow = Slow(loop)
        slow.dispatcher.enqueue([ORDER, CancelCopyAction(A, T)])
        await slow.passes()
        assert (slow.total, slow.dispatcher.pending()) == (1, 2)
        for total, pending in ((2, 1), (2, 0)):
            await slow.answer()
            assert (slow.total, slow.dispatcher.pending()) == (total, pending)

    run(go)


INTERVAL_US = 100_000


def test_repeated_deletion_is_ordered_ever_more_seldom_until_the_server_reports_anew():
    async def go(loop: SimLoop) -> None:
        slow = Slow(loop, options=Options(order_interval_ms=250))
        sent_at: list[int] = []
        for interval in range(600):
            slow.now_us = interval * INTERVAL_US
            slow.dispatcher.enqueue([ORDER])
            await slow.passes()
            if slow.sent:
                sent_at.append(interval)
                await slow.answer()
        waits = [b - a for a, b in pairwise(sent_at)]
        assert waits == [1, 3, 5, 10, 20, 40, *[80] * (len(waits) - 6)]
        slow.dispatcher.enqueue([CancelCopyAction(A, T)])
        await slow.passes()
        assert slow.sent, "another order of the tablet does not wait"
        await slow.answer()
        slow.server.replicas[T], slow.server.full_in_term = "RUNNING", 1
        slow.dispatcher.reported(slow.server, [T], full=True)
        await slow.passes()
        assert slow.sent, "after a full report the first order is immediate"
        await slow.answer()

    run(go)


def test_deletion_that_was_not_repeated_for_long_is_immediate_again():
    async def go(loop: SimLoop) -> None:
        slow = Slow(loop, tablets=2)
        second = DeleteTabletAction(A, TabletId("t1"))
        for _ in range(2):
            slow.dispatcher.enqueue([ORDER])
            await slow.passes()
            await slow.answer()
        slow.dispatcher.enqueue([ORDER])
        await slow.passes()
        assert not slow.sent
        slow.now_us = 60_000_000
        for order in (second, ORDER, ORDER):
            slow.dispatcher.enqueue([order])
            await slow.passes()
            await slow.answer()
        assert slow.total == 5

    run(go)
