"""Read lease: the time for which a leader answers reads of the latest rows without a read round.

The core states which rounds a majority has confirmed, and what it promised (`raft/roles/reads.py`). The time
is measured here, by a clock that also advances while the machine is suspended. On the loop only.

Why it is safe: docs/decisions/0011-read-leases.md.
"""

from collections import deque

from nyala.env.clock import Clock
from nyala.raft.node import RaftNode
from nyala.raft.ready import ReadConfirmed
from nyala.raft.roles import reads

USED_US_PER_MS = 800
"""Microseconds of a lease for each millisecond that a majority has promised.

Clocks may run up to ten per cent too fast or too slow: 0.8 by the slowest clock of a leader is less true time
than 1 by the fastest clock of a follower.
"""


class ReadLease:
    """The read lease of one member.

    Args:
        clock: monotonic time.
        node: its Raft node.
        lease_ms: longest promise that is used, in milliseconds; 0: none.

    Attributes:
        renewal_due: at the last call of `holds`, half of the lease had passed and no round was under way.
    """

    def __init__(self, clock: Clock, node: RaftNode, lease_ms: int) -> None:
        self._clock = clock
        self._node = node
        self._lease_ms = lease_ms
        self._began: deque[tuple[int, int]] = deque()  # unconfirmed rounds: number and time
        self._round = 0  # the confirmed round that gave the lease
        self._until_us = 0
        self._renewed_from_us = 0
        self.renewal_due = False

    def join_round(self, hlc: int) -> int | None:
        """Join the next read round, as `RaftNode.read_index`; note when it began.

        The time is read before the round can be in any message.
        """
        if not self._lease_ms:
            return self._node.read_index(hlc)
        now_us = self._clock.monotonic_us()
        number = self._node.read_index(hlc)
        if number is not None and (not self._began or number > self._began[-1][0]):
            self._began.append((number, now_us))
        return number

    def confirmed(self, confirmed: ReadConfirmed) -> None:
        """Note that a majority has confirmed the rounds up to one, and extend the lease."""
        began, found = self._began, None
        while began and began[0][0] <= confirmed.round:
            found = began.popleft()
        if found is not None:
            self._round, began_us = found
            length_us = min(self._lease_ms, confirmed.promise_ms) * USED_US_PER_MS
            self._until_us = began_us + length_us
            self._renewed_from_us = began_us + length_us // 2

    def holds(self) -> bool:
        """Return whether this member leads, and no later leader can have been elected by now.

        The request that is answered has to be received before the call, since the process may have been
        stopped before it. A stop after the call is harmless: the answer is as of the time of the call.
        """
        if self._round == 0 or not reads.gives_lease(self._node.core, self._round):
            return False
        now_us = self._clock.monotonic_us()
        self.renewal_due = now_us >= self._renewed_from_us and not self._began
        return now_us < self._until_us

    def end(self) -> None:
        """Forget all rounds: leadership is lost."""
        self._began.clear()
        self._round = self._until_us = self._renewed_from_us = 0
