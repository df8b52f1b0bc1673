"""The answers that a transaction is not committed, or that its outcome is no longer known. Rules F and N.

"Not committed" is final. It needs evidence, which the caller has, and then a round that confirms the leader:
a coordinator that was replaced without its knowledge could deny what its successor has committed.
"""

from collections.abc import Iterable
from typing import Protocol

from nyala.master.catalog.records.parsing import parse_key
from nyala.master.catalog.records.rows import KIND_KEY, CatalogRow
from nyala.master.ddl.operation import LeaderMemory
from nyala.master.transactions import keys
from nyala.master.transactions.attempts import TransactionAttempts
from nyala.master.transactions.keys import KeyUse
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import transactions_pb2 as txn


class CatalogReader(Protocol):
    """The parts of the sys catalog that the coordinator reads."""

    async def confirm(self) -> int:
        """Return once a majority has confirmed that this master leads and all is applied."""
        ...

    async def find(self, kind: str, row: str) -> CatalogRow | None:
        """Return a row as of everything that is applied here.

        Args:
            kind: its kind.
            row: its id.
        """
        ...

    async def keys(self, after: str, limit: int) -> list[CatalogRow]:
        """Return rows of keys, in the order of their names.

        Args:
            after: name after which they begin.
            limit: most rows.
        """
        ...


class Denials:
    """Denials of one coordinator in one term. On the loop only.

    Args:
        memory: memory of the term.
        rows: the sys catalog.
        attempts: attempts of the term.
    """

    def __init__(
        self, memory: LeaderMemory, rows: CatalogReader, attempts: TransactionAttempts
    ) -> None:
        self._memory = memory
        self._rows = rows
        self._attempts = attempts

    async def key(self, name: str) -> cat.KeyRecord | None:
        """Return the row with the name of a key; None: there is none."""
        row = await self._rows.find(KIND_KEY, name)
        return None if row is None else parse_key(row)

    def forgotten(self, since: int, use: KeyUse | None, taken: cat.KeyRecord | None) -> bool:
        """Return whether a row of a transaction may have been removed, and no key says so.

        Args:
            since: stamp of an entry of the transaction, below any commit time that it can get.
            use: its key; None: it has none.
            taken: the row with the name of the key.
        """
        marks = self._memory.catalog.decisions.marks
        if since > marks.removed:
            return False
        if use is None:
            return True
        if not use.key.query:
            return since <= marks.keys_removed
        if taken is None or not keys.same_stream(use.key, taken.key):
            return True
        return not use.user.may_use(taken)  # the name had another owner when this epoch was decided

    async def deny(
        self,
        transaction: bytes,
        use: KeyUse | None,
        since: int,
        errors: Iterable[txn.TxnTabletResult],
        reason: str,
    ) -> txn.TxnOutcome:
        """Return the outcome of a transaction that cannot be committed any more, after a round.

        Args:
            transaction: its id.
            use: its key; None: it has none.
            since: as for `forgotten`.
            errors: of the tablets that refused it.
            reason: for the client.

        Raises:
            NotLeader, Unavailable, TimedOut: this master may not lead any more.
        """
        await self._rows.confirm()
        taken = None if use is None else await self.key(use.key.name)
        self._memory.check()
        known = transaction in self._memory.catalog.decisions.rows
        if known or transaction in self._attempts.under_way:
            return txn.TxnOutcome(reason="another request about it is under way; ask again")
        if use is not None and keys.covers(taken, use):
            return txn.TxnOutcome(reason="its key is taken; ask again")
        if self.forgotten(since, use, taken):
            return txn.TxnOutcome(kind=txn.TxnOutcome.UNKNOWN)
        return txn.TxnOutcome(kind=txn.TxnOutcome.DENIED, errors=errors, reason=reason)
