"""Reads of a SQL query, whose engine runs in a thread, on the client's loop."""

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, TypeVar

from nyala.client.core import ClientCore
from nyala.common.errors import Unavailable

T = TypeVar("T")


class SqlRunner:
    """Runs the client's coroutines for the thread of one query. Made on the client's loop.

    Args:
        core: the client.

    Attributes:
        core: as given.
    """

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._reads: dict[concurrent.futures.Future[Any], None] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. In the thread of the query.

        Raises:
            Unavailable: the query was cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._reads[future] = None
        try:
            if self._ended:  # set before the reads that are known are cancelled
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable("the query was cancelled; run it again") from None
        finally:
            del self._reads[future]

    def end(self) -> None:
        """Cancel the reads of the query, also later ones: its caller has gone, or has its result."""
        self._ended = True
        for future in list(self._reads):
            future.cancel()
