"""Runs a verb's coroutine with the real environment, for tools that need no cluster, or a part of one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from nyala.env.env import Env, system_env
from nyala.wire.channels import GrpcRpc

T = TypeVar("T")


def run_alone(work: Callable[[Env], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` returns, on a loop of its own."""

    async def main() -> T:
        rpc = GrpcRpc()
        env = system_env(rpc)
        try:
            return await work(env)
        finally:
            await rpc.close()
            await env.tasks.close()

    return asyncio.run(main())
