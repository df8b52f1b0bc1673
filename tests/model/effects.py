"""Messages that can never have an effect again; states that differ only in them are equal.

Each rule is exact: it holds for any continuation, crashes included. Terms that are on disk never decrease,
no member campaigns or leads twice in one term, and none campaigns beyond the top term of an exploration.
"""

from nyala.raft.messages import AnyMessage, AppendEntries, AppendReply, RequestVote, VoteReply
from nyala.raft.state import RaftState
from tests.model.member import Member


def without_effect(message: AnyMessage, to: Member, sender: Member, top_term: int) -> bool:
    """Return whether delivering a message causes only messages that exist already, now and later."""
    if isinstance(message, AppendReply | VoteReply):
        return _answer_is_late(message, to)
    if not _in_top_term(to, top_term) or not _in_top_term(sender, top_term):
        return False
    if isinstance(message, RequestVote):
        voted = to.hard.vote is not None and to.hard == to.node.core.hard
        return voted and not message.pre and sender.node.core.state is not RaftState.CANDIDATE
    if isinstance(message, AppendEntries) and message.term < top_term:
        return _never_leads(sender)  # a refusal, in a term that the sender is in and will not lead
    return False


def _answer_is_late(message: AppendReply | VoteReply, to: Member) -> bool:
    """Return whether an answer belongs to a past term or role of its receiver, and thus has no effect."""
    core = to.node.core
    if isinstance(message, VoteReply) and message.pre:
        return message.granted and message.term <= to.hard.term
    if message.term != core.term:
        return message.term < to.hard.term
    if isinstance(message, VoteReply):
        return (
            core.state is RaftState.LEADER or core.hard.vote != core.uuid or core.leader is not None
        )
    return core.leadership is None  # a leader's message cannot be answered before it leads


def _in_top_term(one: Member, top_term: int) -> bool:
    return one.hard.term == top_term == one.node.core.term


def _never_leads(one: Member) -> bool:
    return one.node.core.state is RaftState.FOLLOWER and one.hard == one.node.core.hard
