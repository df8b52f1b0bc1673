"""Back-off of deletions that are ordered again and again, because the server refuses them or is slow.

The first repetition is immediate; each further one waits twice as long as the last. Other orders do not wait:
writes or repair depend on them, and an order to copy returns its progress.
"""

from dataclasses import dataclass

from nyala.common.ids import ServerUuid
from nyala.master.catalog.actions import Action, CancelCopyAction, DeleteTabletAction

MAX_DOUBLINGS = 5
"""Maximum number of times that the wait is doubled."""
KEPT_WAITS = 4
"""Number of maximum waits after which an order that was not repeated is forgotten."""


@dataclass(slots=True)
class _Sent:
    """Number of times that an order was sent, when it may be sent again, and when this is forgotten."""

    count: int
    again_us: int
    forget_us: int


class Repeats:
    """Deletions that were sent lately. On the loop only.

    Args:
        wait_us: the first wait, in microseconds.
    """

    def __init__(self, wait_us: int) -> None:
        self._wait_us = wait_us
        self._sent: dict[Action, _Sent] = {}  # the last one is the newest

    def may_send(self, action: Action, now_us: int) -> bool:
        """Return whether an order may be sent now.

        Args:
            action: the order.
            now_us: monotonic time, in microseconds.
        """
        known = self._sent.get(action)
        return known is None or now_us >= known.again_us

    def ended(self, action: Action, now_us: int) -> None:
        """Record that an order was answered, or that it failed.

        Args:
            action: the order.
            now_us: monotonic time, in microseconds.
        """
        if not isinstance(action, DeleteTabletAction | CancelCopyAction):
            return
        self._forget_old(now_us)
        known = self._sent.pop(action, None)
        count = 0 if known is None else known.count
        wait_us = self._wait_us << min(count - 1, MAX_DOUBLINGS) if count else 0
        forget_us = now_us + KEPT_WAITS * (self._wait_us << MAX_DOUBLINGS)
        self._sent[action] = _Sent(count + 1, now_us + wait_us, forget_us)

    def restarted(self, server: ServerUuid) -> None:
        """Forget the orders to a server, which may answer otherwise now."""
        for action in [a for a in self._sent if a.server == server]:
            del self._sent[action]

    def _forget_old(self, now_us: int) -> None:
        for action in list(self._sent):
            if self._sent[action].forget_us > now_us:
                return
            del self._sent[action]
