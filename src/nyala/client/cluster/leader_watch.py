"""Watch of the tries of one operation: one that its server does not answer ends when another replica leads.

A server that is stopped or cut off answers nothing and refuses no connection, so a try there would wait for
its whole timeout, although the tablet has had another leader for most of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from nyala.client.cluster.tablet_cache import TabletLocation
from nyala.common.errors import OutcomeUnknown, Rejected, Retryable
from nyala.env.env import Env

T = TypeVar("T")
SILENT_MS = 500
"""Time without an answer after which the masters are asked who leads, in milliseconds.

An election takes half a second to a second.
"""
AGAIN_MS = 200
"""Pause before they are asked again, in milliseconds."""


class LedElsewhere(OutcomeUnknown):
    """A try was given up, since another replica leads the tablet; it may have taken effect."""


class LeaderWatch:
    """Watch of one operation. Runs on the client's loop.

    Args:
        env: tasks.
        tablet: tablet of the operation; `look_again` updates it in place.
        look_again: asks the masters who leads the tablet.
    """

    def __init__(
        self, env: Env, tablet: TabletLocation, look_again: Callable[[], Awaitable[None]]
    ) -> None:
        self._env = env
        self._tablet = tablet
        self._look_again = look_again

    async def answer(self, address: str, sent: Awaitable[T]) -> T:
        """Return the answer to a try.

        Args:
            address: server of the try.
            sent: the try; it is cancelled when another replica leads.

        Raises:
            LedElsewhere: the server was silent, and the masters name another leader.
            NyalaError: of the try.
        """
        looking: list[asyncio.Task[object]] = []

        def look() -> None:
            looking.append(self._env.tasks.spawn(self._look(address, limit), f"watch {address}"))

        try:
            async with asyncio.timeout(None) as limit:
                timer = asyncio.get_running_loop().call_later(SILENT_MS / 1000, look)
                try:
                    return await sent
                finally:
                    timer.cancel()
                    for task in looking:
                        task.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            raise LedElsewhere(
                f"{address} did not answer, and {self._tablet.leader} leads the tablet by now"
            ) from None

    async def _look(self, address: str, limit: asyncio.Timeout) -> None:
        """End the try once another replica leads."""
        while True:
            with suppress(Retryable, Rejected):  # a try learns what became of the tablet
                await self._look_again()
            if self._tablet.leader not in (None, address):
                limit.reschedule(asyncio.get_running_loop().time())
                return
            await self._env.tasks.sleep_ms(AGAIN_MS)
