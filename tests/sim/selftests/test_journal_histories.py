"""Two checkers of journals' histories: they agree on small histories, valid and corrupted."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from nyala.common.ids import TableId, TabletId
from nyala.journal import steps
from nyala.journal.manifest import JournalInfo
from tests.sim.journals.client import JournalHistory, check_replaced
from tests.sim.journals.history import (
    GONE,
    OPEN,
    GetKey,
    JournalViolation,
    ListKeys,
    ListLogs,
    Op,
    Query,
    ReadLog,
    check,
)
from tests.sim.journals.order import JournalOrder
from tests.sim.journals.search import explained, read
from tests.unit.journal.journal_model import KEYS, LOGS, Model, draw_step


def _query(draw: random.Random, model: Model) -> Query:
    log = draw.choice(LOGS)
    known = model.logs.get(log)
    created = known.created if known and draw.random() < 0.5 else draw.choice((0, 0, 5))
    after = draw.choice((0, 0, model.last, max(0, model.last - 7)))
    return draw.choice(
        (
            ReadLog(log, created, after, limit=draw.choice((0, 0, 1))),
            ReadLog(log, 0, 1 << 62),
            GetKey(draw.choice(KEYS)),
            ListKeys(draw.choice(("k", ""))),
            ListLogs(),
        )
    )


def history(draw: random.Random, count: int) -> list[Op]:
    """Return a valid history: each operation is executed at a moment between its call and its answer."""
    model, ops, now = Model(), list[Op](), 0.0
    for number in range(count):
        now += 1
        call, ret = now - draw.choice((0.1, 1.5, 3.5)), now + draw.choice((0.1, 1.2, 3.2))
        stamp = model.last + draw.choice((1, 1, 3))
        client = f"c{number}"
        if draw.random() < 0.6:
            step = draw_step(draw, model)
            answer = model.apply(step, stamp)
            op = Op(client, call, ret, step, answer)
            if op.first_id and draw.random() < 0.15:
                op = replace(op, ret=OPEN)
        else:
            what = _query(draw, model)
            op = Op(client, call, ret, what, read(model, what))
        ops.append(op)
    return ops


def corrupted(draw: random.Random, ops: list[Op]) -> list[Op]:
    """Return the history with one answer or time changed; it may be valid still."""
    at = draw.randrange(len(ops))
    op, other = ops[at], draw.choice(ops)
    kind = draw.choice(("answer", "times", "id", "lost", "stale", "failed", "entry"))
    match kind, op.answer:
        case "answer", _ if type(other.what) is type(op.what):
            op = replace(op, answer=other.answer)
        case "id", steps.Done(ids=ids):
            by = draw.choice((-2, -1, 1, 2))
            op = replace(op, answer=steps.Done([i and max(1, i + by) for i in ids]))
        case "failed", steps.Done():
            op = replace(op, answer=steps.Failed(0, draw.choice((0, 1, op.first_id))))
        case "failed", steps.Failed(condition=number, actual=actual):
            op = replace(op, answer=steps.Failed(number, actual + draw.choice((-1, 1))))
        case "entry", (int(created), last, tuple(entries), more) if entries:
            op = replace(op, answer=(created, last, entries[1:], more))
        case "entry", (_, _, _, _):
            op = replace(op, answer=GONE)
        case "lost", _:
            return [*ops[:at], *ops[at + 1 :]]
        case _:
            late = draw.choice((-6.0, -3.0, 3.0, 6.0))
            op = replace(op, call=op.call + late, ret=op.ret + late)
    return [*ops[:at], op, *ops[at + 1 :]]


def valid(ops: list[Op]) -> bool:
    try:
        check(ops)
    except JournalViolation:
        return False
    return True


@pytest.mark.parametrize("seed", range(6))
def test_both_checkers_accept_every_valid_history(seed):
    draw = random.Random(seed)
    for _ in range(40):
        ops = history(draw, draw.randrange(1, 14))
        check(ops)
        assert explained(ops)


@pytest.mark.parametrize("seed", range(8))
def test_both_checkers_agree_on_corrupted_histories(seed):
    draw = random.Random(1000 + seed)
    found: Counter[bool] = Counter()
    for _ in range(120):
        ops = corrupted(draw, history(draw, draw.randrange(2, 12)))
        verdict = valid(ops)
        assert verdict == explained(ops), "\n".join(map(str, ops))
        found[verdict] += 1
    assert found[False] > 30
    assert found[True] > 10


def test_read_of_follower_includes_what_its_client_has_seen():
    first = Op("a", 0, 1, steps.Step((), [steps.SetKey("k", b"1")]), steps.Done([10]))
    second = Op("a", 2, 3, steps.Step((), [steps.SetKey("k", b"2")]), steps.Done([20]))
    old = Op("b", 9, 10, GetKey("k"), (10, b"1"), since=2.5)
    check([first, second, old])
    for late in (replace(old, least=20), replace(old, since=4.0), replace(old, since=None)):
        with pytest.raises(JournalViolation, match="no state"):
            check([first, second, late])


def test_two_winners_of_one_condition_are_found():
    """Of the racers with one condition exactly one wins."""
    racers = [
        Op(f"c{n}", 0, 9, steps.Step([steps.LogLast("a", 0)], [steps.Append("a", b"x")]), answer)
        for n, answer in enumerate((steps.Done([5]), steps.Failed(0, 5), steps.Failed(0, 5)))
    ]
    check(racers)
    racers[1] = replace(racers[1], answer=steps.Done([6]))
    with pytest.raises(JournalViolation, match="the model at its position gives"):
        check(racers)


def replaced_journal(ids: tuple[int, ...]) -> tuple[JournalOrder, JournalOrder, steps.Step]:
    """Return the orders of a tablet and of its successor, which gives these ids, and a step of its own."""
    old, new = (
        JournalOrder(JournalInfo(TabletId(t), TableId("j"), "ops", 1, 1 << 30)) for t in "ab"
    )
    step = steps.Step((), [steps.Append("log", b"x")])
    old.apply(step, 7, steps.Done([7]))
    for number in ids:
        append = steps.Append("log", b"%d" % number)
        new.apply(steps.Step((), [append]), number, steps.Done([number]))
    return old, new, step


def test_ids_of_a_replaced_tablet_and_answers_of_neither_are_found():
    before, after = JournalHistory(TabletId("a")), JournalHistory(TabletId("b"))
    old, new, step = replaced_journal((8, 9))
    before.crossed.append((steps.encode_step(step), steps.Done([7])))
    orders = {TabletId("a"): old, TabletId("b"): new}
    check_replaced([before, after], orders)
    check_replaced([before, after], {TabletId("a"): old})
    before.crossed[:] = [(steps.encode_step(step), steps.Done([8]))]
    with pytest.raises(AssertionError, match="was answered"):
        check_replaced([before, after], orders)
    _, again, _ = replaced_journal((7, 9))
    before.crossed.clear()
    with pytest.raises(AssertionError, match="had reached 7"):
        check_replaced([before, after], orders | {TabletId("b"): again})
