"""Waiting for work while something else may fail."""

import asyncio
from collections.abc import Awaitable


async def or_failure(watching: asyncio.Task[None], work: Awaitable[None]) -> None:
    """Wait for work, or fail as soon as the watch does."""
    task = asyncio.ensure_future(work)
    watching.add_done_callback(lambda _: task.cancel())
    try:
        await task
    except asyncio.CancelledError:
        if watching.done():
            watching.result()
        raise
