"""Watch of a silent server: a try that it does not answer ends when another replica leads.

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
"""Pause before they are asked again, in milliseconds; each watch prolongs its own by a half."""
LONGEST_AGAIN_MS = 2_000
"""Longest pause of a watch, in milliseconds: a server that is slow, and leads, causes few questions."""


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
        self._looking: asyncio.Task[object] | None = None
        self._moved = False

    async def answer(self, address: str, sent: Awaitable[T]) -> T:
        """Return the answer to a try; one at a time.

        Each request of a client passes here, and `asyncio.timeout` would cost as much again.

        Args:
            address: server of the try.
            sent: the try; it is cancelled when another replica leads.

        Raises:
            LedElsewhere: the server was silent, and the masters name another leader.
            NyalaError: of the try.
        """
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._moved = False
        timer = asyncio.get_running_loop().call_later(SILENT_MS / 1000, self._begin, task, address)
        try:
            return await sent
        except asyncio.CancelledError:
            if not self._moved or task.uncancel() > 0:  # the caller was cancelled, too
                raise
            raise LedElsewhere(
                f"{address} did not answer, and {self._tablet.leader} leads the tablet by now"
            ) from None
        finally:
            timer.cancel()
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def _begin(self, task: "asyncio.Task[object]", address: str) -> None:
        def moved() -> bool:
            if self._tablet.leader in (None, address):
                return False
            self._moved = True
            task.cancel()
            return True

        looking = look_until(self._env, self._look_again, moved)
        self._looking = self._env.tasks.spawn(looking, f"watch {address}")


async def look_until(
    env: Env, look_again: Callable[[], Awaitable[None]], done: Callable[[], bool]
) -> None:
    """Ask the masters about a silent server, less and less often, until their answers suffice.

    Args:
        env: tasks.
        look_again: asks the masters; an error is ignored, as the next try learns what became of the tablet.
        done: called after each look-up; returns whether it was the last one.
    """
    pause_ms = AGAIN_MS
    while True:
        with suppress(Retryable, Rejected):
            await look_again()
        if done():
            return
        await env.tasks.sleep_ms(pause_ms)
        pause_ms = min(pause_ms * 3 // 2, LONGEST_AGAIN_MS)
