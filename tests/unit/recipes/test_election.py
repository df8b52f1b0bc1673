"""Election: an establishing step with unknown outcome is settled by the nonce in the key."""

from nyala.recipes.election import Election, Establish, Look, Phase, Standing

SEEN = Standing(5, 0, b"")


def settling() -> Election:
    """Return a candidate whose establishing step, sent at time 0, was not answered."""
    election = Election(b"mine", 300, 400, lambda low, high: high)
    election.looked(0, SEEN)
    assert election.next(0) == Establish(SEEN)
    election.unanswered(0)
    assert election.next(10) == Look()
    return election


def test_established_step_without_answer_is_recognised_by_its_nonce():
    election = settling()
    election.looked(10, Standing(6, 7, b"mine"))
    assert election.leadership is not None
    assert (election.leadership.epoch, election.leadership.sent_us) == (6, 0)
    assert election.acts(224)
    assert not election.acts(225)


def test_step_of_another_candidate_or_an_older_one_is_not_taken_for_it():
    for standing, phase in (
        (Standing(6, 7, b"other"), Phase.BACK_OFF),
        (SEEN, Phase.ESTABLISHING),
    ):
        election = settling()
        election.looked(10, standing)
        assert election.phase is phase
    late = settling()
    late.looked(225, Standing(6, 7, b"mine"))
    assert late.phase is Phase.BACK_OFF
