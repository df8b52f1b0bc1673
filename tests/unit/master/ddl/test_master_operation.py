"""The ordering contract with a failure at each step: readers, locks, memory, orders."""

import asyncio

import pytest

from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Throttled,
    TooLarge,
    Unavailable,
)
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.env.env import Env
from nyala.master.catalog.actions import CreateTabletAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.detached import detached
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.ddl.operation import CatalogOperation, LeaderMemory, run
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run as simulate
from tests.sim.world.loop import seeded
from tests.sim.world.tasks import SimClock, SimTasks

ACTION = CreateTabletAction(ServerUuid("a"), TabletId("t1.0"))


def table(name="t", state=cat.TABLE_RUNNING):
    return cat.TableRecord(id=f"{name}-id", state=state, spec=pb.TableSpec(name=name))


def tablet(name="t1.0", table_id="t-id", state=cat.TABLET_CREATING):
    return cat.TabletRecord(id=name, table_id=table_id, state=state)


PLAN = CatalogPlan((tablet(),), (table(),), actions=(ACTION,), answer=TableId("t-id"))


class Rows:
    """Rows that are not replicated, but recorded, with injected failures."""

    def __init__(self, memory_of, error=None):
        self.memory_of, self.error, self.batches, self.seen = memory_of, error, [], []

    async def replicate(self, rows):
        memory = self.memory_of()
        self.batches.append([(r.kind, r.id) for r in rows])
        self.seen.append((len(memory.catalog.tables()), len(memory.orders.sent)))
        await asyncio.get_running_loop().create_task(_nothing())
        self.seen.append((len(memory.catalog.tables()), len(memory.orders.sent)))
        if self.error is not None:
            raise self.error


async def _nothing():
    return None


class Orders:
    def __init__(self):
        self.sent = []

    def enqueue(self, actions):
        self.sent += actions


def memory(error=None):
    dropped = []
    rows = Rows(lambda: made, error)
    made: LeaderMemory = LeaderMemory(
        3, Catalog(), rows, Orders(), Locks(), lambda: dropped.append(1)
    )
    return made, dropped


def operation(plan=PLAN, scope=None):
    return CatalogOperation("test", lambda _: scope or Scope(("t",)), lambda _: plan)


@pytest.mark.row("S0.50", "S0.9", "S0.64")
def test_operation_commits_one_batch_then_publishes_then_sends_orders():
    made, dropped = memory()
    assert simulate(lambda loop: run(operation(), made)) is PLAN
    assert made.rows.batches == [[("table", "t-id"), ("tablet", "t1.0")]]
    assert made.rows.seen == [(0, 0), (0, 0)], "no effect is visible before the commit point"
    assert [t.name for t in made.catalog.tables()] == ["t"]
    assert [t.id for t in made.catalog.tablets_of(TableId("t-id"))] == ["t1.0"]
    assert made.orders.sent == [ACTION]
    assert not made.locks.held()
    assert not dropped


@pytest.mark.parametrize(
    "error", [NotLeader("no"), Throttled("full"), Unavailable("no"), TooLarge("big")]
)
def test_operation_refused_before_proposal_keeps_state_and_releases_locks(error):
    made, dropped = memory(error)
    with pytest.raises(type(error)):
        simulate(lambda loop: run(operation(), made))
    assert not made.catalog.tables()
    assert made.catalog.tablet(TabletId("t1.0")) is None
    assert not made.locks.held()
    assert not made.orders.sent
    assert not dropped
    made.rows.error = None
    simulate(lambda loop: run(operation(), made))
    assert made.catalog.named("t") is not None


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("lost"), OSError("disk"), asyncio.CancelledError()]
)
def test_unknown_outcome_discards_catalog_memory_and_releases_locks(error):
    made, dropped = memory(error)
    with pytest.raises(type(error)):
        simulate(lambda loop: run(operation(), made))
    assert dropped == [1]
    assert made.dropped
    assert not made.locks.held()
    assert not made.orders.sent
    assert not made.catalog.tables()
    with pytest.raises(Unavailable):
        simulate(lambda loop: run(operation(), made))


def test_refused_plan_writes_nothing():
    def refuse(catalog):
        raise InvalidArgument("no")

    made, dropped = memory()
    with pytest.raises(InvalidArgument):
        simulate(lambda loop: run(CatalogOperation("test", lambda _: Scope(("t",)), refuse), made))
    assert not made.rows.batches
    assert not dropped
    assert not made.locks.held()


def test_plan_is_checked_again_under_locks():
    """Two concurrent creations of one name: the second waits for the lock, then fails."""
    made, _ = memory()
    seen = []

    def plan(catalog):
        seen.append(catalog.named("t") is not None)
        return PLAN if not seen[-1] else CatalogPlan(answer=TableId("t-id"))

    async def main(loop):
        wanted = CatalogOperation("test", lambda _: Scope(("t",)), plan)
        return await asyncio.gather(run(wanted, made), run(wanted, made))

    simulate(main)
    assert seen == [False, True]
    assert len(made.rows.batches) == 1


def test_locks_are_reacquired_when_scope_grows_while_waiting():
    made, _ = memory()
    held = []

    def scope(catalog):
        found = catalog.named("t")
        return Scope(("t",), () if found is None else (found.id,))

    def plan(catalog):
        held.append(made.locks.held())
        return CatalogPlan()

    async def main(loop):
        await asyncio.gather(
            run(operation(), made), run(CatalogOperation("test", scope, plan), made)
        )

    simulate(main)
    assert held == [2], "the scope includes the table created meanwhile"


def test_operation_waiting_during_catalog_reset_has_no_effect():
    made, _ = memory(OutcomeUnknown("lost"))

    async def main(loop):
        return await asyncio.gather(
            run(operation(), made), run(operation(), made), return_exceptions=True
        )

    first, second = simulate(main)
    assert isinstance(first, OutcomeUnknown)
    assert isinstance(second, Unavailable)
    assert len(made.rows.batches) == 1


@pytest.mark.row("S0.59")
@pytest.mark.parametrize("what", ["the caller went away", "leadership was lost meanwhile"])
def test_replicated_operation_takes_effect_after_cancellation(what):
    made, _ = memory()

    async def main(loop):
        env = Env(SimClock(loop), seeded(1, "env"), None, SimTasks(loop, seeded(1, "lanes")), None)  # type: ignore[arg-type]
        replicated = made.rows.replicate

        async def replicate(rows):
            await replicated(rows)
            if what.startswith("the caller"):
                caller.cancel()
                await loop.delay(10)
            else:
                made.drop(what)

        made.rows.replicate = replicate
        caller = asyncio.ensure_future(detached(env, run(operation(), made)))
        (outcome,) = await asyncio.gather(caller, return_exceptions=True)
        await loop.delay(100)
        return outcome

    outcome = simulate(main)
    assert outcome is PLAN or isinstance(outcome, asyncio.CancelledError)
    assert isinstance(outcome, asyncio.CancelledError) is what.startswith("the caller")
    assert [t.name for t in made.catalog.tables()] == ["t"]
    assert made.orders.sent == [ACTION]
    assert not made.locks.held()
