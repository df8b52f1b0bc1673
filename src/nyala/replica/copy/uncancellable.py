"""Steps of a copy that run to their end when the copy is cancelled, and raise the disk's errors.

On the loop only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from nyala.common.errors import NyalaError, Throttled
from nyala.common.ids import TabletId
from nyala.env.tasks import Lane
from nyala.raft.messages import Entry, HardState
from nyala.replica.context import ReplicaContext
from nyala.replica.lifecycle import forget

log = logging.getLogger(__name__)

T = TypeVar("T")
PAUSE_MS = 200
PIECES = 2
"""Of a file, in memory at either end of a copy: one is read or written while the next one travels."""


class BackgroundSteps:
    """Steps that overlap with the transfer of the next piece: one write, and one sync of earlier writes."""

    def __init__(self) -> None:
        self._works: dict[str, asyncio.Future[object]] = {}

    def begin(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Begin it; the last one of this name has ended."""
        assert name not in self._works, f"two at a time: {name}"
        self._works[name] = asyncio.ensure_future(work)

    async def ended(self, name: str) -> object:
        """Wait until it has ended, if it was begun; return its result."""
        work = self._works.get(name)
        result = None if work is None else await asyncio.shield(work)
        self._works.pop(name, None)
        return result

    async def drop(self) -> None:
        """Wait for the end of all of it, whatever else went wrong.

        Raises:
            OSError: of a write or a sync: asked again, the system would not tell it any more.
        """
        results = await to_end(asyncio.gather(*self._works.values(), return_exceptions=True))
        for result in results:
            if isinstance(result, OSError):
                raise result


async def to_end(work: Awaitable[T]) -> T:
    """Await something that nobody may leave in its middle, however often the copy is cancelled meanwhile."""
    task, stopped = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            stopped = True
        except Exception:  # it is told below
            assert task.done()
    if stopped:
        task.cancelled() or task.exception()
        raise asyncio.CancelledError
    return task.result()


async def lane(context: ReplicaContext, where: Lane, fn: Callable[..., T], *args: object) -> T:
    """Run a blocking call to its end, also if the copy is cancelled: it may have a file open.

    Args:
        context: of the process.
        where: lane of the call.
        fn: the call.
        *args: its arguments.
    """
    return await to_end(context.env.tasks.run(where, fn, *args))


async def write(
    context: ReplicaContext, group: TabletId, entries: list[Entry], hard_state: HardState | None
) -> None:
    """Append to the log; durable on return.

    Args:
        context: of the process.
        group: whose entries.
        entries: contiguous; may be empty.
        hard_state: term and vote; None: unchanged.

    Raises:
        OSError: the log failed.
    """
    wal, done = context.wal, asyncio.get_running_loop().create_future()
    while True:
        try:
            slot = wal.reserve(group, entries, hard_state)
        except Throttled:
            await context.env.tasks.sleep_ms(PAUSE_MS)
        else:
            break
    wal.append_async(slot, lambda err: None if done.done() else done.set_result(err))
    if (err := await done) is not None:
        raise err


async def void(context: ReplicaContext, group: TabletId) -> None:
    """Void what the log has of a group, when it has room to note that; durable on return. Raises OSError."""
    while True:
        try:
            await forget(context, group)
        except Throttled:
            await context.env.tasks.sleep_ms(PAUSE_MS)
        else:
            return


async def quietly(word: Awaitable[None]) -> None:
    """Tell a source something that it finds out by itself later."""
    try:
        await word
    except NyalaError as err:  # the session ends by itself
        log.info("the source of a copy was not told: %s", err)
