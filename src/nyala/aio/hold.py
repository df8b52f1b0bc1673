"""AsyncHold: a snapshot that stays readable, on an event loop."""

from types import TracebackType

from nyala.aio.session import Session
from nyala.client.hold import HeldTime, Holding


class AsyncHold(HeldTime):
    """A snapshot of a table that stays readable. Made by `AsyncTable.hold`; an async context manager.

    Args:
        session: the client.
        holding: the hold, begun.
    """

    kind = "nyala.aio.AsyncHold"

    def __init__(self, session: Session, holding: Holding) -> None:
        self._session = session  # first, as it is what refuses to be pickled
        super().__init__(holding)

    async def release(self) -> None:
        """Release the hold, also if it is cancelled; a second call, or one after `close`, does nothing."""
        if self._holding.left_ms() and not self._session.closed:
            await self._session.core().caller.finish(self._holding.release())

    async def __aenter__(self) -> "AsyncHold":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release()
