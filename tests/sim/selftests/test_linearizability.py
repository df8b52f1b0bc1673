"""The checker accepts linearizable histories and refuses corrupted ones."""

import random

import pytest

from tests.sim.checkers.linearizability import OPEN, Kind, Op, linearizable


def history(seed: int, operations: int = 120, clients: int = 5) -> list[Op]:
    """A linearizable history: each operation takes effect at a random time within it."""
    rng = random.Random(seed)
    free = [0.0] * clients
    spans = []
    for _ in range(operations):
        who = min(range(clients), key=lambda c: free[c])
        call = free[who] + rng.expovariate(1)
        effect = call + rng.expovariate(1)
        free[who] = effect + rng.expovariate(1)
        spans.append((effect, call, free[who]))
    value, made = None, []
    for number, (_, call, ret) in enumerate(sorted(spans)):
        kind = rng.choice(list(Kind))
        unknown = kind is not Kind.READ and rng.random() < 0.05
        fits = (value is None) == (kind is Kind.INSERT)
        happens = not unknown or rng.random() < 0.5
        if kind is Kind.READ:
            made.append(Op(call, ret, kind, value))
            continue
        ok = None if unknown else True if kind is Kind.WRITE else fits
        made.append(Op(call, OPEN if unknown else ret, kind, number, ok))
        if happens and (kind is Kind.WRITE or fits):
            value = None if kind is Kind.DELETE else number
    return made


def test_linearizable_histories_are_accepted():
    assert all(linearizable(history(seed)) for seed in range(60))


def test_read_of_value_never_written_is_not_linearizable():
    for seed in range(20):
        good = history(seed)
        reads = [i for i, o in enumerate(good) if o.kind is Kind.READ]
        at = reads[seed % len(reads)]
        bad = [*good[:at], Op(good[at].call, good[at].ret, Kind.READ, -1), *good[at + 1 :]]
        assert not linearizable(bad)


def test_lost_acknowledged_write_is_not_linearizable():
    assert not linearizable(
        [Op(0, 1, Kind.WRITE, "a"), Op(2, 3, Kind.WRITE, "b"), Op(4, 5, Kind.READ, "a")]
    )


def test_stale_read_is_linearizable_only_if_it_overlaps_the_write():
    write = [Op(0, 1, Kind.WRITE, "a"), Op(2, 5, Kind.WRITE, "b")]
    assert linearizable([*write, Op(3, 4, Kind.READ, "a")])
    assert linearizable([*write, Op(3, 4, Kind.READ, "b")])
    assert not linearizable([*write, Op(6, 7, Kind.READ, "a")])
    assert not linearizable([*write, Op(3, 4, Kind.READ, "b"), Op(4.5, 4.6, Kind.READ, "a")])


def test_write_with_unknown_outcome_takes_effect_at_most_once_at_any_time():
    unknown = Op(0, OPEN, Kind.WRITE, "x")
    settled = [unknown, Op(1, 2, Kind.WRITE, "y")]
    assert linearizable([*settled, Op(3, 4, Kind.READ, "y"), Op(5, 6, Kind.READ, "x")])
    assert linearizable([*settled, Op(3, 4, Kind.READ, "y")])
    twice = [
        *settled,
        Op(3, 4, Kind.READ, "x"),
        Op(5, 6, Kind.WRITE, "z"),
        Op(7, 8, Kind.READ, "x"),
    ]
    assert not linearizable(twice)


@pytest.mark.parametrize(
    ("kind", "present", "ok"),
    [
        (Kind.INSERT, True, True),
        (Kind.INSERT, False, False),
        (Kind.UPDATE, False, True),
        (Kind.DELETE, False, True),
        (Kind.DELETE, True, False),
    ],
)
def test_row_errors_must_fit_the_state(kind: Kind, present: bool, ok: bool):
    before = [Op(0, 1, Kind.WRITE, "a")] if present else []
    assert not linearizable([*before, Op(2, 3, kind, "b", ok)])
    assert linearizable([*before, Op(2, 3, kind, "b", not ok)])


def test_duplicated_insert_is_refused():
    again = [Op(0, 1, Kind.INSERT, "a"), Op(2, 3, Kind.INSERT, "a", True)]
    assert not linearizable(again)
