"""AsyncTransaction: rows that become visible at one time, or never, on an event loop."""

import logging
from types import TracebackType

from nyala.aio.session import Session
from nyala.client.transactions.keys import TransactionSettings
from nyala.client.transactions.open_transaction import OpenTransaction, check_client
from nyala.client.transactions.staged_parts import OWN_PART, StagedParts
from nyala.client.write.staging import PartStage, StageSession
from nyala.common.errors import InvalidArgument, NyalaError

log = logging.getLogger("nyala.client")


class AsyncTransaction:
    """A transaction. Made by `AsyncClient.transaction`; an async context manager.

    It begins as its block is entered. The end of the block commits it; an exception, also a cancellation,
    aborts it. Pass it as `txn=` to the writes of tables of the same client that `nyala.Transaction` names.

    Args:
        session: the client.
        settings: its time and its key.
    """

    def __init__(self, session: Session, settings: TransactionSettings) -> None:
        self._session = session
        self._settings = settings
        self._parts: StagedParts | None = None
        self._open: OpenTransaction | None = None

    async def __aenter__(self) -> "AsyncTransaction":
        core = self._session.core()
        if self._open is not None:
            raise InvalidArgument(
                f"transaction {self._open.id} was entered before; begin another one with "
                "client.transaction()"
            )
        self._parts = StagedParts(core, key=self._settings.key)
        self._open = OpenTransaction(core, self._parts, self._settings.key is not None)
        await self._parts.begin(self._settings.timeout_s)
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
                await made.commit()
            return
        if made.committed is None:
            try:
                await made.abort()
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

        Raises:
            InvalidArgument: it has ended, or another task still writes.
        """
        self._session.core()
        return await self._begun()[0].commit()

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
