"""Pending reads: a read at T completes once a majority has confirmed the leader and all up to T is applied.

Correctness: the majority acknowledged the round with clocks at or above T, and every later leader receives a
message from one of them before it stamps anything. This leader's own clock has passed T.
"""

import asyncio
from dataclasses import dataclass

from nyala.common.errors import NyalaError, TimedOut


@dataclass(slots=True)
class _Read:
    at: int
    round: int
    upto: int  # last index of the leader's log when the read came
    deadline_us: int
    confirmed: bool
    done: asyncio.Future[int]


class PendingReads:
    """Pending reads of one replica. On the loop only."""

    def __init__(self) -> None:
        self._waiting: list[_Read] = []  # by round

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, at: int, number: int, upto: int, deadline_us: int) -> asyncio.Future[int]:
        """Return a future that completes when the time `at` can be read.

        Args:
            at: hybrid time, already merged into this server's clock.
            number: number of its read-index round.
            upto: last index of the leader's log; later entries are stamped above `at`.
            deadline_us: monotonic.
        """
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Read(at, number, upto, deadline_us, False, done))
        return done

    def confirmed(self, number: int) -> None:
        """Note that a majority has confirmed all rounds up to this one."""
        for read in self._waiting:
            if read.round > number:
                break
            read.confirmed = True

    def complete(self, applied: int, applied_stamp: int) -> int:
        """Complete the reads that are due; return the latest of their times; 0: none was due."""
        if not self._waiting:
            return 0
        left, latest = [], 0
        for read in self._waiting:
            if read.done.done():
                continue  # its caller was cancelled
            if read.confirmed and (applied >= read.upto or applied_stamp >= read.at):
                read.done.set_result(read.at)
                latest = max(latest, read.at)
            else:
                left.append(read)
        self._waiting = left
        return latest

    def expire(self, now_us: int) -> None:
        """Fail the reads whose deadline has passed."""
        if any(r.deadline_us <= now_us for r in self._waiting):
            late = [r for r in self._waiting if r.deadline_us <= now_us]
            self._waiting = [r for r in self._waiting if r.deadline_us > now_us]
            _end(late, TimedOut("no majority confirmed this leader in time; nothing was read"))

    def end(self, err: NyalaError) -> None:
        """Fail all reads: leadership is lost, or the replica ends."""
        late, self._waiting = self._waiting, []
        _end(late, err)


def _end(reads: list[_Read], err: NyalaError) -> None:
    for read in reads:
        if not read.done.done():
            read.done.set_exception(err)
