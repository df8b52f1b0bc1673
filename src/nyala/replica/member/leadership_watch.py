"""Changes of a Raft node's leadership since the last check: elected, deposed, accepting, another leader."""

import asyncio
from dataclasses import dataclass

from nyala.raft.node import RaftNode


@dataclass(frozen=True, slots=True)
class LeadershipChange:
    """Changes since the last check."""

    changed: bool = False
    elected: bool = False
    deposed: bool = False


_SAME = LeadershipChange()


class LeadershipWatch:
    """Detector of leadership changes of one Raft node. On the loop only.

    Attributes:
        accepting: it leads and has applied an entry of its own term (`raft.status.Status.accepting`).
    """

    def __init__(self, node: RaftNode) -> None:
        self.accepting = False
        self._node = node
        self._leads = node.is_leader
        self._term = node.term
        self._leader = node.leader
        self._waiters: list[asyncio.Future[None]] = []

    def update(self) -> LeadershipChange:
        """Return the changes since the last call."""
        node = self._node
        leads, term, leader = node.is_leader, node.term, node.leader
        if leads == self._leads and term == self._term and leader == self._leader:
            if not leads or self.accepting or not node.status().accepting:
                return _SAME
            self.accepting = True
            self.wake()
            return LeadershipChange(changed=True)
        deposed = self._leads and (not leads or term != self._term)
        elected = leads and (not self._leads or term != self._term)
        self._leads, self._term, self._leader = leads, term, leader
        self.accepting = leads and node.status().accepting
        self.wake()
        return LeadershipChange(True, elected, deposed)

    async def next_change(self) -> None:
        """Wait for the next change, or the next tick, so that callers can check their deadlines."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    @property
    def watched(self) -> bool:
        """True if someone waits for a change or a tick."""
        return bool(self._waiters)

    def tick(self) -> None:
        """Wake all waiters, so that they check their deadlines."""
        if self._waiters:
            self.wake()

    def close(self) -> None:
        """Wake all waiters: the member ends."""
        self.wake()

    def wake(self) -> None:
        """Wake all waiters: what they wait for may have come."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
