"""Deadlines of calls whose rows share requests. Used on the client's loop only."""

import asyncio

from nyala.client.caller import closed_meanwhile
from nyala.client.write.pending_call import Call
from nyala.common.errors import OutcomeUnknown, TimedOut
from nyala.env.clock import Clock

GRACE_US = 100_000
"""Delay of the timer after a deadline, in microseconds: the request itself may end with a more exact error.
"""


class CallDeadlines:
    """Pending calls, and one timer for the earliest deadline.

    Args:
        clock: monotonic time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: dict[Call, None] = {}  # in order of arrival
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_us = 0

    def add(self, call: Call) -> None:
        """Fail this call when its deadline passes."""
        self._calls[call] = None
        if self._alarm is None or call.deadline_us < self._alarm_us:
            self._set_alarm(call.deadline_us)

    def drop(self, call: Call) -> None:
        """Remove a call that is complete, or that handles its own deadline."""
        self._calls.pop(call, None)

    def close(self) -> None:
        """Fail all pending calls: the client is closed."""
        for call in list(self._calls):
            call.failed(closed_meanwhile(sent=call.sent))
        self._calls.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    def _set_alarm(self, deadline_us: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        left_us = max(0, deadline_us + GRACE_US - self._clock.monotonic_us())
        self._alarm = asyncio.get_running_loop().call_later(left_us / 1e6, self._expire)
        self._alarm_us = deadline_us

    def _expire(self) -> None:
        """Fail the calls whose deadline has passed; their requests continue for other calls."""
        self._alarm = None
        past_us = self._clock.monotonic_us() - GRACE_US
        for call in [c for c in self._calls if c.deadline_us <= past_us]:
            del self._calls[call]
            call.failed(_deadline_error(call))
        if self._calls:
            self._set_alarm(min(c.deadline_us for c in self._calls))


def _deadline_error(call: Call) -> OutcomeUnknown | TimedOut:
    name = call.table.name
    if call.sent:
        return OutcomeUnknown(
            f"no leader answered a write to table {name!r} in time. The rows sent may or may not have "
            "taken effect; read them back, or upsert them again"
        )
    return TimedOut(
        f"a write to table {name!r} waited behind others until its time was up. Its rows had no "
        "effect; check: nyala cluster ksck"
    )
