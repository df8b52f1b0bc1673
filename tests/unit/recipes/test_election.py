"""Election: an establishing step with unknown outcome is settled by the nonce in the key."""

import pytest

from nyala.recipes.election import Election, Establish, HeldLeadership, Look, Phase, Standing, Wait

SEEN, LED = Standing(5, 0, b""), Standing(9, 4, b"other")


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


def test_leadership_counts_from_the_first_of_two_steps_of_which_one_took_effect():
    election = Election(b"n", 3_000_000, 4_000_000, lambda low, high: low)
    election.phase, election.leadership = Phase.LEADING, HeldLeadership(5, 4, 0)
    election.unsettled(10)
    election.unsettled(900_000)
    assert election.failed(key=False, actual=9)
    assert election.leadership.sent_us == 10


@pytest.mark.row("S3.62")
@pytest.mark.parametrize("change", ["noticed", "found by the second read", "refused"])
def test_candidate_notes_the_last_id_waits_and_backs_off_for_longer_than_the_timeout(change):
    drawn: list[tuple[int, int]] = []

    def draw(low: int, high: int) -> int:
        drawn.append((low, high))
        return low

    election = Election(b"mine", 300, 400, draw)
    assert election.next(0) == Look()
    election.looked(10, LED)
    assert election.next(10) == Wait(310), "the timeout, from the time of the answer"
    now = since = 100
    if change == "noticed":
        election.log_changed(now)
    else:
        now = 310
        since = 10 if change == "found by the second read" else now  # perhaps right after the first
        assert election.next(now) == Look(), "again, before it tries"
        election.looked(now, Standing(11, 4, b"other") if change != "refused" else LED)
    if change == "refused":
        assert election.next(now) == Establish(LED), "on the condition of what it noted"
        election.refused(now)
    assert drawn == [(301, 400)]
    over = since + 301
    assert election.next(now) == Wait(over)
    assert election.next(over) == Look()
    election.looked(over, LED)
    assert election.next(over) == Wait(over + 300), "from the beginning"
