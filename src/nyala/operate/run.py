"""Runs an operator's coroutine in the real environment, with or without a connection to a cluster."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from nyala.client.core import ClientCore
    from nyala.env.env import Env

T = TypeVar("T")
TIMEOUT_MS = 15_000


def run_alone(work: "Callable[[Env], Coroutine[Any, Any, T]]") -> T:
    """Return what `work` returns, on a loop of its own."""
    from nyala.env.env import system_env  # imports are slow: a verb pays for what it needs
    from nyala.wire.channels import GrpcRpc

    async def main() -> T:
        rpc = GrpcRpc()
        env = system_env(rpc)
        try:
            return await work(env)
        finally:
            await rpc.close()
            await env.tasks.close()

    return asyncio.run(main())


def connected(masters: str, work: "Callable[[ClientCore], Coroutine[Any, Any, T]]") -> T:
    """Return what a coroutine returns that asks a cluster."""
    from nyala.client.connection import Connection
    from nyala.client.core import ClientOptions

    connection = Connection(masters, ClientOptions(timeout_ms=TIMEOUT_MS))
    try:
        return connection.run(work(connection.core))
    finally:
        connection.close()
