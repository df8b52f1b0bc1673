"""A checker of single-key histories against a register with insert, write, delete and read.

Wing and Gong's search with Lowe's cache of (set of operations done, value). An operation whose
outcome is unknown may take effect at any time after its call, or never. Histories stay below 150
operations: clients move on to a new key.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

OPEN = float("inf")
ABSENT: object = None
_LIMIT = 2_000_000


class Kind(Enum):
    """Effect of an operation on the register."""

    READ = "read"
    WRITE = "write"  # upsert
    INSERT = "insert"  # fails when present
    UPDATE = "update"  # fails when absent
    DELETE = "delete"  # fails when absent


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a history.

    Attributes:
        call: time of the call.
        ret: time of the answer; OPEN if the outcome is unknown.
        kind: see `Kind`.
        value: written or read (None: no row).
        ok: for INSERT, UPDATE and DELETE: whether their condition on the row held; None: unknown.
    """

    call: float
    ret: float
    kind: Kind
    value: object = ABSENT
    ok: bool | None = True


class SearchTooLong(AssertionError):
    """The search grew beyond its limit."""


def linearizable(history: Iterable[Op], initial: object = ABSENT, *, limit: int = _LIMIT) -> bool:
    """Return whether one order of the operations, each between call and return, explains all answers.

    Raises:
        SearchTooLong: too many operations overlap.
    """
    ops = sorted((o for o in history if not _says_nothing(o)), key=lambda o: o.call)
    must = sum(1 << i for i, o in enumerate(ops) if o.ret != OPEN)
    seen: set[tuple[int, object]] = set()
    stack: list[tuple[int, object, int]] = [(0, initial, 0)]
    steps = 0
    while stack:
        done, value, low = stack.pop()
        if done & must == must:
            return True
        steps += 1
        if steps > limit:
            raise SearchTooLong(f"{len(ops)} operations need more than {limit} steps")
        while low < len(ops) and done >> low & 1:
            low += 1
        for i in _candidates(ops, done, low):
            reached, after = _step(ops[i], value)
            state = (done | 1 << i, after)
            if reached and state not in seen:
                seen.add(state)
                stack.append((*state, low))
    return False


def _says_nothing(op: Op) -> bool:
    return op.ret == OPEN and op.kind is Kind.READ


def _candidates(ops: list[Op], done: int, low: int) -> list[int]:
    """Operations that may be next: those called before any other remaining one has returned."""
    first_return, found = OPEN, []
    for i in range(low, len(ops)):
        if ops[i].call > first_return:
            break
        if not done >> i & 1:
            found.append(i)
            first_return = min(first_return, ops[i].ret)
    return [i for i in found if ops[i].call <= first_return]


def _step(op: Op, value: object) -> tuple[bool, object]:
    """Return (whether the answer fits this state, the state after)."""
    if op.kind is Kind.READ:
        return op.value == value, value
    if op.kind is Kind.WRITE:
        return True, op.value
    needed = (value is ABSENT) == (op.kind is Kind.INSERT)
    if op.ok is not None and op.ok != needed:
        return False, value
    if not needed:
        return True, value
    return True, ABSENT if op.kind is Kind.DELETE else op.value
