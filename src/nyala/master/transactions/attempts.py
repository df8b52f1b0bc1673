"""Attempts of one coordinator: their numbers, and what is known of those that are under way. Rule A."""

from dataclasses import dataclass, field

from nyala.common.ids import TabletId
from nyala.master.transactions.keys import KeyUse
from nyala.wire.proto import transactions_pb2 as txn


@dataclass(slots=True, eq=False)
class Try:
    """An attempt that is under way.

    Attributes:
        transaction: its id.
        attempt: its number.
        tablets: participants.
        began_us: monotonic time.
        key: key of the transaction; None: it has none.
        owner: user who owns the name of the key from its decision on; empty: every user may use it.
        ended: it was given up: it must not decide any more.
        decided_at: commit time of the row that was proposed; 0: none was.
    """

    transaction: bytes
    attempt: txn.TxnAttempt
    tablets: tuple[TabletId, ...]
    began_us: int
    key: txn.TxnKey | None
    owner: str
    ended: bool = False
    decided_at: int = 0


@dataclass(slots=True)
class TransactionAttempts:
    """The attempts of one term. On the loop only.

    Attributes:
        incarnation: of the catalog.
        term: in which this master leads.
        under_way: attempts by transaction.
        aborting: transactions whose abort is being recorded: no attempt of them may begin.
    """

    incarnation: int
    term: int
    under_way: dict[bytes, Try] = field(default_factory=dict)
    aborting: set[bytes] = field(default_factory=set)
    _last: int = field(default=0, init=False)

    def new(self) -> txn.TxnAttempt:
        """Return a number that is above every earlier one: each try takes one, and each end of one."""
        self._last += 1
        return txn.TxnAttempt(incarnation=self.incarnation, term=self.term, number=self._last)

    def begin(
        self,
        transaction: bytes,
        tablets: tuple[TabletId, ...],
        use: KeyUse | None,
        owner: str,
        now_us: int,
    ) -> Try:
        """Begin an attempt.

        Args:
            transaction: its id; none of its attempts is under way.
            tablets: participants.
            use: key of the transaction; None: it has none.
            owner: as `Try.owner`.
            now_us: monotonic time.
        """
        assert transaction not in self.under_way, transaction.hex()
        made = self.under_way[transaction] = Try(
            transaction, self.new(), tablets, now_us, None if use is None else use.key, owner
        )
        return made

    def end(self, attempted: Try) -> None:
        """Forget an attempt: it has a row, or was given up."""
        attempted.ended = True
        if self.under_way.get(attempted.transaction) is attempted:
            del self.under_way[attempted.transaction]

    def earliest_decision(self) -> int | None:
        """Return the least commit time of a row that is proposed and not applied; None: there is none."""
        return min((t.decided_at for t in self.under_way.values() if t.decided_at), default=None)
