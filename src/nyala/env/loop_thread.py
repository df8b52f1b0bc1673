"""An event loop in a thread of its own: how a synchronous face drives coroutines.

One per client. Fork-aware: after a fork the child must make a new client, and is told so.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from nyala.common.errors import InvalidArgument

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers on other threads."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. Any thread but the loop's own.

        Raises:
            InvalidArgument: called in a forked child, or after `close`.
        """
        if os.getpid() != self._pid or self._loop.is_closed():
            work.close()
            raise InvalidArgument(
                "this client was closed, or made before a fork; "
                "call nyala.connect() again in this process"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread; a second call does nothing."""
        if self._loop.is_closed() or os.getpid() != self._pid:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()
