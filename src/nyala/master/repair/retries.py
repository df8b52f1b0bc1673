"""Back-off of repair: a server whose replica of a tablet fails again and again gets the next one later.

A disk that damages each copy, or that has no room for it, otherwise takes copies without end. The first
attempt after a failure is immediate; each further one waits twice as long as the last. The times are those
of one leader in one term and are not replicated, since a change of leader costs a bounded number of copies:
the next leader starts with an immediate attempt, and needs `MAX_DOUBLINGS` more until its waits are longest.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from nyala.common.ids import OpId, ServerUuid
from nyala.master.catalog.records.tables import CatalogTablet

MAX_DOUBLINGS = 3
"""Maximum number of times that the wait is doubled."""
KEPT_WAITS = 4
"""Number of maximum waits after which a failure is forgotten."""


@dataclass(slots=True)
class _Failures:
    """Failures of one tablet's replicas on one server.

    Attributes:
        config: op id of the configuration in which the last one was removed.
        count: number of failures.
        add_us: time from which the server may get a replica.
        evict_us: time from which its replica may be replaced in place.
        forget_us: time at which this is forgotten.
    """

    config: OpId
    count: int
    add_us: int
    evict_us: int
    forget_us: int


class Retries:
    """Replicas that were removed because they failed. On the loop only.

    Args:
        wait_us: the first wait, in microseconds.
    """

    def __init__(self, wait_us: int) -> None:
        self._wait_us = wait_us
        self._failures: dict[Hashable, _Failures] = {}  # the last one is the newest

    def evicted(self, tablet: CatalogTablet, server: ServerUuid, now_us: int) -> None:
        """Record that a voter is removed so that its own server gets the new replica.

        Args:
            tablet: its tablet.
            server: its server.
            now_us: monotonic time, in microseconds.
        """
        self._note(tablet, server, now_us, copied=True)

    def copy_failed(self, tablet: CatalogTablet, server: ServerUuid, now_us: int) -> None:
        """Record that a member is removed because it got no data.

        Args:
            tablet: its tablet.
            server: its server.
            now_us: monotonic time, in microseconds.
        """
        self._note(tablet, server, now_us, copied=False)

    def may_add(self, tablet: CatalogTablet, server: ServerUuid, now_us: int) -> bool:
        """Return whether a server may get a replica of a tablet now.

        Args:
            tablet: that needs a replica.
            server: the target.
            now_us: monotonic time, in microseconds.
        """
        known = self._failures.get((tablet.id, server))
        return known is None or now_us >= known.add_us

    def may_evict(self, tablet: CatalogTablet, server: ServerUuid, now_us: int) -> bool:
        """Return whether a voter may be replaced in place now; an order that is repeated may be.

        Args:
            tablet: its tablet.
            server: its server.
            now_us: monotonic time, in microseconds.
        """
        known = self._failures.get((tablet.id, server))
        return known is None or known.config == tablet.config_id or now_us >= known.evict_us

    def _note(
        self, tablet: CatalogTablet, server: ServerUuid, now_us: int, *, copied: bool
    ) -> None:
        self._forget_old(now_us)
        known = self._failures.get((tablet.id, server))
        if known is not None and known.config == tablet.config_id:
            return  # the same order again
        count = 0 if known is None else known.count
        before_us = self._wait(count - 1) if count else 0
        add_us = now_us if copied else now_us + before_us
        evict_us = now_us + (self._wait(count) if copied else before_us)
        forget_us = now_us + KEPT_WAITS * self._wait(MAX_DOUBLINGS)
        self._failures.pop((tablet.id, server), None)
        self._failures[tablet.id, server] = _Failures(
            tablet.config_id, count + 1, add_us, evict_us, forget_us
        )

    def _forget_old(self, now_us: int) -> None:
        for key in list(self._failures):
            if self._failures[key].forget_us > now_us:
                return
            del self._failures[key]

    def _wait(self, doublings: int) -> int:
        return self._wait_us << min(doublings, MAX_DOUBLINGS)
