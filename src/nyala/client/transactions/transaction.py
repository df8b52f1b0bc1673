"""Transaction: the public, synchronous API of a transaction, and of its parts in other processes."""

import logging
from types import TracebackType
from typing import Protocol

from nyala.client.connection import Connection
from nyala.client.transactions.keys import TransactionToken
from nyala.client.transactions.outcome import Committed
from nyala.client.transactions.staged_parts import OWN_PART, StagedParts
from nyala.client.write.staging import PartStage, StagedPart, StageSession
from nyala.common.errors import InvalidArgument, NyalaError, OutcomeUnknown, TransactionDenied

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
        check_client(self._connection, session, self.id)
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
        self._resumed = resumed
        self._parts = parts
        self._has_key = has_key
        self._own: PartStage | None = None
        self._committed: Committed | None = None
        self._ended = ""

    @property
    def id(self) -> str:
        """Its id, in hexadecimal digits."""
        return self._parts.transaction.hex()

    @property
    def commit_time(self) -> int | None:
        """The hybrid time at which all of its rows become visible; None: it is not committed."""
        return None if self._committed is None else self._committed.at

    @property
    def committed_before(self) -> bool:
        """True if another transaction with its key was committed before, so that this one had no effect."""
        return self._committed is not None and self._committed.before

    def part(self, name: str) -> TransactionPart:
        """Return a part with a name, a new one if there is none; parts take effect in order of creation.

        Raises:
            InvalidArgument: the transaction has ended, or the name is taken by a part of another process.
        """
        self._check_open()

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
        self._check_open()

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
        self._check_open()

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
        self._check_open()
        return self._connection.change(self._commit())

    async def _commit(self) -> int:
        try:
            parts = self._parts.named()
        except TransactionDenied as err:
            self._ended = f"transaction {self.id} has failed: {err.message}"
            self._parts.end(self._ended)
            self._drop_later()
            raise
        self._ended = f"transaction {self.id} is being committed"
        self._parts.end(self._ended)
        if not self._has_key and not any(p.tablets or p.covered for p in parts):
            self._committed = Committed(max(1, self._connection.core.clock.seen), self.id)
        else:
            try:
                self._committed = await self._parts.coordination.commit(parts)
            except OutcomeUnknown:
                raise
            except NyalaError:
                self._drop_later()
                raise
        self._ended = f"transaction {self.id} is committed"
        if self._committed.before:
            self._drop_later()
        return self._committed.at

    def abort(self) -> bool:
        """End the transaction without effect; return False if it was committed before.

        Raises:
            OutcomeUnknown: a commit was asked for, and no master answers; it may be committed.
        """
        if self._committed is not None:
            return self.committed_before
        return self._connection.change(self._abort())

    async def _abort(self) -> bool:
        asked, self._ended = (
            bool(self._ended) or self._resumed,
            f"transaction {self.id} was aborted",
        )
        self._parts.end(self._ended)
        known = [p for p in self._parts.known() if p.tablets]
        if asked and known:  # a master may have been asked to commit it
            self._committed = await self._parts.coordination.abort(known)
        if self._committed is None:
            await self._parts.drop()
        return self._committed is None

    def _drop_later(self) -> None:
        env = self._connection.core.env
        env.tasks.spawn(self._parts.drop(), "drop the stages of a transaction")

    def part_for(self, session: StageSession) -> PartStage:
        """Return the part that writes with the transaction itself stage into.

        Raises:
            InvalidArgument: the transaction is of another client, or has ended.
        """
        check_client(self._connection, session, self.id)
        self._check_open()
        if self._own is None:

            async def make() -> PartStage:
                return self._parts.part(OWN_PART)

            self._own = self._connection.run(make())
        return self._own

    def _check_open(self) -> None:
        if self._ended:
            raise InvalidArgument(f"{self._ended}; begin another one with client.transaction()")

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            if not self._ended:
                self.commit()
            return
        if self._committed is not None:
            return
        try:
            self.abort()
        except NyalaError as err:
            log.warning("transaction %s was not aborted: %s", self.id, err)

    def __repr__(self) -> str:
        state = "open" if not self._ended else self._ended.removeprefix(f"transaction {self.id} ")
        return f"<nyala.Transaction {self.id} {state}>"


def check_client(connection: Connection, session: StageSession, transaction: str) -> None:
    """Check that a write belongs to the client of its transaction.

    Args:
        connection: of the transaction.
        session: of the client that writes.
        transaction: id, for the message.

    Raises:
        InvalidArgument: it belongs to another one.
    """
    if connection.core.session.staging is not session:
        raise InvalidArgument(
            f"transaction {transaction} belongs to another client; open the table with the client that began "
            "it, or stage a part of it with client.transaction_part(token, name)"
        )
