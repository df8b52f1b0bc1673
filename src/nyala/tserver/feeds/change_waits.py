"""Waits of followers of change feeds until one of some tablets has applied something new.

The answer is a hint when to read: it needs no leader, and a wrong one costs a read or a delay.
"""

from nyala.common.errors import InvalidArgument, Throttled
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.security.identity import user_name
from nyala.security.limits.shares import Shares
from nyala.tserver.tablets import HostedTablet, Tablets
from nyala.wire import methods
from nyala.wire.proto import reads_pb2 as pb

CHECK_MS = 25
"""Interval at which the tablets of a wait are checked, in milliseconds."""
MAX_WAIT_MS = 60_000
"""Longest wait, in milliseconds."""
MAX_WAITS = 1_000
"""Maximum number of waits at a time."""
MAX_TABLETS = 10_000
"""Maximum number of tablets of one wait."""


class ChangeWaits:
    """Handler of `TabletReads.AwaitChanges`. Used on the event loop only.

    Args:
        env: clock, sleep.
        tablets: tablets of this server.
        shares: of each user in the waits.
    """

    def __init__(self, env: Env, tablets: Tablets, shares: Shares) -> None:
        self._shares = shares
        self._env = env
        self._tablets = tablets
        self._waits = 0

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {methods.AWAIT_CHANGES: self.wait}

    async def wait(self, request: pb.AwaitChangesRequest) -> pb.AwaitChangesResponse:
        """Return once a tablet has applied an entry stamped above `after`, or after `wait_ms`.

        What lies above the prepare time of a transaction does not count until it is resolved: no read there
        is answered before.

        Raises:
            InvalidArgument: too many tablets, none, or too long a wait.
            Throttled: too many waits are under way, or too many of the user.
            Unavailable: one of the tablets does not run here.
        """
        if not 0 < len(request.tablet_ids) <= MAX_TABLETS or request.wait_ms > MAX_WAIT_MS:
            raise InvalidArgument(
                f"a wait of {request.wait_ms} ms for changes of {len(request.tablet_ids)} tablets: it has 1 "
                f"to {MAX_TABLETS} tablets and lasts at most {MAX_WAIT_MS} ms; wait again after each answer"
            )
        if self._waits >= MAX_WAITS:
            raise Throttled(
                f"{MAX_WAITS} waits for changes are under way on this server, which is the limit; retry",
                {"retry_after_ms": "1000"},
            )
        self._waits += 1
        try:
            with self._shares.hold(user_name()):
                return pb.AwaitChangesResponse(changed=await self._changed(request))
        finally:
            self._waits -= 1

    async def _changed(self, request: pb.AwaitChangesRequest) -> bool:
        clock, tablets = self._env.clock, dict.fromkeys(request.tablet_ids)
        end_us = clock.monotonic_us() + request.wait_ms * 1000
        while True:
            found = [_applied(self._tablets.get(t)) for t in tablets]
            if max(found) > request.after:
                return True
            left_ms = (end_us - clock.monotonic_us()) // 1000
            if left_ms <= 0:
                return False
            await self._env.tasks.sleep_ms(min(CHECK_MS, left_ms))


def _applied(hosted: HostedTablet) -> int:
    """Return the stamp of the last entry applied, as far as it can be read."""
    return min(hosted.tablet.last_stamp, hosted.replica.transactions.readable)
