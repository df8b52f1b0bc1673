"""An open transaction as coroutines: its state, commit and abort."""

import asyncio

from nyala.client.core import ClientCore
from nyala.client.transactions.outcome import Committed
from nyala.client.transactions.staged_parts import OWN_PART, StagedParts
from nyala.client.write.staging import PartStage, StageSession
from nyala.common.errors import InvalidArgument, NyalaError, OutcomeUnknown, TransactionDenied


class OpenTransaction:
    """A transaction of one client. The coroutines run on the client's loop.

    Args:
        core: the client.
        parts: its parts.
        has_key: it takes effect once under a key.
        resumed: another process has begun it.

    Attributes:
        committed: its outcome; None: it is not committed.
        ended: why no more rows are taken; empty: it is open.
    """

    def __init__(
        self, core: ClientCore, parts: StagedParts, has_key: bool, resumed: bool = False
    ) -> None:
        self._core = core
        self._parts = parts
        self._has_key = has_key
        self._resumed = resumed
        self.committed: Committed | None = None
        self.ended = ""

    @property
    def id(self) -> str:
        """Its id, in hexadecimal digits."""
        return self._parts.transaction.hex()

    @property
    def state(self) -> str:
        """Its state as a text."""
        return "open" if not self.ended else self.ended.removeprefix(f"transaction {self.id} ")

    def check(self) -> None:
        """Check that it is open. Any thread.

        Raises:
            InvalidArgument: it has ended.
        """
        if self.ended:
            raise InvalidArgument(f"{self.ended}; begin another one with client.transaction()")

    async def own(self) -> PartStage:
        """Return the part that writes with the transaction itself stage into."""
        return self._parts.part(OWN_PART)

    async def commit(self) -> int:
        """Commit, and return the commit time; see `Transaction.commit`.

        If it is cancelled the outcome is unknown, as its note says; `abort` settles it.
        """
        self.check()
        try:
            parts = self._parts.named()
        except TransactionDenied as err:
            self.ended = f"transaction {self.id} has failed: {err.message}"
            self._parts.end(self.ended)
            self._drop_later()
            raise
        self.ended = f"transaction {self.id} is being committed"
        self._parts.end(self.ended)
        if not self._has_key and not any(p.tablets or p.covered for p in parts):
            self.committed = Committed(max(1, self._core.clock.seen), self.id)
        else:
            try:
                self.committed = await self._parts.coordination.commit(parts)
            except (OutcomeUnknown, asyncio.CancelledError) as err:
                self._note_unknown(err)
                raise
            except NyalaError:
                self._drop_later()
                raise
        self.ended = f"transaction {self.id} is committed"
        if self.committed.before:
            self._drop_later()
        return self.committed.at

    async def abort(self) -> bool:
        """End the transaction without effect; see `Transaction.abort`."""
        asked = bool(self.ended) or self._resumed
        self.ended = f"transaction {self.id} is being aborted"
        self._parts.end(self.ended)
        known = [p for p in self._parts.known() if p.tablets]
        if asked and known:  # a master may have been asked to commit it
            try:
                self.committed = await self._parts.coordination.abort(known)
            except (OutcomeUnknown, asyncio.CancelledError) as err:
                self._note_unknown(err)
                raise
        if self.committed is not None:
            self.ended = f"transaction {self.id} is committed"
            return False
        self.ended = f"transaction {self.id} was aborted"
        try:
            await self._parts.drop()
        except asyncio.CancelledError:
            self._drop_later()
            raise
        return True

    async def leave(self) -> None:
        """Leave it to another process; see `Transaction.leave`."""
        if not self.ended:
            self.ended = f"transaction {self.id} was left to another process"
            self._parts.end(self.ended)

    def _note_unknown(self, err: BaseException) -> None:
        """Note that a master may have been asked to commit it and has not answered.

        Args:
            err: what ended the wait for the answer; a cancellation gets the note.
        """
        self.ended = (
            f"transaction {self.id} may be committed, or may yet be: a commit was asked for, and there is no "
            "answer; abort() tells whether it is committed, and ends it if it is not"
        )
        if isinstance(err, asyncio.CancelledError):
            err.add_note(self.ended)

    def _drop_later(self) -> None:
        tasks = self._core.env.tasks
        tasks.spawn(self._parts.drop(), "drop the stages of a transaction")


def check_client(core: ClientCore, session: StageSession, transaction: str) -> None:
    """Check that a write belongs to the client of its transaction.

    Args:
        core: client of the transaction.
        session: of the client that writes.
        transaction: id, for the message.

    Raises:
        InvalidArgument: it belongs to another one.
    """
    if core.session.staging is not session:
        raise InvalidArgument(
            f"transaction {transaction} belongs to another client; open the table with the client that began "
            "it, or stage a part of it with client.transaction_part(token, name)"
        )
