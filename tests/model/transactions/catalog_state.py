"""The state of the catalog, as far as transactions use it: decisions, keys, dropped tablets."""

from typing import Any, NamedTuple

from tests.model.transactions.groups import Entry
from tests.model.transactions.tablet_state import Attempt


class JobKey(NamedTuple):
    """A key that takes effect once."""

    name: str


class StreamKey(NamedTuple):
    """An epoch of a query; `replaces`: the query that a new one takes the stream over from."""

    name: str
    query: int
    epoch: int
    replaces: int | None


Key = JobKey | StreamKey | None


class Row(NamedTuple):
    """A decision: its commit time, participants, key, and the attempt that prepared them."""

    at: int
    tablets: tuple[str, ...]
    key: Key
    attempt: Attempt


class Taken(NamedTuple):
    """The last transaction that took a key, and its commit time; of a stream also query and epoch."""

    txn: str
    at: int
    query: int = 0
    epoch: int = 0


class CatalogState:
    """State that the entries of the catalog's log make.

    Attributes:
        rows: decisions that some participant may have to be sent.
        keys: by name, never removed.
        dropped: tablets.
        removed: greatest commit time of a row that was removed.
        settled: no row has a commit time at or below it, or will.
        aborted: transactions that an operator has ended.
        past: rows that were removed, for the judge.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.keys: dict[str, Taken] = {}
        self.dropped: dict[str, int] = {}
        self.removed = self.settled = 0
        self.aborted: set[str] = set()
        self.past: dict[str, Row] = {}

    def apply(self, entry: Entry) -> Any:
        """Apply an entry; return its result."""
        kind, *args = entry.op
        return getattr(self, f"_{kind}")(entry.stamp, *args)

    def restored(self) -> None:
        """Note that the state was read from files."""

    def _noop(self, _: int) -> None: ...

    def _commit(self, _: int, txn: str, row: Row) -> None:
        self.rows[txn] = row
        match row.key:
            case JobKey(name):
                self.keys[name] = Taken(txn, row.at)
            case StreamKey(name, query, epoch, _):
                self.keys[name] = Taken(txn, row.at, query, epoch)

    def _forget(self, stamp: int, txns: tuple[str, ...]) -> None:
        for txn in txns:
            if txn in self.rows:
                self.past[txn] = self.rows.pop(txn)
                self.removed = max(self.removed, self.past[txn].at)
        self.settled = min((row.at for row in self.rows.values()), default=stamp) - 1

    def _abort(self, _: int, txn: str) -> bool:
        """Return whether it is aborted: a decision may have come before."""
        if txn not in self.rows:
            self.aborted.add(txn)
        return txn in self.aborted

    def _drop_tablet(self, stamp: int, tablet: str) -> None:
        self.dropped.setdefault(tablet, stamp)
