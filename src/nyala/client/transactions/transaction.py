"""Transaction: the public, synchronous API of a transaction, and of its parts in other processes."""

import logging
from types import TracebackType
from typing import Protocol

from nyala.client.connection import Connection
from nyala.client.transactions.keys import TransactionToken
from nyala.client.transactions.open_transaction import OpenTransaction, check_client
from nyala.client.transactions.staged_parts import StagedParts
from nyala.client.write.staging import PartStage, StagedPart, StageSession
from nyala.common.errors import NyalaError

log = logging.getLogger("nyala.client")


class HasTable(Protocol):
    """A table handle."""

    @property
    def id(self) -> str:
        """The table's id."""
        ...


class TransactionPart:
    """A part of a transaction: rows that one writer stages, for instance one attempt of a task.

    Pass it as `txn=` to the writes of tables of the same client. Made by `Transaction.part` and
    `Client.transaction_part`.
    """

    def __init__(self, connection: Connection, stage: PartStage, transaction: bytes) -> None:
        self._connection = connection
        self._stage = stage
        self._transaction = transaction

    @property
    def name(self) -> str:
        """Name of the part, unique in its transaction."""
        return self._stage.name

    @property
    def id(self) -> str:
        """Id of the transaction, in hexadecimal digits."""
        return self._transaction.hex()

    @property
    def failed(self) -> bool:
        """True if a row was refused or a batch was not acknowledged, so that it cannot be committed."""
        return self._stage.failure is not None

    def staged(self) -> StagedPart:
        """Return what this part has staged, to be sent to the process that commits. It can be pickled.

        Raises:
            TransactionDenied: some row was refused, or a batch was not acknowledged.
        """

        async def read() -> StagedPart:
            return self._stage.staged()

        return self._connection.run(read())

    def part_for(self, session: StageSession) -> PartStage:
        """Return the stage of this part, for a write of the same client; raises as `Transaction.part_for`."""
        check_client(self._connection.core, session, self.id)
        return self._stage

    def __repr__(self) -> str:
        return f"<nyala.TransactionPart {self.name!r} of {self.id}>"


class Transaction:
    """Rows that become visible at one time, or never. Made by `Client.transaction`; a context manager.

    The end of its block commits it; an exception aborts it. Pass it as `txn=` to `upsert`, `delete`, `write`,
    `delete_where` and the `_ignore` forms of tables of the same client. May be used from any thread.
    """

    def __init__(
        self, connection: Connection, parts: StagedParts, has_key: bool, resumed: bool = False
    ) -> None:
        self._connection = connection
        self._parts = parts
        self._own: PartStage | None = None
        self._open = OpenTransaction(connection.core, parts, has_key, resumed)

    @property
    def id(self) -> str:
        """Its id, in hexadecimal digits."""
        return self._open.id

    @property
    def commit_time(self) -> int | None:
        """The hybrid time at which all of its rows become visible; None: it is not committed."""
        committed = self._open.committed
        return None if committed is None else committed.at

    @property
    def committed_before(self) -> bool:
        """True if another transaction with its key was committed before, so that this one had no effect."""
        committed = self._open.committed
        return committed is not None and committed.before

    def part(self, name: str) -> TransactionPart:
        """Return a part with a name, a new one if there is none; parts take effect in order of creation.

        Raises:
            InvalidArgument: the transaction has ended, or the name is taken by a part of another process.
        """
        self._open.check()

        async def make() -> PartStage:
            return self._parts.part(name)

        made = self._connection.run(make())
        return TransactionPart(self._connection, made, self._parts.transaction)

    def token(self, *tables: HasTable) -> TransactionToken:
        """Return a token with which other processes stage parts (`Client.transaction_part`), to be pickled.

        Args:
            *tables: into which they write. The stages in all tablets of these tables are kept alive while
                this transaction is open; in others they end `txn_timeout_s` after the last write.
        """
        self._open.check()

        async def cover() -> None:
            for table in tables:
                await self._parts.cover(table.id)

        self._connection.run(cover())
        masters = ",".join(self._connection.core.masters.known)
        return TransactionToken(self.id, masters)

    def include(self, *parts: StagedPart) -> None:
        """Add parts that other processes have staged; they take effect in this order, after those made here.

        Raises:
            InvalidArgument: a part of this name is there already, or the transaction has ended.
        """
        self._open.check()

        async def add() -> None:
            for part in parts:
                self._parts.include(part)

        self._connection.run(add())

    def commit(self) -> int:
        """Commit, and return the commit time: a later scan or look-up of any client sees all rows.

        With a key that another transaction took before, nothing takes effect, `committed_before` is true,
        and the time is that of the other one.

        Raises:
            TransactionDenied: it is not committed, and never will be; the message has the reasons.
            TimedOut: it is not committed: it was not decided in time, and was aborted.
            OutcomeUnknown: it may be committed, or may yet be.
            InvalidArgument: it has ended, or another thread still writes.
        """
        self._open.check()
        return self._connection.change(self._open.commit())

    def abort(self) -> bool:
        """End the transaction without effect; return False if it was committed before.

        Raises:
            OutcomeUnknown: a commit was asked for, and no master answers; it may be committed.
        """
        if self._open.committed is not None:
            return self.committed_before
        return self._connection.change(self._open.abort())

    def leave(self) -> None:
        """Take no more rows in this process, and keep no stage alive here; what is staged stays.

        Another process commits or aborts it. Nothing happens if it has ended here.
        """
        self._connection.run(self._open.leave())

    def part_for(self, session: StageSession) -> PartStage:
        """Return the part that writes with the transaction itself stage into.

        Raises:
            InvalidArgument: the transaction is of another client, or has ended.
        """
        check_client(self._connection.core, session, self.id)
        self._open.check()
        if self._own is None:
            self._own = self._connection.run(self._open.own())
        return self._own

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            if not self._open.ended:
                self.commit()
            return
        if self._open.committed is not None:
            return
        try:
            self.abort()
        except NyalaError as err:
            log.warning("transaction %s was not aborted: %s", self.id, err)

    def __repr__(self) -> str:
        return f"<nyala.Transaction {self.id} {self._open.state}>"
