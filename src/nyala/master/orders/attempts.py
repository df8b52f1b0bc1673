"""Attempts of the orders that have not been carried out: since when, how often, the last error.

A repeated error is to be logged once. On the loop only.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nyala.common.errors import NyalaError
from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog.actions import Action

MAX_ATTEMPTED = 1024
"""Maximum number of orders whose attempts are remembered."""


@dataclass(slots=True)
class Attempted:
    """One order that was sent and is not known to be carried out.

    Attributes:
        since_us: when it was sent for the first time; monotonic.
        count: how often it was sent.
        under_way: it was sent and is not answered.
        error: the last error; None: there was none.
    """

    since_us: int
    count: int = 0
    under_way: bool = False
    error: NyalaError | None = None


class UnansweredOrders:
    """The orders of one leader in one term that are unanswered, or that failed."""

    def __init__(self) -> None:
        self._orders: dict[Action, Attempted] = {}
        self._of_tablet: dict[TabletId, dict[Action, None]] = {}

    def begun(self, action: Action, now_us: int) -> None:
        """Record that an order is sent.

        Args:
            action: the order.
            now_us: monotonic time, in microseconds.
        """
        known = self._orders.get(action)
        if known is None:
            if len(self._orders) >= MAX_ATTEMPTED:
                self.ended(next(iter(self._orders)))
            known = self._orders[action] = Attempted(now_us)
            self._of_tablet.setdefault(action.tablet, {})[action] = None
        known.under_way = True
        known.count += 1

    def failed(self, action: Action, error: NyalaError) -> bool:
        """Record an error, and return whether it is another one than the last time."""
        known = self._orders.get(action)
        if known is None:
            return True
        before, known.error, known.under_way = known.error, error, False
        return before is None or before.code != error.code

    def ended(self, action: Action) -> None:
        """Forget an order that was answered."""
        if self._orders.pop(action, None) is not None:
            of_tablet = self._of_tablet[action.tablet]
            del of_tablet[action]
            if not of_tablet:
                del self._of_tablet[action.tablet]

    def of(
        self, tablet: TabletId, server: ServerUuid | None = None
    ) -> Iterator[tuple[Action, Attempted]]:
        """Return the orders for a tablet.

        Args:
            tablet: id of the tablet.
            server: only those to this server; None: to all.
        """
        for action in self._of_tablet.get(tablet, {}):
            if server is None or action.server == server:
                yield action, self._orders[action]
