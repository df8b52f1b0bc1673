"""The core in a small world, every order of everything; and the check finds what it must find."""

import pytest

from nyala.raft import election, leader, quorum
from nyala.raft.messages import RequestVote
from nyala.raft.progress import Leadership
from nyala.raft.state import RaftCore, RaftState
from tests.model.bounds import Bounds
from tests.model.explore import Explorer, Violation
from tests.model.run import FULL, REDUCED


@pytest.mark.parametrize("name", FULL)
def test_no_rule_is_broken_in_any_state_that_is_reached(name: str):
    report = Explorer(FULL[name][0], REDUCED).run()
    print(report.text())
    assert report.complete or report.states >= REDUCED


def test_two_members_and_two_terms_are_explored_whole():
    report = Explorer(Bounds("two members", 2, 2, voters="12", stalls=False), 100_000).run()
    print(report.text())
    assert report.complete


def test_it_finds_an_entry_of_an_old_term_committed_by_counting(monkeypatch: pytest.MonkeyPatch):
    def by_counting(core: RaftCore, leadership: Leadership) -> None:
        held = [
            core.log.stable if v == core.uuid else leadership.peers[v].match for v in core.voters
        ]
        if quorum.reached(held) > core.log.committed:
            core.commit(quorum.reached(held))

    monkeypatch.setattr(leader, "advance_commit", by_counting)
    with pytest.raises(Violation, match="would be lost"):
        Explorer(FULL["figure 8"][0], 200_000).run()


def test_it_finds_a_second_vote_in_a_term(monkeypatch: pytest.MonkeyPatch):
    def would_vote(core: RaftCore, message: RequestVote) -> bool:
        free = core.state is RaftState.FOLLOWER and message.term >= core.term
        return free and election.up_to_date(core, message.last)

    monkeypatch.setattr(election, "_would_vote", would_vote)
    with pytest.raises(Violation, match="term 2"):
        Explorer(FULL["figure 8"][0], 200_000).run()


def test_it_finds_a_vote_that_a_crash_forgets(monkeypatch: pytest.MonkeyPatch):
    def set_hard_state(core: RaftCore, hard: object) -> None:
        core.hard = hard  # type: ignore[assignment]

    monkeypatch.setattr(RaftCore, "set_hard_state", set_hard_state)
    with pytest.raises(Violation, match="term"):
        Explorer(FULL["slow disks, one crash"][0], 100_000).run()
