"""Applier: passes committed entries to the state machine in groups, in index order, in lane APPLY.

No client waits for a follower to apply, and a group of sixteen small entries costs little more than one
entry: followers collect entries for a moment first.

Rules: the machine, the sessions and the applied position are touched in lane APPLY only; the queue and
the callbacks on the loop only. An exception in a lane ends the replica, never the server.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from nyala.common.ids import CommittedOperation, OpId, PreparedTransaction
from nyala.env.tasks import Lane, Tasks
from nyala.raft.messages import Entry, EntryKind
from nyala.replica.member.client_sessions import Admitted, ClientSessions, SavedResult
from nyala.replica.member.session_header import unwrap
from nyala.replica.state_machine import FlushPoint, PreparesTransactions, StateMachine
from nyala.storage.steps import advance

SMALL_GROUP_OPS = 64
SMALL_GROUP_BYTES = 32 << 10
"""Limits of a small group, in operations and bytes: one within both is applied in a fraction of a
millisecond.
"""
DELAY_MS = 20
DELAY_ENTRIES = 16
"""Time for which a follower's entries wait for others, in milliseconds, and number of entries that ends the
wait.
"""


_NOTHING: Mapping[bytes, PreparedTransaction] = {}


class AnswerKind(Enum):
    """Kind of an operation's outcome."""

    DONE = "done"
    DUPLICATE = "duplicate"
    EXPIRED = "expired"
    FORGOTTEN = "forgotten"
    OTHER_BYTES = "other bytes"


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of one operation; `result` and `stamp` only where there is a result.

    The `stamp` of FORGOTTEN is the time after which no operation of a forgotten client was executed.
    """

    kind: AnswerKind
    stamp: int = 0
    result: bytes = b""


Delivery = Callable[[list[Entry], list[Answer | None]], None]
"""Called on the loop after each group, with its entries and an answer for each OPERATION."""


class AppliedPosition:
    """Op id and stamp of the last applied entry. Lane APPLY only."""

    __slots__ = ("op", "stamp")

    def __init__(self, op: OpId, stamp: int) -> None:
        self.op = op
        self.stamp = stamp


class Applier:
    """Applies entries to one state machine. On the loop, except where stated.

    Args:
        tasks: the lanes.
        machine: opened at its flush point.
        sessions: as of that flush point.
        group_ops: maximum number of operations of one group.
        group_bytes: maximum payload of one group, one operation at least.
        deliver: see `Delivery`.
        may_apply: returns whether there is memory for the rows of more entries; called again at `resume`.

    Attributes:
        applied: op id of the last entry applied.
        applied_stamp: its stamp. Not all rows at or below it are there: a prepared transaction may become
            visible below it.
        prepared: transactions that are prepared then.
    """

    def __init__(
        self,
        tasks: Tasks,
        machine: StateMachine,
        sessions: ClientSessions,
        *,
        group_ops: int,
        group_bytes: int,
        deliver: Delivery,
        may_apply: Callable[[], bool],
    ) -> None:
        self.machine = machine
        self.sessions = sessions
        self._tasks = tasks
        self._group_ops = group_ops
        self._group_bytes = group_bytes
        self._deliver = deliver
        self._may_apply = may_apply
        self._queue: deque[Entry] = deque()
        self.backlog_bytes = 0  # of payload, queued and not yet applied
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._between_points = False  # a group is being applied: no flush point can be fixed
        self._position = AppliedPosition(machine.flush_point.op, machine.flush_point.stamp)
        self.applied = machine.flush_point.op
        self.applied_stamp = machine.flush_point.stamp
        self._prepares = machine if isinstance(machine, PreparesTransactions) else None
        self.prepared = _NOTHING if self._prepares is None else self._prepares.prepared

    def enqueue(self, entries: Sequence[Entry], *, awaited: bool) -> None:
        """Queue entries that are committed and durable here; `awaited`: clients may wait for them."""
        self._queue.extend(entries)
        self.backlog_bytes += sum(len(e.payload) for e in entries)
        if awaited or len(self._queue) >= DELAY_ENTRIES or self.backlog_bytes >= SMALL_GROUP_BYTES:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_MS / 1000, self._begin)

    @property
    def queued(self) -> bool:
        """True if entries wait to be applied."""
        return bool(self._queue)

    def resume(self) -> None:
        """Continue with queued entries if there is enough memory again."""
        if self._queue and self._timer is None and self._may_apply():
            self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake.set()

    async def run(self) -> None:
        """Apply queued entries until cancelled. An exception ends the replica."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and self._may_apply():
                group = self._take()
                brief = (
                    not self.prepared  # the RESOLVE of a large stage is a short entry
                    and len(group) <= SMALL_GROUP_OPS
                    and sum(len(e.payload) for e in group) <= SMALL_GROUP_BYTES
                )
                run = self._tasks.run_brief if brief else self._tasks.run
                steps = self._apply(group)
                finished = await run(Lane.APPLY, advance, steps)
                while finished is None:  # other groups have their turn in the lane
                    finished = await self._tasks.run(Lane.APPLY, advance, steps)
                answers, self.prepared = finished.result
                self.applied = group[-1].id
                self.applied_stamp = group[-1].stamp
                self._deliver(group, answers)

    def _take(self) -> list[Entry]:
        group: list[Entry] = []
        left_bytes = self._group_bytes
        while self._queue and len(group) < self._group_ops:
            left_bytes -= len(self._queue[0].payload)
            if left_bytes < 0 and group:
                break
            group.append(self._queue.popleft())
        self.backlog_bytes -= sum(len(e.payload) for e in group)
        return group

    def _apply(
        self, group: Sequence[Entry]
    ) -> Generator[None, None, tuple[list[Answer | None], Mapping[bytes, PreparedTransaction]]]:
        """Lane APPLY: admit operations by the sessions, apply them as one group, and keep their results.

        The operations of a large transaction take several steps.

        Returns:
            The answers, and the transactions that are prepared afterwards.
        """
        self._between_points = True
        first = group[0]
        assert first.id.index == self._position.op.index + 1, (
            f"{first.id} after {self._position.op}"
        )
        assert first.stamp > self._position.stamp, f"{first.id}: stamp {first.stamp} is not above"
        runs: list[CommittedOperation] = []
        admitted: list[SavedResult] = []
        verdicts: list[tuple[Admitted, SavedResult | None] | None] = []
        for entry in group:
            if entry.kind is not EntryKind.OPERATION:
                verdicts.append(None)
                continue
            header, payload = unwrap(entry.payload)
            verdict, saved = self.sessions.admit(header, entry.stamp)
            verdicts.append((verdict, saved))
            if verdict is Admitted.RUN:
                assert saved is not None, "an operation that runs has a record"
                admitted.append(saved)
                runs.append(CommittedOperation(entry.id, entry.stamp, payload))
        results = (yield from self._run(runs)) if runs else []
        assert len(results) == len(runs), f"{len(results)} results of {len(runs)} operations"
        for saved, result in zip(admitted, results, strict=True):
            self.sessions.keep(saved, result)
        self._position = AppliedPosition(group[-1].id, group[-1].stamp)
        self._between_points = False
        outcomes = iter(results)
        forgotten = self.sessions.forgotten
        answers = [None if v is None else _answer(*v, outcomes, forgotten) for v in verdicts]
        return answers, _NOTHING if self._prepares is None else self._prepares.prepared

    def _run(self, operations: Sequence[CommittedOperation]) -> Generator[None, None, list[bytes]]:
        if self._prepares is None:
            return self.machine.apply(operations)
        return (yield from self._prepares.apply_in_steps(operations))

    def prepare_flush(self) -> Callable[[], Callable[[], None]] | None:
        """Lane APPLY: prepare a flush up to the last applied entry, with the sessions at that point.

        None: nothing is to be written. A machine may have memory that it frees without writing anything.
        """
        at = self._position
        has_all = at.op == self.machine.flush_point.op
        if self._between_points or (has_all and not self.machine.unflushed_bytes()):
            return None
        return self.machine.prepare_flush(FlushPoint(at.op, at.stamp, self.sessions.dump()))


def _answer(
    verdict: Admitted, saved: SavedResult | None, outcomes: Iterator[bytes], forgotten: int
) -> Answer:
    if verdict is Admitted.RUN:
        assert saved is not None, "an operation that runs has a record"
        return Answer(AnswerKind.DONE, saved.stamp, next(outcomes))
    if verdict is Admitted.FORGOTTEN:
        return Answer(AnswerKind.FORGOTTEN, forgotten)
    if verdict is Admitted.OTHER_BYTES:
        return Answer(AnswerKind.OTHER_BYTES)
    if saved is None or saved.result is None:
        return Answer(AnswerKind.EXPIRED)
    return Answer(AnswerKind.DUPLICATE, saved.stamp, saved.result)
