"""Writes in flight: from the proposal to the entry that was applied at its index, or to the reason why not.

Rules: a leader never takes back a proposal. Whoever waits hears of the outcome, or that it is unknown.
"""

import asyncio
from dataclasses import dataclass

from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    NyalaError,
    OutcomeUnknown,
    SessionExpired,
)
from nyala.common.ids import OpId
from nyala.replica.applier import Answer, Kind
from nyala.replica.status import WriteOutcome


@dataclass(slots=True)
class _Pending:
    term: int
    size_bytes: int
    deadline_us: int
    done: asyncio.Future[Answer | None]


class Writes:
    """The writes of one replica that wait for their entries. On the loop only.

    Attributes:
        inflight_bytes: of the payloads in flight, answered or given up.
    """

    def __init__(self) -> None:
        self.inflight_bytes = 0
        self._pending: dict[int, _Pending] = {}  # by index, which grows

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, op: OpId, size_bytes: int, deadline_us: int) -> asyncio.Future[Answer | None]:
        """Return what will be done when the entry at `op.index` is applied; None for a configuration."""
        done: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        displaced = self._pending.pop(op.index, None)
        assert displaced is None or displaced.term < op.term, f"{op} was proposed twice"
        if displaced is not None:  # its entry was truncated before it was committed
            self._end(displaced, NotLeader("the operation was displaced by a newer leader's"))
        self._pending[op.index] = _Pending(op.term, size_bytes, deadline_us, done)
        self.inflight_bytes += size_bytes
        return done

    def applied(self, op: OpId, answer: Answer | None) -> None:
        """Tell whoever proposed the entry at this index."""
        pending = self._pending.pop(op.index, None)
        if pending is None:
            return
        self.inflight_bytes -= pending.size_bytes
        if pending.done.done():
            return
        if pending.term == op.term:
            pending.done.set_result(answer)
        else:
            pending.done.set_exception(
                NotLeader("another leader's entry took this operation's place; send it again")
            )

    def deposed(self, commit: int) -> None:
        """Leadership is lost: what is not known to be committed has an unknown outcome."""
        for index in [i for i in self._pending if i > commit]:
            self._end(
                self._pending.pop(index),
                OutcomeUnknown(
                    "leadership was lost while the operation was in flight: it may or may not take "
                    "effect; send it again under the same sequence number to learn which"
                ),
            )

    def expire(self, now_us: int) -> None:
        """Answer those whose deadline has passed; their entries stay in flight."""
        for pending in self._pending.values():
            if pending.deadline_us <= now_us and not pending.done.done():
                pending.done.set_exception(
                    OutcomeUnknown(
                        "the deadline passed while the operation was in flight: it may or may not "
                        "take effect; send it again under the same sequence number to learn which"
                    )
                )

    def fail(self, why: str) -> None:
        """The replica ends: every outcome is unknown."""
        for pending in list(self._pending.values()):
            self._end(pending, OutcomeUnknown(f"{why}: the operation may or may not take effect"))
        self._pending.clear()

    def _end(self, pending: _Pending, err: NyalaError) -> None:
        self.inflight_bytes -= pending.size_bytes
        if not pending.done.done():
            pending.done.set_exception(err)


def outcome(answer: Answer) -> WriteOutcome:
    """Return what the caller of a write gets.

    Raises:
        SessionExpired: the operation was not executed (again), and there is no result to give.
        InvalidArgument: the sequence number belongs to an operation with other bytes.
    """
    if answer.kind is Kind.EXPIRED:
        raise SessionExpired(
            "the result of this sequence number is no longer kept, so the operation was not executed "
            "(again); read the rows to learn whether it took effect, then write under a new number"
        )
    if answer.kind is Kind.OTHER_BYTES:
        raise InvalidArgument(
            "this sequence number was used for an operation with other bytes; a retry sends the same "
            "bytes, and a new operation takes a new number"
        )
    return WriteOutcome(answer.stamp, answer.result, answer.kind is Kind.DUPLICATE)
