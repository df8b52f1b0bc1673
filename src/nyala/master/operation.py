"""The one place where the order of a catalog operation is written (style rule 9, S0.56-S0.62).

    lock      names, tables, tablets, each in the order of its id
    plan      a pure function of the request and the committed catalog; refused here: nothing happened
    replicate one batch: THE COMMIT POINT. Refused before proposing: the draft is dropped
    publish   tablets, then tables, then the other maps; from here the operation cannot fail
    unlock
    enqueue   orders to tablet servers; lost ones are derived again from catalog and reports

A leader that cannot say whether its batch will commit drops everything that it holds in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nyala.common.errors import NotLeader, Rejected, Throttled, Unavailable
from nyala.master.actions import Action
from nyala.master.catalog import Catalog
from nyala.master.locks import Locks
from nyala.master.plans import Plan, Scope
from nyala.master.records import Row


class Rows(Protocol):
    """Where the rows of the catalog are replicated."""

    async def replicate(self, rows: Sequence[Row]) -> None:
        """Replicate rows as one batch; on return they are committed and applied here.

        Raises:
            NotLeader, Throttled, Unavailable, Rejected: refused before it was proposed.
            OutcomeUnknown: leadership was lost while it was in flight.
        """
        ...


class Orders(Protocol):
    """Who sends the actions."""

    def enqueue(self, actions: Sequence[Action]) -> None:
        """Send actions in the background."""
        ...


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operation supplies; it cannot change the order of the steps.

    Attributes:
        scope: what it will lock, judged from the committed catalog.
        plan: what it will write and order, judged again under the locks; pure.
    """

    scope: Callable[[Catalog], Scope]
    plan: Callable[[Catalog], Plan]


@dataclass(slots=True)
class Memory:
    """All that a leader holds in memory for one term, dropped whole when it stops leading.

    Attributes:
        term: the term in which this master leads.
        catalog: tables and tablets.
        rows: where the catalog's rows are replicated.
        orders: who sends the actions.
        locks: of the operations under way.
        dropped: why nothing of this may be used any more; None while it may.
    """

    term: int
    catalog: Catalog
    rows: Rows
    orders: Orders
    locks: Locks
    on_drop: Callable[[], None]
    dropped: str | None = None

    def drop(self, why: str) -> None:
        """Give up this memory; the owner rebuilds it from the sys catalog, if it leads again."""
        if self.dropped is None:
            self.dropped = why
            self.on_drop()

    def check(self) -> None:
        """Raise Unavailable when this memory was dropped."""
        if self.dropped is not None:
            raise Unavailable(f"this master stopped leading ({self.dropped}); ask again")


REFUSED = (NotLeader, Throttled, Unavailable, Rejected)
"""What `Rows.replicate` raises when nothing was proposed."""


async def run(operation: Operation, memory: Memory) -> Plan:
    """Carry out one operation; returns what it did. Durable and visible on return.

    Must not be cancelled by a caller that goes away: run it in a task of its own.

    Raises:
        Rejected, NotLeader, Throttled, Unavailable: nothing happened.
        OutcomeUnknown: it may or may not take effect.
    """
    while True:
        memory.check()
        scope = operation.scope(memory.catalog)
        async with memory.locks.hold(scope):
            memory.check()
            if operation.scope(memory.catalog) != scope:
                continue  # the catalog changed while this waited: lock what is needed now
            plan = operation.plan(memory.catalog)
            if plan.writes:
                draft = memory.catalog.draft(plan)
                try:
                    await memory.rows.replicate(draft.rows)  # COMMIT POINT
                except REFUSED:
                    raise
                except BaseException as err:
                    # Unknown outcome, cancelled, or the disk failed: memory may now differ from the log.
                    memory.drop(f"an operation ended in {type(err).__name__}")
                    raise
                memory.catalog.publish(draft)
        memory.orders.enqueue(plan.actions)
        return plan
