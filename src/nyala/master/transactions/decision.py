"""The decision of a transaction: one catalog operation with the row of the commit, or of an abort. C and D.

The locks of the participants exclude every operation that drops one of them, so a drop has either been
published, and is seen by the plan, or comes after the row. The same holds for the ranges of tables of which a
condition was staged in every tablet.
"""

from collections.abc import Callable, Sequence

from nyala.common.errors import NotFound, TimedOut, Unavailable
from nyala.common.hybrid_time import to_micros
from nyala.common.ids import TableId, TabletId
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.transactions.attempts import Try
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import transactions_pb2 as txn


def gone(catalog: Catalog, tablets: tuple[TabletId, ...]) -> list[TabletId]:
    """Return the participants that were dropped, or never were."""
    found = ((t, catalog.tablet(t)) for t in tablets)
    return [t for t, tablet in found if tablet is None or tablet.gone]


def abort(transaction: bytes, now: Callable[[], int]) -> CatalogOperation:
    """Return the operation that records that a transaction is aborted.

    Args:
        transaction: its id; no attempt of it is under way, and none begins.
        now: returns a new hybrid time.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        if transaction in catalog.decisions.rows:
            raise Unavailable("the transaction was committed meanwhile; ask again")
        record = cat.DecisionRecord(transaction=transaction, at=now(), aborted=True)
        return CatalogPlan(decisions=(record,))

    return CatalogOperation("abort transaction", lambda _: Scope(), plan)


def changed(catalog: Catalog, covered: Sequence[txn.TxnCovered]) -> str:
    """Return why a condition does not cover its table any more; empty: it does.

    Args:
        catalog: the catalog now.
        covered: tables with conditions, each with the version of its ranges when they were staged.
    """
    for one in covered:
        table = catalog.table(TableId(one.table_id))
        if table is None or table.spec.ranges_version != one.ranges_version:
            name = one.table_id[:80] if table is None else repr(table.name)
            return (
                f"ranges of table {name} were added or dropped after a condition on it was staged; write the "
                "transaction again"
            )
    return ""


def decide(
    attempted: Try,
    prepared: int,
    now: Callable[[], int],
    ahead_us: int,
    covered: Sequence[txn.TxnCovered] = (),
) -> CatalogOperation:
    """Return the operation that commits a transaction.

    Args:
        attempted: its attempt, which prepared every participant.
        prepared: greatest prepare time, which the clock has passed.
        now: returns a new hybrid time.
        ahead_us: maximum by which the commit time may be above `prepared`, in microseconds.
        covered: as for `changed`.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        if attempted.ended:
            raise Unavailable("the attempt was given up meanwhile; retry")
        if dropped := gone(catalog, attempted.tablets):
            raise NotFound(f"tablet {dropped[0]} was dropped before the transaction was decided")
        if why := changed(catalog, covered):
            raise NotFound(why)
        at = now()
        assert at > prepared, f"{at} is not above the prepare time {prepared}"
        if to_micros(at) - to_micros(prepared) > ahead_us:
            raise TimedOut("the decision came too late after the prepare; retry")
        attempted.decided_at = at
        decision = cat.DecisionRecord(
            transaction=attempted.transaction,
            at=at,
            tablet_ids=attempted.tablets,
            attempt=attempted.attempt,
        )
        if attempted.key is None:
            return CatalogPlan(decisions=(decision,))
        decision.key.CopyFrom(attempted.key)
        key = cat.KeyRecord(
            transaction=attempted.transaction, at=at, key=attempted.key, owner=attempted.owner
        )
        return CatalogPlan(decisions=(decision,), keys=(key,))

    scope = Scope(tables=tuple(TableId(c.table_id) for c in covered), tablets=attempted.tablets)
    return CatalogOperation("commit transaction", lambda _: scope, plan)
