"""Event loops of tests of the asynchronous client."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import nyala


def on_loop(cluster: Any, work: Callable[[Any], Awaitable[None]]) -> None:
    """Run a coroutine with a client of its own loop."""

    async def main() -> None:
        async with await nyala.aio.connect(cluster.masters) as client:
            await work(client)

    asyncio.run(main())


async def one_turn() -> None:
    """Let the loop run everything else that is ready."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn
