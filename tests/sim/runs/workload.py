"""Concurrent clients on few keys, and their recorded operations: one history per key.

A key is replaced by a new one after `ROTATE` operations, or when too many outcomes are unknown, so that
the checker's search stays small.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tests.sim.checkers.linearizability import OPEN, Kind, Op, SearchTooLong, linearizable
from tests.sim.world.loop import SimLoop

ROTATE = 120
MAX_UNKNOWN = 6
HURRY_US = 20_000
SHOWN = 25
CULPRIT_STEPS = 20_000
_WEIGHTS = {Kind.READ: 35, Kind.WRITE: 35, Kind.INSERT: 12, Kind.UPDATE: 9, Kind.DELETE: 9}


class Unknown(Exception):
    """An operation that may or may not take effect."""


class Failed(Exception):
    """An operation that had no effect."""


class NotLinearizable(AssertionError):
    """A history that is not linearizable; `at_s` is the time of its last answer."""

    def __init__(self, text: str, at_s: float) -> None:
        super().__init__(text)
        self.at_s = at_s


class KeyValue(Protocol):
    """A client of a table of (key, value)."""

    async def read(self, key: int) -> int | None:
        """Return the value of a key, or None. Raises Failed."""
        ...

    async def change(self, kind: Kind, key: int, value: int) -> bool:
        """Do one change; return whether its condition on the row held. Raises Failed, Unknown."""
        ...


@dataclass(slots=True)
class History:
    """Operations of all clients on each key.

    Attributes:
        width: number of keys in use at a time.
        ops: operations per key in order of completion; those with unknown outcome from their call on.
    """

    width: int = 3
    ops: dict[int, list[Op]] = field(default_factory=dict)
    active: list[int] = field(default_factory=list)
    next_key: int = 0
    next_value: int = 0
    _open: Counter[int] = field(default_factory=Counter)
    acknowledged: int = 0
    writes: int = 0
    failed: int = 0
    unknown: int = 0

    def pick(self, rng: random.Random) -> int:
        """Return a key for the next operation."""
        while len(self.active) < self.width:
            self.active.append(self.next_key)
            self.ops[self.next_key] = []
            self.next_key += 1
        return rng.choice(self.active)

    def add(self, key: int, op: Op) -> None:
        """Record an operation that has ended."""
        ops = self.ops[key]
        ops.append(op)
        self._open[key] += op.ret == OPEN
        full = len(ops) >= ROTATE or self._open[key] >= MAX_UNKNOWN
        if full and key in self.active:
            self.active.remove(key)

    def reached(self, acknowledged: int) -> bool:
        """Return whether that many operations were acknowledged."""
        return self.acknowledged >= acknowledged

    def check(self) -> None:
        """Assert that every key's history is linearizable."""
        for key, ops in self.ops.items():
            if not linearizable(ops):
                bad = shortest(ops)
                odd = culprits(bad)
                raise NotLinearizable(
                    f"the history of key {key} is not linearizable; the last of its shortest bad "
                    f"beginning ({len(ops)} operations in all; without any one of those marked <-- it "
                    f"would be):\n{show(bad[-SHOWN:], odd)}",
                    min((o.ret for o in odd), default=max(o.ret for o in bad if o.ret != OPEN)),
                )


class Worker:
    """One client.

    Args:
        loop: virtual time.
        client: client of the calls.
        history: history of the operations.
        rng: source of the choices.
        pause_us: mean time between two operations.
        writes_per_s: while all clients together have written less, pauses are short.
    """

    def __init__(
        self,
        loop: SimLoop,
        client: KeyValue,
        history: History,
        rng: random.Random,
        pause_us: float = 20_000,
        writes_per_s: float = 0,
    ) -> None:
        self._loop = loop
        self._client = client
        self._history = history
        self._rng = rng
        self._pause_us = pause_us
        self._writes_per_s = writes_per_s
        self.name = "client"
        self.acknowledged = 0
        self.stopped = False

    async def run(self) -> None:
        """Run until `stopped`."""
        while not self.stopped:
            behind = self._history.writes < self._writes_per_s * self._loop.time()
            pause_us = min(self._pause_us, HURRY_US) if behind else self._pause_us
            await self._loop.delay(self._rng.expovariate(1 / pause_us))
            await self.once()

    async def once(self) -> bool:
        """Do one operation; return whether it was acknowledged."""
        history, rng = self._history, self._rng
        key = history.pick(rng)
        kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if kind is Kind.READ:
            return await self.read(key)
        history.next_value += 1
        op = Op(self._loop.time(), OPEN, kind, history.next_value, None)
        self._tell(f"key {key}: {kind.value} {history.next_value} ...")
        try:
            ok = await self._client.change(kind, key, history.next_value)
        except Unknown:
            history.unknown += 1
            history.add(key, op)
            self._tell(f"key {key}: {kind.value} {op.value} unknown")
            return False
        except (Failed, asyncio.CancelledError):
            history.failed += 1
            self._tell(f"key {key}: {kind.value} {op.value} failed")
            return False
        self._tell(
            f"key {key}: {kind.value} {op.value} acknowledged{'' if ok else ', does not apply'}"
        )
        history.acknowledged += 1
        history.writes += 1
        self.acknowledged += 1
        history.add(key, replace(op, ret=self._loop.time(), ok=ok))
        return True

    async def read(self, key: int) -> bool:
        """Read one key; return whether it was answered."""
        call = self._loop.time()
        try:
            value = await self._client.read(key)
        except Failed:
            self._history.failed += 1
            return False
        self._tell(f"key {key}: read {value}, asked at {call:.6f}")
        self._history.acknowledged += 1
        self.acknowledged += 1
        self._history.add(key, Op(call, self._loop.time(), Kind.READ, value))
        return True

    def _tell(self, text: str) -> None:
        recorder = self._loop.trace.recorder
        if recorder is not None:
            recorder.note(self._loop.now_us(), self.name, text)

    async def read_all(self) -> None:
        """Read every key that was used: all acknowledged writes must exist."""
        for key in self._history.ops:
            assert await self.read(key), f"key {key} cannot be read after healing"


def shortest(ops: list[Op]) -> list[Op]:
    """Return the shortest beginning, by time of return, that is not linearizable."""
    settled = sorted(o.ret for o in ops if o.ret != OPEN)
    low, high = 0, len(settled) - 1  # if a prefix is not linearizable, no longer one is
    while low < high:
        middle = (low + high) // 2
        if linearizable(_until(ops, settled[middle])):
            low = middle + 1
        else:
            high = middle
    return _until(ops, settled[low])


def _until(ops: list[Op], end: float) -> list[Op]:
    """Return a history as of a time: operations that had not returned are open."""
    return [
        o if o.ret <= end else replace(o, ret=OPEN, ok=None)
        for o in sorted(ops, key=lambda o: o.call)
        if o.call <= end
    ]


def culprits(bad: list[Op]) -> list[Op]:
    """Return the operations without each of which a history is linearizable, if found within a limit."""
    return [
        one for one in bad[-SHOWN:] if one.ret != OPEN and _soon([o for o in bad if o is not one])
    ]


def _soon(ops: list[Op]) -> bool:
    try:
        return linearizable(ops, limit=CULPRIT_STEPS)
    except SearchTooLong:
        return False


def show(ops: list[Op], odd: Collection[Op] = ()) -> str:
    """Return a history as lines."""
    return "\n".join(
        f"  {o.call:.6f} .. {o.ret:.6f} {o.kind.value} {o.value} ok={o.ok}{' <--' if o in odd else ''}"
        for o in sorted(ops, key=lambda o: o.call)
    )


async def let_succeed(loop: SimLoop, workers: Sequence[Worker], within_s: float) -> None:
    """Check after healing that each worker's operations succeed within a time; then stop the workers."""
    end = loop.time() + within_s
    wanted = {worker: worker.acknowledged + 2 for worker in workers}
    while any(worker.acknowledged < least for worker, least in wanted.items()):
        assert loop.time() < end, (
            f"no progress: {within_s} s after all faults were healed "
            f"{[w.name for w, least in wanted.items() if w.acknowledged < least]} still wait"
        )
        await loop.delay(100_000)
    for worker in workers:
        worker.stopped = True
