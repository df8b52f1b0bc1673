"""General search for an order of small histories of a journal, to compare the fast checker with.

Wing and Gong's search: an operation may be next if no other one was answered before it was sent. It knows
nothing of ids but that the model gives them.
"""

import copy
from collections.abc import Sequence

from nyala.journal import steps
from tests.sim.journals.history import GetKey, ListKeys, Op, Query, ReadLog, page_of
from tests.unit.journal.journal_model import Model


def explained(ops: Sequence[Op]) -> bool:
    """Return whether one order of linearizable operations explains all answers."""
    seen: set[int] = set()
    stack: list[tuple[int, Model]] = [(0, Model())]
    everything = (1 << len(ops)) - 1
    while stack:
        done, model = stack.pop()
        if done == everything:
            return True
        left = [n for n in range(len(ops)) if not done >> n & 1]
        first_ret = min(ops[n].ret for n in left)
        for n in left:
            after = done | 1 << n
            if ops[n].call > first_ret or after in seen:
                continue
            reached = _executed(ops[n], model)
            if reached is not None:
                seen.add(after)  # the steps among them, in the order of their ids, make one state
                stack.append((after, reached))
    return False


def _executed(op: Op, model: Model) -> Model | None:
    """Return the state after an operation, or None if its answer does not fit."""
    if isinstance(op.what, steps.Step):
        after = copy.deepcopy(model)
        answer = op.answer
        if isinstance(answer, steps.Done):
            answer = steps.Done(list(answer.ids))
        return after if after.apply(op.what, op.first_id) == answer else None
    return model if read(model, op.what) == op.answer else None


def read(model: Model, what: Query) -> object:
    """Return what a read of a state gives."""
    match what:
        case ReadLog(log=name):
            return page_of(model.logs.get(name), what)
        case GetKey(key=key):
            return model.keys.get(key)
        case ListKeys(prefix=prefix):
            return tuple((k, *model.keys[k]) for k in sorted(model.keys) if k.startswith(prefix))
        case _:
            logs = sorted(model.logs.items())
            return tuple((n, log.created, log.last, len(log.entries)) for n, log in logs)
