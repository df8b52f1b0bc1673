"""Durability of votes and acknowledgements: each message is compared with its sender's disk when it is sent.

A server votes once per term, across restarts, and the vote is durable before it is sent; an acknowledgement
covers durable entries only; a FAILED replica sends nothing more.
"""

from collections import Counter

from nyala.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    RequestVote,
    VoteReply,
)
from nyala.raft.node import RaftNode
from tests.sim.checkers.durable import Kept


class SentMessages:
    """Checks the messages of one group.

    Args:
        name: of the group, for messages.

    Attributes:
        acknowledged: by sender, the last term in which it acknowledged entries, and the highest index.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self._votes: dict[tuple[int, str], str] = {}
        self.checks: Counter[str] = Counter()

    def message_sent(
        self, name: str, message: AnyMessage, node: RaftNode | None, kept: Kept
    ) -> None:
        """Check a message that is being sent.

        Args:
            name: name of the sender.
            message: the message.
            node: its core; None if its replica does not run.
            kept: durable state of its disk.

        Raises:
            AssertionError: with the values.
        """
        if isinstance(message, VoteReply):
            if message.granted and not message.pre:
                self._vote(name, message.term, message.to, kept)
                self.checks["tombstones' votes"] += node is None
        elif isinstance(message, RequestVote):
            if not message.pre:
                self._vote(name, message.term, message.sender, kept)
        elif isinstance(message, AppendReply):
            if message.success and message.match and node is not None:
                self._acknowledged(name, message, node, kept)
        elif isinstance(message, AppendEntries) and node is not None:
            assert node.term >= message.term, f"{self._name}: {name} in {node.term} sends {message}"

    def _vote(self, name: str, term: int, candidate: str, kept: Kept) -> None:
        self.checks["votes"] += 1
        before = self._votes.setdefault((term, name), candidate)
        assert before == candidate, (
            f"{self._name}: {name} voted for {before} and for {candidate} in term {term}"
        )
        passed = (
            kept.term > term and term not in kept.votes
        )  # written with a later term: no second vote
        assert passed or kept.votes.get(term) == candidate, (
            f"{self._name}: {name} sends its vote for {candidate} in term {term}; durable on its disk is "
            f"term {kept.term}, vote {kept.votes.get(term, 'none')}"
        )

    def _acknowledged(self, name: str, message: AppendReply, node: RaftNode, kept: Kept) -> None:
        last = message.term, message.match
        self.acknowledged[name] = max(self.acknowledged.get(name, last), last)
        log = node.core.log
        if node.term != message.term or message.match <= log.base.index:
            return  # acknowledged in an earlier term: the log may have changed since
        self.checks["acknowledgements"] += 1
        op = log.op_id(message.match)
        assert kept.holds(op), (
            f"{self._name}: {name} acknowledges up to {op}; its disk holds "
            f"{kept.terms.get(op.index, 'no entry')}.{op.index} there, the last is {kept.last}"
        )
