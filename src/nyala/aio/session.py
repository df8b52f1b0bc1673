"""Session: the client of one event loop, which refuses calls from other loops and after `close`."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from nyala.client.calls.opening import OpenClient
from nyala.client.core import ClientCore
from nyala.common.errors import InvalidArgument

OTHER_LOOP = (
    "this client belongs to another event loop: its connections and tasks run there. Call "
    "nyala.aio.connect() in the loop that uses it: each loop, and each asyncio.run, needs a client of its "
    "own; or nyala.connect() for threads"
)
NO_LOOP = (
    "this call needs the event loop of its client: await it in a coroutine; nyala.connect() has the "
    "synchronous client"
)
CLOSED = "this client is closed; call nyala.aio.connect() for a new one"


class Session:
    """An open client and the loop that runs it.

    Args:
        opened: the client.
    """

    def __init__(self, opened: OpenClient) -> None:
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an asynchronous client, and what it has opened, cannot be pickled or copied: it belongs to the "
            "event loop of this process. Pass client.masters, and call nyala.aio.connect() there"
        )

    @property
    def known(self) -> ClientCore:
        """The client, to read what it knows; nothing is awaited."""
        return self._opened.core

    @property
    def closed(self) -> bool:
        """True if the client was closed."""
        return self._closing is not None

    def core(self) -> ClientCore:
        """Return the client, for a call.

        Raises:
            InvalidArgument: the caller is on another loop or on none, or the client is closed.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidArgument(NO_LOOP) from None
        if running is not self._loop:
            raise InvalidArgument(OTHER_LOOP)
        if self._closing is not None:
            raise InvalidArgument(CLOSED)
        return self._opened.core

    def leave(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have a coroutine run without waiting for it, unless the client or its loop is closed. Any thread.

        Args:
            begin: returns the coroutine.
        """

        def spawn() -> None:
            if not self.closed:
                self._opened.core.env.tasks.spawn(begin(), "end of a forgotten object")

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(spawn)

    async def close(self) -> None:
        """End calls, streams, tasks and connections; a second call waits for the first.

        Raises:
            InvalidArgument: the caller is on another loop.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidArgument(OTHER_LOOP)
        if self._closing is None:
            self._closing = self._loop.create_task(self._opened.close())
        await asyncio.shield(self._closing)
