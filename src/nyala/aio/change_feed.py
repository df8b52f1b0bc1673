"""AsyncChangeFeed: the changes of a table, without end, as an async iterator."""

from collections.abc import Awaitable, Callable

from nyala.aio.session import Session
from nyala.client.core import ClientCore
from nyala.client.feed.change_batch import ChangeBatch
from nyala.client.feed.follower import Follower

Begin = Callable[[ClientCore], Awaitable[Follower]]
"""Begin to follow."""


class AsyncChangeFeed:
    """The changes of a table. Made by `AsyncTable.follow`; an async iterator and an async context manager.

    It begins when it is entered, or with its first batch. One task iterates; `close` releases the history
    that is held for it. After an error the iteration may go on.

    Args:
        session: the client.
        begin: begins to follow.
    """

    def __init__(self, session: Session, begin: Begin) -> None:
        self._session = session
        self._begin = begin
        self._follower: Follower | None = None
        self._closed = False

    @property
    def position(self) -> int:
        """Hybrid time through which changes were returned; 0: it has not begun."""
        return 0 if self._follower is None else self._follower.position

    def __aiter__(self) -> "AsyncChangeFeed":
        return self

    async def __anext__(self) -> ChangeBatch:
        """Return the next batch, and wait for it; raises as `nyala.ChangeFeed`."""
        follower = await self._begun()
        batch = None if follower is None else await follower.next()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def _begun(self) -> Follower | None:
        core = self._session.core()
        if self._follower is None and not self._closed:
            self._follower = await self._begin(core)
        return self._follower

    async def close(self) -> None:
        """End the iteration and release the history; a second call does nothing."""
        self._closed = True
        if self._follower is not None and not self._session.closed:
            await self._follower.close()

    async def __aenter__(self) -> "AsyncChangeFeed":
        await self._begun()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
