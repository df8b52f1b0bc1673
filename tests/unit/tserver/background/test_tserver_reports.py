"""Tablets to be reported to a master: dirty until acknowledged, under loss of requests and answers."""

import random

import pytest

from nyala.common.ids import TabletId
from nyala.tserver import reports
from nyala.tserver.reports import ChangeLog, MasterView

A, B, C = (TabletId(t) for t in "abc")


def acknowledge(view, *, leader=True, needs_full=False):
    view.on_response(leader=leader, needs_full=needs_full, acknowledged_sequence=view.sequence)


def test_first_report_is_full_and_later_ones_incremental():
    changes, view = ChangeLog(), MasterView()
    changes.note(A)
    assert view.begin(changes) == (True, [])
    acknowledge(view)
    assert view.begin(changes) == (False, [])
    acknowledge(view)
    changes.note(C)
    changes.note(B)
    assert view.begin(changes) == (False, [B, C])
    acknowledge(view)
    assert view.begin(changes) == (False, [])


def test_changes_during_a_report_are_in_the_next_report():
    changes, view = ChangeLog(), MasterView()
    view.begin(changes)
    changes.note(A)
    acknowledge(view)
    assert view.begin(changes) == (False, [A])
    changes.note(A)
    acknowledge(view)
    assert view.begin(changes) == (False, [A])


def test_lost_or_late_answer_acknowledges_nothing():
    changes, view = ChangeLog(), MasterView()
    view.begin(changes)
    acknowledge(view)
    changes.note(A)
    view.begin(changes)  # its answer is lost
    late = view.sequence
    assert view.begin(changes) == (False, [A])
    view.on_response(leader=True, needs_full=False, acknowledged_sequence=late)
    assert view.begin(changes) == (False, [A])


def test_new_leader_gets_one_full_report():
    changes, view = ChangeLog(), MasterView()
    view.begin(changes)
    acknowledge(view, leader=False)
    assert view.begin(changes) == (False, [])
    acknowledge(view, leader=True)  # it has become the leader
    assert view.begin(changes) == (True, [])
    acknowledge(view, leader=True)
    assert view.begin(changes) == (False, [])
    acknowledge(view, leader=False)
    assert view.begin(changes) == (False, [])


def test_master_gets_full_report_on_each_request():
    changes, view = ChangeLog(), MasterView()
    for _ in range(3):
        assert view.begin(changes)[0]
        acknowledge(view, needs_full=True)
    assert view.begin(changes)[0]
    acknowledge(view)
    assert not view.begin(changes)[0]


@pytest.mark.parametrize("seed", range(30))
def test_master_converges_to_tablet_server_state(seed):
    """Changes, lost requests, lost answers and masters that lose state, in random order; then no faults."""
    rng = random.Random(seed)
    changes, view = ChangeLog(), MasterView()
    truth: dict[TabletId, int] = {}
    known: dict[TabletId, int] = {}
    lost_state = False
    for step in range(200):
        quiet = step > 190
        if not quiet and rng.random() < 0.5:
            tablet = rng.choice([A, B, C])
            truth[tablet] = step
            changes.note(tablet)
        if not quiet and rng.random() < 0.05:
            known, lost_state = {}, True
        full, changed = view.begin(changes)
        if not quiet and rng.random() < 0.3:
            continue  # the request is lost
        if full:
            known, lost_state = dict(truth), False
        elif not lost_state:
            known |= {t: truth[t] for t in changed}
        if not quiet and rng.random() < 0.3:
            continue  # the answer is lost
        view.on_response(
            leader=True,
            needs_full=lost_state,
            acknowledged_sequence=0 if lost_state else view.sequence,
        )
    assert known == truth


def test_master_missing_a_forgotten_change_gets_full_report(monkeypatch):
    monkeypatch.setattr(reports, "CHANGES", 2)
    changes, far, near = ChangeLog(), MasterView(), MasterView()
    for view in (far, near):
        view.begin(changes)
        acknowledge(view)
    changes.note(A)
    assert near.begin(changes) == (False, [A])
    acknowledge(near)
    changes.note(B)
    changes.note(A)
    assert far.begin(changes) == (False, [A, B]), "the two newest changes are kept"
    changes.note(C)
    assert near.begin(changes) == (True, []), "the first master lacks a dropped change"
    acknowledge(near)
    assert near.begin(changes) == (False, [])
    changes.note(B)
    assert near.begin(changes) == (False, [B])
