"""Pending reads: a read at T completes once a majority has confirmed the leader and all up to T is applied.

A prepared transaction may become visible at or below T: then the read waits until it is resolved (rules R and
L of docs/internals/transactions.md).

Correctness: the majority acknowledged the round with clocks at or above T, and every later leader receives a
message from one of them before it stamps anything. This leader's own clock has passed T.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum

from nyala.common.errors import NyalaError, TimedOut
from nyala.replica.member.transactions.prepared import ANY_TIME
from nyala.replica.member.transactions.waiting import WaitingRequests

_HELD = (
    "a transaction is prepared in this tablet and its outcome did not arrive in time, so the latest rows "
    "cannot be read; nothing was read: retry, or read at an earlier time. If it stays so, check the masters: "
    "nyala cluster ksck"
)


class ReadKind(Enum):
    """Kind of a pending read.

    SNAPSHOT: at a time that the caller has chosen. LATEST: of the latest rows, at a time drawn here; it
    may be answered at a later one. CLOSING: a round for the closed time, which may be answered at an earlier
    one.
    """

    SNAPSHOT = "snapshot"
    LATEST = "latest"
    CLOSING = "closing"


@dataclass(slots=True)
class _Read:
    at: int
    round: int
    upto: int  # last index of the leader's log when the read came
    deadline_us: int
    kind: ReadKind
    done: asyncio.Future[int]
    confirmed: bool = False
    held: bool = False  # it waits, or has waited, for a prepared transaction


class PendingReads:
    """Pending reads of one replica. On the loop only.

    Args:
        turns: takes note of the reads of the latest rows that wait for prepared transactions.
    """

    def __init__(self, turns: WaitingRequests) -> None:
        self._turns = turns
        self._waiting: list[_Read] = []  # by round

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, at: int, number: int, upto: int, deadline_us: int, kind: ReadKind
    ) -> asyncio.Future[int]:
        """Return a future that completes, with the time of the read, when it can be answered.

        Args:
            at: hybrid time, already merged into this server's clock.
            number: number of its read-index round.
            upto: last index of the leader's log; later entries are stamped above `at`.
            deadline_us: monotonic.
            kind: decides which time it is answered at.
        """
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Read(at, number, upto, deadline_us, kind, done))
        return done

    def confirmed(self, number: int) -> None:
        """Note that a majority has confirmed all rounds up to this one."""
        for read in self._waiting:
            if read.round > number:
                break
            read.confirmed = True

    def complete(self, applied: int, applied_stamp: int, readable: int) -> int:
        """Complete the reads that are due.

        Args:
            applied: index of the last entry applied.
            applied_stamp: its stamp; all entries below a read's time are applied if it is at or above it.
            readable: latest time at or below which no prepared transaction can become visible.

        Returns:
            The latest time that may be closed now; 0: none was due.
        """
        if not self._waiting:
            return 0
        left, latest = [], 0
        for read in self._waiting:
            if read.done.done():
                continue  # its caller was cancelled
            at = None
            if read.confirmed and (applied >= read.upto or applied_stamp >= read.at):
                held, at = read.held, _answered_at(read, applied_stamp, readable)
                if read.held and not held and read.kind is ReadKind.LATEST:
                    self._wait_for_turn(read)
            if at is None:
                left.append(read)
                continue
            read.done.set_result(at)
            latest = max(latest, min(read.at, at))
        self._waiting = left
        return latest

    def _wait_for_turn(self, read: _Read) -> None:
        number = self._turns.begin()
        read.done.add_done_callback(lambda _: self._turns.end(number))

    def expire(self, now_us: int) -> None:
        """Fail the reads whose deadline has passed."""
        if any(r.deadline_us <= now_us for r in self._waiting):
            late = [r for r in self._waiting if r.deadline_us <= now_us]
            self._waiting = [r for r in self._waiting if r.deadline_us > now_us]
            _end([r for r in late if r.held], TimedOut(_HELD))
            _end(late, TimedOut("no majority confirmed this leader in time; nothing was read"))

    def end(self, err: NyalaError) -> None:
        """Fail all reads: leadership is lost, or the replica ends."""
        late, self._waiting = self._waiting, []
        _end(late, err)


def _answered_at(read: _Read, applied_stamp: int, readable: int) -> int | None:
    """Return the time at which a read is answered that waits for nothing but prepared transactions.

    Args:
        read: the read.
        applied_stamp: stamp of the last entry applied.
        readable: as of `complete`.

    Returns:
        None if it has to wait.
    """
    if read.kind is ReadKind.CLOSING:
        return min(read.at, readable)
    if read.at > readable or (read.held and readable < ANY_TIME and read.kind is ReadKind.LATEST):
        read.held = True
        return None
    if read.held and read.kind is ReadKind.LATEST:
        return max(read.at, applied_stamp)
    return read.at


def _end(reads: list[_Read], err: NyalaError) -> None:
    for read in reads:
        if not read.done.done():
            read.done.set_exception(err)
