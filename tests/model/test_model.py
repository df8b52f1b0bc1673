"""Exhaustive exploration of the core within small bounds; planted mistakes are detected."""

import pytest

from nyala.raft import quorum
from nyala.raft.messages import RequestVote
from nyala.raft.progress import Leadership
from nyala.raft.roles import election, leader
from nyala.raft.state import RaftCore, RaftState
from tests.model.bounds import Bounds
from tests.model.explore import Explorer, Violation
from tests.model.run import FULL, REDUCED
from tests.selected import first


@pytest.mark.parametrize("name", first(FULL, 2))
def test_no_invariant_is_violated_in_any_reached_state(name: str):
    report = Explorer(FULL[name][0], REDUCED).run()
    print(report.text())
    assert report.complete or report.states >= REDUCED


def test_two_members_and_two_terms_are_explored_completely():
    report = Explorer(Bounds("two members", 2, 2, voters="12", stalls=False), 100_000).run()
    print(report.text())
    assert report.complete


@pytest.mark.full
def test_model_detects_commit_of_earlier_term_entry_by_counting(monkeypatch: pytest.MonkeyPatch):
    def by_counting(core: RaftCore, leadership: Leadership) -> None:
        held = [
            core.log.stable if v == core.uuid else leadership.peers[v].match for v in core.voters
        ]
        if quorum.reached(held) > core.log.committed:
            core.commit(quorum.reached(held))

    monkeypatch.setattr(leader, "advance_commit", by_counting)
    with pytest.raises(Violation, match="would be lost"):
        Explorer(FULL["figure 8"][0], 200_000).run()


def test_model_detects_second_vote_in_a_term(monkeypatch: pytest.MonkeyPatch):
    def would_vote(core: RaftCore, message: RequestVote) -> bool:
        free = core.state is RaftState.FOLLOWER and message.term >= core.term
        return free and election.up_to_date(core, message.last)

    monkeypatch.setattr(election, "_would_vote", would_vote)
    with pytest.raises(Violation, match="term 2"):
        Explorer(FULL["figure 8"][0], 200_000).run()


def test_model_detects_vote_forgotten_by_crash(monkeypatch: pytest.MonkeyPatch):
    def set_hard_state(core: RaftCore, hard: object) -> None:
        core.hard = hard  # type: ignore[assignment]

    monkeypatch.setattr(RaftCore, "set_hard_state", set_hard_state)
    with pytest.raises(Violation, match="term"):
        Explorer(FULL["slow disks, one crash"][0], 100_000).run()
