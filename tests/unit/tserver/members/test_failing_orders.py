"""An order that fails with a disk error has a retryable answer."""

import asyncio
import errno
import os
from typing import Any

import pytest

from nyala.admin.fencing import Fence, OrderFence
from nyala.common.errors import Unavailable
from nyala.common.ids import ServerUuid
from nyala.env.env import system_env


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_order_refused_by_disk_can_be_repeated(number: int):
    async def full() -> None:
        raise OSError(number, os.strerror(number), "/data/superblock/t.tmp")

    class Self:
        uuid = ServerUuid("a" * 32)

    async def scenario() -> None:
        rpc: Any = None
        env = system_env(rpc)
        try:
            with pytest.raises(Unavailable, match="disk of this server failed"):
                await OrderFence(env, Self(), Fence()).run_to_completion(full())  # type: ignore[arg-type]
        finally:
            await env.tasks.close()

    asyncio.run(scenario())
