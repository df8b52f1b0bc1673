"""Look-ups at the masters that concurrent callers share: one is asked ten times a second at most.

When a server fails, all its callers ask the same at once: where are the replicas of the table?
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from nyala.client.cluster.masters import Masters
from nyala.client.deadline import is_cut_short
from nyala.common.errors import NyalaError, TimedOut
from nyala.wire.proto import nyala_pb2 as pb

SHARED_US = 100_000
"""Age up to which an answer serves further callers, in microseconds, from when it was asked for."""


@dataclass(slots=True)
class _Last:
    """Last look-up of one request.

    Attributes:
        asked_us: when it began; monotonic.
        answer: its answer or error; each caller raises an error of its own.
        users: callers that use it or wait for it.
    """

    asked_us: int
    answer: pb.TabletLocationsResponse | NyalaError | None = None
    users: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedLookups:
    """Look-ups of one client. Runs on the client's loop.

    Args:
        masters: have the time.
        ask: asks the masters, with a timeout in milliseconds.
    """

    def __init__(
        self,
        masters: Masters,
        ask: Callable[[pb.TabletLocationsRequest, int], Awaitable[pb.TabletLocationsResponse]],
    ) -> None:
        self._masters, self._ask = masters, ask
        self._last: dict[bytes, _Last] = {}

    def __len__(self) -> int:
        return len(self._last)

    async def ask(
        self, request: pb.TabletLocationsRequest, timeout_ms: int
    ) -> tuple[pb.TabletLocationsResponse, int]:
        """Return an answer that is at most 100 ms old, and when it was asked for (monotonic, microseconds).

        Of the calls for one request at one time, one asks. The answer is shared: do not change it.

        Args:
            request: names the table, and may name tablets.
            timeout_ms: deadline, from now.

        Raises:
            TimedOut: no master answered in time.
            NyalaError: of the look-up, which may be another caller's.
        """
        since_us, last = self._masters.now_us(), self._entry(request)
        last.users += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await last.asking.acquire()
        except TimeoutError:
            raise TimedOut(
                f"no master answered within {timeout_ms} ms where the replicas of table "
                f"{request.table_id} are; check: nyala cluster ksck"
            ) from None
        finally:
            last.users -= 1
        try:
            if last.answer is None or last.asked_us < since_us - SHARED_US:
                left_ms = timeout_ms - (self._masters.now_us() - since_us) // 1000
                await self._renew(last, request, max(1, left_ms))
            if isinstance(last.answer, NyalaError):
                raise last.answer.another()
            assert last.answer is not None, "asked and unanswered"
            return last.answer, last.asked_us
        finally:
            last.asking.release()

    async def _renew(
        self, last: _Last, request: pb.TabletLocationsRequest, timeout_ms: int
    ) -> None:
        asked_us = self._masters.now_us()
        try:
            answer: pb.TabletLocationsResponse | NyalaError = await self._ask(request, timeout_ms)
        except NyalaError as err:
            if is_cut_short(err, timeout_ms):  # others have more time
                raise
            answer = err.with_traceback(None)  # it is kept, and what raised it is not
        last.asked_us, last.answer = asked_us, answer

    def _entry(self, request: pb.TabletLocationsRequest) -> _Last:
        key = request.SerializeToString(deterministic=True)
        found = self._last.get(key)
        if found is None:
            oldest_us = self._masters.now_us() - SHARED_US
            self._last = {
                k: o
                for k, o in self._last.items()
                if o.users or o.asking.locked() or o.asked_us >= oldest_us
            }
            found = self._last[key] = _Last(self._masters.now_us())
        return found
