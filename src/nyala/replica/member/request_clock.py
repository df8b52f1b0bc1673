"""The hybrid clock as requests use it: waiting for a time, and stamps, with errors for clients.

On the loop only.
"""

from nyala.common.errors import TimedOut, Unavailable
from nyala.env.server_clock import duration
from nyala.replica.context import ReplicaContext

POLL_MS = 50
"""Interval at which a request that waits for a time reads the clock, which others may advance."""


class RequestClock:
    """The hybrid clock of the process, for requests to one member.

    Args:
        context: the process.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context

    async def wait_until(self, time: int, deadline_us: int) -> None:
        """Wait until this server's clock has reached a time that a client named; the clock is not advanced.

        Args:
            time: hybrid time.
            deadline_us: monotonic time at which the request ends.

        Raises:
            TimedOut: the clock does not reach it before the deadline; nothing was done.
        """
        clock, env = self._context.clock, self._context.env
        while time > clock.peek() and (ahead_us := clock.ahead_us(time)) > 0:
            if env.clock.monotonic_us() + ahead_us > deadline_us:
                raise TimedOut(
                    f"the time {time} lies {duration(ahead_us)} in the future of this server, and the "
                    "deadline is earlier; nothing was done. Give an earlier time, or a later deadline"
                )
            await env.tasks.sleep_ms(min(-(-ahead_us // 1000), POLL_MS))

    async def advance_past(self, stamp: int) -> None:
        """Advance the clock past a stamp, after a sync if the clock's saved ceiling is below it.

        Raises:
            Unavailable: the ceiling cannot be made durable; nothing was proposed or promised.
        """
        try:
            await self._context.clock.advance_past(stamp)
        except OSError as err:
            raise Unavailable(
                f"the hybrid clock's ceiling cannot be made durable: {err}; make room on the disk"
            ) from err

    def next_stamp(self, above: int) -> int:
        """Return a new stamp, above `above` and every stamp given out before.

        Raises:
            Unavailable: the clock's ceiling is not durable so far up; `advance_past` waits for it.
        """
        self.merge(above)
        return self._context.clock.now()

    def merge(self, stamp: int) -> None:
        """Advance the clock past a stamp. Raises as `next_stamp`."""
        if not self._context.clock.merge(stamp):
            raise Unavailable(
                f"the hybrid clock cannot pass {stamp} before its ceiling is durable there; ask again"
            )
