"""The order of steps of every catalog operation (S0.56-S0.62).

    lock      names, tables, tablets, each in the order of its id
    plan      a pure function of the request and the committed catalog; refused here: nothing happened
    replicate one batch: THE COMMIT POINT. Refused before proposing: the plan is dropped
    publish   tablets, then tables, then the other maps; from here the operation cannot fail
    unlock
    enqueue   orders to tablet servers; lost ones are derived again from catalog and reports

A leader that does not know whether its batch will commit drops its whole state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from nyala.common.errors import NotLeader, Rejected, Throttled, Unavailable
from nyala.master.catalog.actions import Action
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.rows import CatalogRow


class CatalogWriter(Protocol):
    """Replication of the catalog's rows."""

    async def replicate(self, rows: Sequence[CatalogRow]) -> None:
        """Replicate rows as one batch; on return they are committed and applied here.

        Raises:
            NotLeader, Throttled, Unavailable, Rejected: refused before it was proposed.
            OutcomeUnknown: leadership was lost while it was in flight.
        """
        ...


class OrderQueue(Protocol):
    """Queue of the orders to tablet servers."""

    def enqueue(self, actions: Sequence[Action]) -> None:
        """Send actions in the background."""
        ...


@dataclass(frozen=True, slots=True)
class CatalogOperation:
    """Scope and plan of an operation; the order of its steps is fixed by `run`.

    Attributes:
        what: name of the operation, for listings.
        scope: returns the locks that it needs, from the committed catalog.
        plan: returns the rows and orders of the operation, under its locks; pure.
    """

    what: str
    scope: Callable[[Catalog], Scope]
    plan: Callable[[Catalog], CatalogPlan]


class OperationStep(Enum):
    """Step of an operation; from PUBLISH on it takes effect whatever happens."""

    LOCK = "LOCK"
    PLAN = "PLAN"
    REPLICATE = "REPLICATE"
    PUBLISH = "PUBLISH"
    ORDER = "ORDER"

    @property
    def committed(self) -> bool:
        """True if it is past the commit point."""
        return self in (OperationStep.PUBLISH, OperationStep.ORDER)


@dataclass(slots=True)
class InFlight:
    """One operation under way, for listings.

    Attributes:
        what: name of the operation.
        scope: locks that it holds or waits for.
        step: present step.
        since_us: when it began; monotonic.
        step_us: when its present step began; monotonic.
    """

    what: str
    scope: Scope
    step: OperationStep
    since_us: int
    step_us: int

    def enter(self, step: OperationStep, now_us: int) -> None:
        """Begin a step."""
        self.step, self.step_us = step, now_us


@dataclass(slots=True)
class LeaderMemory:
    """State that a leader keeps in memory for one term; dropped as a whole when it stops leading.

    Attributes:
        term: the term in which this master leads.
        catalog: tables and tablets.
        rows: where the catalog's rows are replicated.
        orders: queue of the actions.
        locks: locks of the operations under way.
        on_drop: stops orders and background operations.
        now_us: monotonic time, for listings.
        in_flight: the operations under way, by number.
        started: number of operations that were started.
        dropped: the reason why this state must not be used any more; None while it may.
    """

    term: int
    catalog: Catalog
    rows: CatalogWriter
    orders: OrderQueue
    locks: Locks
    on_drop: Callable[[], None]
    now_us: Callable[[], int] = lambda: 0
    dropped: str | None = None
    in_flight: dict[int, InFlight] = field(default_factory=dict)
    started: int = 0

    def drop(self, why: str) -> None:
        """Drop this state; the owner rebuilds it from the sys catalog if it leads again."""
        if self.dropped is None:
            self.dropped = why
            self.on_drop()

    def check(self) -> None:
        """Raise Unavailable when this memory was dropped."""
        if self.dropped is not None:
            raise Unavailable(f"this master stopped leading ({self.dropped}); retry")


REFUSED = (NotLeader, Throttled, Unavailable, Rejected)
"""Errors of `CatalogWriter.replicate` after which nothing was proposed."""


async def run(operation: CatalogOperation, memory: LeaderMemory) -> CatalogPlan:
    """Run one operation; durable and visible on return.

    Must not be cancelled by a caller that goes away: run it in a task of its own.

    Raises:
        Rejected, NotLeader, Throttled, Unavailable: nothing happened.
        OutcomeUnknown: it may or may not take effect.
    """
    memory.started += 1
    number = memory.started
    now_us = memory.now_us()
    shown = InFlight(operation.what, Scope(), OperationStep.LOCK, now_us, now_us)
    memory.in_flight[number] = shown
    try:
        return await _run(operation, memory, shown)
    finally:
        del memory.in_flight[number]


async def _run(operation: CatalogOperation, memory: LeaderMemory, shown: InFlight) -> CatalogPlan:
    while True:
        memory.check()
        shown.enter(OperationStep.LOCK, memory.now_us())
        scope = shown.scope = operation.scope(memory.catalog)
        async with memory.locks.hold(scope):
            memory.check()
            if operation.scope(memory.catalog) != scope:
                continue  # the catalog changed while this waited: lock what is needed now
            shown.enter(OperationStep.PLAN, memory.now_us())
            plan = operation.plan(memory.catalog)
            if plan.writes:
                draft = memory.catalog.draft(plan)
                shown.enter(OperationStep.REPLICATE, memory.now_us())
                try:
                    await memory.rows.replicate(draft.rows)  # COMMIT POINT
                except REFUSED:
                    raise
                except BaseException as err:
                    # Unknown outcome, cancelled, or the disk failed: memory may now differ from the log.
                    memory.drop(f"an operation ended in {type(err).__name__}")
                    raise
                shown.enter(OperationStep.PUBLISH, memory.now_us())
                memory.catalog.publish(draft)
        shown.enter(OperationStep.ORDER, memory.now_us())
        memory.orders.enqueue(plan.actions)
        return plan
