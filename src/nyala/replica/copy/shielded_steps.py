"""Steps of a copy that are completed even if the copy is cancelled, and that raise the disk's errors.

On the loop only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from nyala.common.errors import NyalaError, Throttled
from nyala.common.ids import TabletId
from nyala.env.tasks import Lane, shielded
from nyala.raft.messages import Entry, HardState
from nyala.replica.context import ReplicaContext
from nyala.replica.lifecycle import forget

log = logging.getLogger(__name__)

T = TypeVar("T")
PAUSE_MS = 200
PIECES = 2
"""Number of file pieces in memory at either end of a copy: one on the disk, one on the network."""


class BackgroundSteps:
    """Steps that overlap with the transfer of the next piece: one write, and one sync of earlier writes.

    Attributes:
        ending: no further step follows, so a step that waits for space may fail instead.
    """

    def __init__(self) -> None:
        self.ending = False
        self._steps: dict[str, asyncio.Future[object]] = {}

    def start(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Start a step; the previous one of this name has ended."""
        assert name not in self._steps, f"two at a time: {name}"
        self._steps[name] = asyncio.ensure_future(work)

    async def wait(self, name: str) -> object:
        """Wait for the step of a name, if there is one; return its result."""
        work = self._steps.get(name)
        result = None if work is None else await asyncio.shield(work)
        self._steps.pop(name, None)
        return result

    def end(self) -> None:
        """Let steps that wait for space fail instead."""
        self.ending = True

    async def wait_all(self) -> None:
        """Wait for the end of all steps, whatever else has failed.

        Raises:
            OSError: a write or a sync failed. The operating system reports such an error only once.
        """
        self.end()
        results = await shielded(asyncio.gather(*self._steps.values(), return_exceptions=True))
        for result in results:
            if isinstance(result, OSError):
                raise result


async def run_blocking(
    context: ReplicaContext, where: Lane, fn: Callable[..., T], *args: object
) -> T:
    """Run a blocking call to its end even if the copy is cancelled: it may have a file open.

    Args:
        context: context of the process.
        where: lane of the call.
        fn: the call.
        *args: its arguments.
    """
    return await shielded(context.env.tasks.run(where, fn, *args))


async def append_to_log(
    context: ReplicaContext,
    group: TabletId,
    entries: list[Entry],
    hard_state: HardState | None,
    work: BackgroundSteps | None = None,
) -> None:
    """Append to the log, waiting for space in its queue; durable on return.

    Args:
        context: context of the process.
        group: group of the entries.
        entries: contiguous; may be empty.
        hard_state: term and vote; None: unchanged.
        work: the steps of which this is one; when they end, it no longer waits for space.

    Raises:
        OSError: the log failed. Throttled: the steps end, and there is no space.
    """
    wal, done = context.wal, asyncio.get_running_loop().create_future()
    while True:
        try:
            slot = wal.reserve(group, entries, hard_state)
        except Throttled:
            if work is not None and work.ending:
                raise
            await context.env.tasks.sleep_ms(PAUSE_MS)
        else:
            break
    wal.append_async(slot, lambda err: None if done.done() else done.set_result(err))
    if (err := await done) is not None:
        raise err


async def void_log(context: ReplicaContext, group: TabletId) -> None:
    """Void a group's content of the log, waiting for space in its queue; durable on return.

    Raises:
        OSError: the log failed.
    """
    while True:
        try:
            await forget(context, group)
        except Throttled:
            await context.env.tasks.sleep_ms(PAUSE_MS)
        else:
            return


async def ignore_errors(request: Awaitable[None]) -> None:
    """Await a request whose failure has no consequence: the source's session expires by itself."""
    try:
        await request
    except NyalaError as err:  # the session expires by itself
        log.info("the source of a copy was not told: %s", err)
