"""Decisions of transactions in the catalog: commits and their times, aborts, and the marks of rules F and K.

docs/internals/transactions.md has the rules by letter. Keys are not held in memory: see `sys_catalog.find`.
"""

from collections.abc import Container
from heapq import heappop, heappush

from nyala.common.errors import Corrupt
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.parsing import Item
from nyala.master.catalog.records.rows import (
    CatalogRow,
    decision_row,
    key_row,
    marks_row,
    removed_decision,
    removed_key,
)
from nyala.wire.proto import catalog_pb2 as cat


class Decisions:
    """The decisions that some participant may still have to be sent, or a client may ask for.

    Attributes:
        rows: by transaction, about in the order of their commit times; read only.
        aborted: transactions that an operator has aborted, with the times of that; read only.
        marks: read only.
        latest: greatest commit time so far.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, cat.DecisionRecord] = {}
        self.aborted: dict[bytes, int] = {}
        self.marks = cat.DecisionMarks()
        self.latest = 0
        self._of_key: dict[str, dict[bytes, None]] = {}
        self._times: list[tuple[int, bytes]] = []  # a heap; rows that were removed may be in it

    def publish(self, plan: CatalogPlan) -> None:
        """Take over what a replicated plan has of decisions."""
        for record in plan.decisions:
            self._put(record)
        for transaction in plan.removed:
            self._remove(transaction)
        if plan.marks is not None:
            self.marks = plan.marks

    def load(self, item: Item) -> None:
        """Add what a row of the catalog holds."""
        if isinstance(item, cat.DecisionRecord):
            self._put(item)
        elif isinstance(item, cat.DecisionMarks):
            self.marks = item
        else:
            raise Corrupt(f"{type(item).__name__} is no record of a decision")

    def loaded(self) -> None:
        """Order the decisions by commit time, after the last `load`."""
        self.rows = dict(sorted(self.rows.items(), key=lambda entry: entry[1].at))

    def of_key(self, name: str) -> list[cat.DecisionRecord]:
        """Return the decisions with a key of this name."""
        return [self.rows[t] for t in self._of_key.get(name, ())]

    def earliest(self, without: Container[bytes]) -> int | None:
        """Return the least commit time of the rows but for some; None: there is no other row.

        Args:
            without: transactions that are left out.
        """
        times, passed = self._times, []
        while times and (times[0][1] not in self.rows or times[0][1] in without):
            at, transaction = heappop(times)
            if transaction in self.rows:
                passed.append((at, transaction))
        found = times[0][0] if times else None
        for entry in passed:  # their removal may fail
            heappush(times, entry)
        return found

    def _put(self, record: cat.DecisionRecord) -> None:
        if record.aborted:
            self.aborted[record.transaction] = record.at
            return
        self.rows[record.transaction] = record
        self.latest = max(self.latest, record.at)
        heappush(self._times, (record.at, record.transaction))
        if record.HasField("key"):
            self._of_key.setdefault(record.key.name, {})[record.transaction] = None

    def _remove(self, transaction: bytes) -> None:
        self.aborted.pop(transaction, None)
        record = self.rows.pop(transaction, None)
        if record is not None and record.HasField("key"):
            same = self._of_key[record.key.name]
            del same[transaction]
            if not same:
                del self._of_key[record.key.name]


def rows_of(plan: CatalogPlan) -> list[CatalogRow]:
    """Return the rows that a plan writes for transactions."""
    rows = [*map(decision_row, plan.decisions), *map(key_row, plan.keys)]
    rows += [*map(removed_decision, plan.removed), *map(removed_key, plan.removed_keys)]
    return rows if plan.marks is None else [*rows, marks_row(plan.marks)]
