"""A leader whose memory was dropped in mid-term: its reload includes all writes in flight."""

import asyncio
import contextlib

from nyala.common.errors import OutcomeUnknown
from nyala.common.options import Options
from nyala.env.clock import HybridClock
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.leader import MasterLeadership
from nyala.master.transactions.term import CoordinatorContext
from nyala.master.tservers import TServers
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run
from tests.unit.master.scenarios.master_runner import Scenario


class Shared:
    """The sys catalog; a batch may be held back before it is proposed, or have an unknown outcome."""

    def __init__(self):
        self.rows, self.held, self.unknown = {}, {}, set()


class Rows:
    """The sys catalog as the leader uses it."""

    def __init__(self, shared):
        self.shared = shared

    async def replicate(self, rows):
        shared, name = self.shared, rows[0].id
        if name in shared.held:
            await shared.held[name].wait()
        shared.rows.update({(r.kind, r.id): r for r in rows})
        if name in shared.unknown:
            raise OutcomeUnknown("the deadline passed")

    async def confirm(self):
        return 1

    async def find(self, kind, row):
        return None

    async def keys(self, after, limit):
        return []

    async def rows(self):
        return list(self.shared.rows.values())


def create(name):
    record = cat.TableRecord(id=name, state=cat.TABLE_RUNNING, spec=pb.TableSpec(name=name))
    return CatalogOperation(
        "create", lambda _: Scope((name,)), lambda _: CatalogPlan(tables=(record,))
    )


def following(scenario, shared):
    """Return the started leadership of master m1, which gets no notice of elections."""
    leading = MasterLeadership(
        scenario.env,
        lambda: Rows(shared),
        lambda: scenario.status("m1"),
        TServers(5_000_000),
        Options(order_interval_ms=500, order_timeout_ms=1000, orders_per_server=4),
        CoordinatorContext(HybridClock(scenario.env.clock), list),
    )
    leading.start()
    return leading


def test_change_of_role_is_followed_at_once_and_lost_notice_within_heartbeat_interval():
    async def main(loop):
        async def led_ms():
            for passed_ms in range(2000):
                if leading.current() is not None:
                    return passed_ms
                await scenario.env.tasks.sleep_ms(1)
            raise AssertionError("it does not lead")

        scenario, shared = Scenario(loop), Shared()
        leading = following(scenario, shared)
        found = []
        for told in (False, True):
            await scenario.env.tasks.sleep_ms(1300)
            assert leading.current() is None
            scenario.elect("m1")
            if told:
                leading.role_changed()
            found.append(await led_ms())
            scenario.elect("m2")
            leading.current()
        leading.stop()
        return found

    unnoticed_ms, noticed_ms = run(main)
    assert 40 < unnoticed_ms <= 500
    assert noticed_ms <= 5


def test_catalog_reload_waits_for_earlier_operations_that_may_be_proposed():
    """A proposal may wait for a transfer that fails; its batch is then on disk, and not in memory."""

    async def main(loop):
        async def carry_out(name):
            with contextlib.suppress(OutcomeUnknown):
                await leading.run(create(name), term)

        scenario, shared = Scenario(loop), Shared()
        scenario.elect("m1")
        leading = following(scenario, shared)
        await scenario.env.tasks.sleep_ms(200)
        term = leading.require()
        release = shared.held["held"] = asyncio.Event()
        shared.unknown.add("lost")
        held, lost = (scenario.env.tasks.spawn(carry_out(n), n) for n in ("held", "lost"))
        await lost
        assert term.memory.dropped
        await scenario.env.tasks.sleep_ms(500)
        assert leading.current() is None, "not ready while a write is in flight"
        release.set()
        await held
        await scenario.env.tasks.sleep_ms(200)
        assert [t.name for t in leading.require().catalog.tables()] == ["held", "lost"]
        leading.stop()

    run(main)
