"""Rule for sent votes: the vote is durable, or a later term is."""

import pytest

from nyala.common.ids import ServerUuid
from nyala.raft.messages import VoteReply
from tests.sim.checkers.durable import Kept
from tests.sim.checkers.sent_messages import SentMessages

VOTER, ONE, OTHER = (ServerUuid(f"{n:032x}") for n in range(3))
VOTE = VoteReply(sender=VOTER, to=ONE, term=13, hlc=1, granted=True, pre=False)


def send_vote(*durable: tuple[int, str]) -> None:
    kept = Kept()
    for term, vote in durable:
        kept.hard_state(term, vote)
    SentMessages("a group").message_sent("core-0", VOTE, None, kept)


def test_vote_is_sent_when_it_or_a_later_term_is_durable():
    """Votes of two terms in one iteration are one record of the later term; the first is not repeated."""
    send_vote((13, ONE))
    send_vote((15, OTHER))


def test_vote_missing_or_different_on_disk_is_detected_when_sent():
    for durable in ([], [(12, ONE)], [(13, "")], [(13, OTHER)], [(13, OTHER), (15, ONE)]):
        with pytest.raises(AssertionError, match="sends its vote"):
            send_vote(*durable)
