"""Requests that wait for prepared transactions, and whether new transactions have to let them go first.

Transactions that overlap without a pause would let ordinary writes, and reads of the latest rows, wait until
their deadline: they go on only in a moment in which nothing is prepared. Once one of them has waited for
`TURN_MS`, the leader prepares no further transaction until all that wait have had their turn. Nothing waits
for a PREPARE that was refused: the coordinator ends the attempt, which undoes its other tablets, and tries
again. So two tablets cannot wait for each other.
"""

from nyala.env.clock import Clock

TURN_MS = 100
"""Time for which a request waits until no further transaction is prepared before it, in milliseconds."""


class WaitingRequests:
    """Requests of one member that wait for prepared transactions. On the loop only.

    Args:
        clock: monotonic time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_us: dict[int, int] = {}  # by number, so in the order of the times
        self._last = 0

    def begin(self) -> int:
        """Note that a request waits; return its number for `end`."""
        self._last += 1
        self._began_us[self._last] = self._clock.monotonic_us()
        return self._last

    def end(self, number: int) -> None:
        """Note that a request waits no longer."""
        del self._began_us[number]

    @property
    def overdue(self) -> bool:
        """Return whether some request has waited for so long that no further transaction may be prepared."""
        for began_us in self._began_us.values():
            return self._clock.monotonic_us() - began_us >= TURN_MS * 1000
        return False
