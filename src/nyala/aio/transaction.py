"""AsyncTransaction: rows that become visible at one time, or never, on an event loop."""

import logging
from types import TracebackType

from nyala.aio.session import Session
from nyala.client.caller import closed_meanwhile
from nyala.client.transactions.keys import TransactionSettings
from nyala.client.transactions.open_transaction import OpenTransaction, check_client
from nyala.client.transactions.staged_parts import OWN_PART, StagedParts
from nyala.client.write.staging import PartStage, StageSession
from nyala.common.errors import InvalidArgument, NyalaError
from nyala.env.tasks import ClosedDuringCall

log = logging.getLogger("nyala.client")


class AsyncTransaction:
    """A transaction. Made by `AsyncClient.transaction`; an async context manager.

    It begins as its block is entered; after an error of that it may be entered again. The end of the block
    commits it; an exception, also a cancellation, aborts it. A cancelled `commit` has an unknown outcome,
    which `abort` settles. Pass it as `txn=` to the writes of tables of the same client that
    `nyala.Transaction` names.

    Args:
        session: the client.
        settings: its time and its key.
    """

    def __init__(self, session: Session, settings: TransactionSettings) -> None:
        self._session = session
        self._settings = settings
        self._beginning = False
        self._parts: StagedParts | None = None
        self._open: OpenTransaction | None = None

    async def __aenter__(self) -> "AsyncTransaction":
        core = self._session.core()
        if self._beginning or self._open is not None:
            raise InvalidArgument(
                "a transaction is entered once; begin another one with client.transaction()"
            )
        parts = StagedParts(core, key=self._settings.key)
        self._beginning = True
        try:
            await parts.begin(self._settings.timeout_s)
        except BaseException as err:  # also when cancelled; it may be entered again
            parts.end(f"transaction {parts.transaction.hex()} did not begin: {err!r}")
            raise
        finally:
            self._beginning = False
        self._parts = parts
        self._open = OpenTransaction(core, parts, self._settings.key is not None)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        made = self._begun()[0]
        if error is None:
            if not made.ended:
                await self.commit()
            return
        if made.committed is not None:
            return
        try:
            await self.abort()
        except NyalaError as err:
            log.warning("transaction %s was not aborted: %s", made.id, err)

    def _begun(self) -> tuple[OpenTransaction, StagedParts]:
        if self._open is None or self._parts is None:
            raise InvalidArgument(
                "the transaction has not begun; use it in: async with client.transaction() as txn"
            )
        return self._open, self._parts

    @property
    def id(self) -> str:
        """Its id, in hexadecimal digits."""
        return self._begun()[0].id

    @property
    def commit_time(self) -> int | None:
        """The hybrid time at which all of its rows become visible; None: it is not committed."""
        committed = self._begun()[0].committed
        return None if committed is None else committed.at

    @property
    def committed_before(self) -> bool:
        """True if another transaction with its key was committed before, so that this one had no effect."""
        committed = self._begun()[0].committed
        return committed is not None and committed.before

    async def commit(self) -> int:
        """Commit, and return the commit time; raises as `nyala.Transaction.commit`.

        If it is cancelled it may be committed, or may yet be, as the note of the `CancelledError` says.

        Raises:
            InvalidArgument: it has ended, or another task still writes.
        """
        self._session.core()
        try:
            return await self._begun()[0].commit()
        except ClosedDuringCall as err:
            raise closed_meanwhile(sent=True) from err

    async def abort(self) -> bool:
        """End the transaction without effect; return False if it was committed before."""
        self._session.core()
        made = self._begun()[0]
        return made.committed.before if made.committed is not None else await made.abort()

    def part_for(self, session: StageSession) -> PartStage:
        """Return the part that writes with the transaction stage into, for a write of the same client.

        Raises:
            InvalidArgument: the transaction is of another client, or is not open.
        """
        made, parts = self._begun()
        check_client(self._session.core(), session, made.id)
        made.check()
        return parts.part(OWN_PART)

    def __repr__(self) -> str:
        if self._open is None:
            return "<nyala.aio transaction that has not begun>"
        return f"<nyala.aio transaction {self._open.id} {self._open.state}>"
