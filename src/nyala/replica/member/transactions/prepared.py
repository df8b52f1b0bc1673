"""Prepared transactions of a member: what they hold up, and which of them may be resolved.

docs/internals/transactions.md has the rules by letter: R for reads, W for writes, O for the order of
resolves. No I/O. On the loop only.
"""

from collections.abc import Mapping

from nyala.common.ids import PreparedTransaction

ANY_TIME = (1 << 64) - 1
"""Above every hybrid time."""


class PreparedTransactions:
    """Prepared transactions of the applied state, and of the log behind it.

    The log behind the applied state matters to a leader only. It has no entry of an earlier term there:
    writes and operations of transactions are proposed once the leader has applied its own NOOP.

    Args:
        prepared: transactions that are prepared as of the flush point.

    Attributes:
        prepared: prepare times and attempts, as of the last entry applied.
        writes_wait: rule W: a PREPARE of the log is neither undone nor followed by its RESOLVE.
        readable: rule R: the latest time at or below which no prepared transaction can become visible.
    """

    def __init__(self, prepared: Mapping[bytes, PreparedTransaction]) -> None:
        self.prepared = prepared
        self.writes_wait = False
        self.readable = ANY_TIME
        self._times: dict[bytes, int] = {}  # commit times that this leader was sent
        self._prepares: list[int] = []  # indexes of PREPAREs that are not applied
        self._resolves: dict[bytes, int] = {}  # indexes of RESOLVEs that are not applied
        self._update()

    def applied(self, index: int, prepared: Mapping[bytes, PreparedTransaction]) -> bool:
        """Note that entries were applied; return whether anything here changed.

        A RESOLVE that was refused has no effect; its commit time is forgotten until it is sent again.

        Args:
            index: of the last one.
            prepared: what is prepared then.
        """
        if prepared is self.prepared and not self._prepares and not self._resolves:
            return False
        self.prepared = prepared
        self._prepares = [i for i in self._prepares if i > index]
        refused = {t for t, i in self._resolves.items() if i <= index}
        self._resolves = {t: i for t, i in self._resolves.items() if i > index}
        self._times = {t: at for t, at in self._times.items() if t in prepared and t not in refused}
        self._update()
        return True

    def on_leadership_lost(self) -> None:
        """Forget what belongs to one term: commit times, and entries that may never be committed."""
        self._times.clear()
        self._prepares.clear()
        self._resolves.clear()
        self._update()

    # ---- a leader ----------------------------------------------------------------------------------

    def prepare_proposed(self, index: int) -> None:
        """Note that a PREPARE was appended to the log."""
        self._prepares.append(index)
        self._update()

    def decide(self, transaction: bytes, at: int) -> None:
        """Note the commit time of a prepared transaction."""
        assert transaction in self.prepared, f"{transaction.hex()} is not prepared"
        self._times[transaction] = at
        self._update()

    def commit_time(self, transaction: bytes) -> int | None:
        """Return the commit time that this leader was sent; None: none, or its RESOLVE was refused."""
        return self._times.get(transaction)

    def next_resolve(self) -> tuple[bytes, int] | None:
        """Return the transaction, and its commit time, whose RESOLVE may be proposed now; None: none.

        Rule O: every other prepared transaction has p >= C, a known later C, or its RESOLVE in the log. A
        transaction whose PREPARE is not applied yet gets a later C: it is decided after this one.
        """
        open_ones = [t for t in self.prepared if t not in self._resolves]
        decided = sorted((self._times[t], t) for t in open_ones if t in self._times)
        if not decided:
            return None
        at, transaction = decided[0]
        others = (t for t in open_ones if t != transaction)
        if all(self._earliest(t) > at for t in others):
            return transaction, at
        return None

    def resolve_proposed(self, transaction: bytes, index: int) -> None:
        """Note that a RESOLVE was appended to the log."""
        self._resolves[transaction] = index
        self._update()

    def _earliest(self, transaction: bytes) -> int:
        """Return the commit time of a prepared transaction, or the least that it can have."""
        return self._times.get(transaction, self.prepared[transaction].at + 1)

    def _update(self) -> None:
        self.writes_wait = bool(self._prepares) or any(
            t not in self._resolves for t in self.prepared
        )
        self.readable = min((self._earliest(t) - 1 for t in self.prepared), default=ANY_TIME)
