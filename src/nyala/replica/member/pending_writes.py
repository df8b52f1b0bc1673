"""Pending writes: from the proposal to the entry that was applied at its index, or to an error.

Rules: a proposal cannot be cancelled. Every caller gets the outcome, or the error that it is unknown. A retry
of an operation in flight waits for the same entry and is not proposed again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    NyalaError,
    OutcomeUnknown,
    SessionExpired,
)
from nyala.common.ids import OpId
from nyala.replica.member.applier import Answer, AnswerKind
from nyala.replica.member.session_header import NO_OWNER
from nyala.replica.status import WriteOutcome

FORGOTTEN = "CLIENT_FORGOTTEN"
"""Value of `reason` in SessionExpired: a retry whose `since` is above `forgotten_until` is executed."""


class WriteId(NamedTuple):
    """Identity of a write, the same for all its attempts: client, sequence, CRC32C of the payload, owner."""

    client_id: bytes
    sequence: int
    crc: int
    owner: int = NO_OWNER


_Waiter = tuple[int, asyncio.Future[Answer | None]]
"""Deadline (monotonic microseconds), and the future that a caller awaits."""


@dataclass(slots=True)
class _Pending:
    term: int
    size_bytes: int
    identity: WriteId | None
    waiters: list[_Waiter] = field(default_factory=list)


class PendingWrites:
    """Pending writes of one replica. On the loop only.

    Attributes:
        inflight_bytes: size of the payloads in flight, timed-out ones included.
    """

    def __init__(self) -> None:
        self.inflight_bytes = 0
        self._pending: dict[int, _Pending] = {}  # by index, which grows
        self._by_identity: dict[WriteId, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self, op: OpId, size_bytes: int, deadline_us: int, identity: WriteId | None = None
    ) -> asyncio.Future[Answer | None]:
        """Return a future that completes when the entry is applied; with None for a configuration.

        Args:
            op: term and index of the entry.
            size_bytes: size in bytes of its payload.
            deadline_us: monotonic deadline of the caller.
            identity: for retries; None: it has none.
        """
        if op.index in self._pending:  # an entry that was truncated before it was committed
            displaced = self._take(op.index)
            assert displaced.term < op.term, f"{op} was proposed twice"
            _fail_waiters(displaced, NotLeader("the operation was displaced by a newer leader's"))
        pending = self._pending[op.index] = _Pending(op.term, size_bytes, identity)
        if identity is not None:
            self._by_identity[identity] = pending
        self.inflight_bytes += size_bytes
        return _wait(pending, deadline_us)

    def join(self, identity: WriteId, deadline_us: int) -> asyncio.Future[Answer | None] | None:
        """Return a future for an operation in flight, as `add`; None: it is not in flight."""
        pending = self._by_identity.get(identity)
        return None if pending is None else _wait(pending, deadline_us)

    def applied(self, op: OpId, answer: Answer | None) -> None:
        """Complete the write at this index; fail it if the entry is another leader's."""
        if op.index not in self._pending:
            return
        pending = self._take(op.index)
        if pending.term != op.term:
            _fail_waiters(
                pending,
                NotLeader("another leader's entry took this operation's place; send it again"),
            )
            return
        for _, done in pending.waiters:
            if not done.done():
                done.set_result(answer)

    def on_leadership_lost(self, commit: int) -> None:
        """Fail the writes that are not known to be committed, as unknown: leadership is lost."""
        for index in [i for i in self._pending if i > commit]:
            _fail_waiters(
                self._take(index),
                OutcomeUnknown(
                    "leadership was lost while the operation was in flight: it may or may not take "
                    "effect; send it again under the same sequence number to learn which"
                ),
            )

    def expire(self, now_us: int, cause: Callable[[], str]) -> None:
        """Fail the callers whose deadline has passed; their entries stay in flight.

        Args:
            now_us: monotonic time.
            cause: returns what holds writes up here, for the error; empty: nothing that is known.
        """
        for pending in self._pending.values():
            for deadline_us, done in pending.waiters:
                if deadline_us <= now_us and not done.done():
                    why = cause()
                    done.set_exception(
                        OutcomeUnknown(
                            "the deadline passed while the operation was in flight: it may or may not "
                            "take effect; send it again under the same sequence number to learn which"
                            + (why and f". {why[0].upper()}{why[1:]}")
                        )
                    )
            pending.waiters = [w for w in pending.waiters if not w[1].done()]

    def fail(self, why: str) -> None:
        """Fail all writes, as unknown: the replica ends."""
        for index in list(self._pending):
            _fail_waiters(
                self._take(index),
                OutcomeUnknown(f"{why}: the operation may or may not take effect"),
            )

    def _take(self, index: int) -> _Pending:
        """Remove and return the write in flight at an index."""
        pending = self._pending.pop(index)
        self.inflight_bytes -= pending.size_bytes
        if pending.identity is not None and self._by_identity.get(pending.identity) is pending:
            del self._by_identity[pending.identity]
        return pending


def _wait(pending: _Pending, deadline_us: int) -> asyncio.Future[Answer | None]:
    done: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
    pending.waiters.append((deadline_us, done))
    return done


def _fail_waiters(pending: _Pending, err: NyalaError) -> None:
    for _, done in pending.waiters:
        if not done.done():
            done.set_exception(err)


def outcome(answer: Answer) -> WriteOutcome:
    """Return the outcome of a write for its caller.

    Raises:
        SessionExpired: the operation was not executed (again), and its result is not kept.
        InvalidArgument: the sequence number belongs to an operation with other bytes.
    """
    if answer.kind is AnswerKind.EXPIRED:
        raise SessionExpired(
            "the result of this sequence number is no longer kept, so the operation was not executed "
            "(again); read the rows to learn whether it took effect, then write under a new number"
        )
    if answer.kind is AnswerKind.FORGOTTEN:
        raise SessionExpired(
            "this tablet does not know the client (any more), and an earlier try of the operation may have "
            "taken effect before it was forgotten, so it was not executed (again); read the rows to learn "
            "whether it did, then write with a new client",
            {"reason": FORGOTTEN, "forgotten_until": str(answer.stamp)},
        )
    if answer.kind is AnswerKind.OTHER_BYTES:
        raise InvalidArgument(
            "this sequence number was used for an operation with other bytes; a retry sends the same "
            "bytes, and a new operation takes a new number",
            {"reason": "OTHER_BYTES"},
        )
    return WriteOutcome(answer.stamp, answer.result, answer.kind is AnswerKind.DUPLICATE)
