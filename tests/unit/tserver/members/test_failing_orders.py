"""An order that fails with a disk error has a retryable answer."""

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.admin.fencing import Fence, OrderFence
from nyala.common.errors import AlreadyPresent, Unavailable
from nyala.common.ids import ServerUuid
from nyala.env.env import system_env
from nyala.replica.status import State
from nyala.tserver.tablet_service import TabletService
from nyala.wire.proto import nyala_pb2 as pb


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


@pytest.mark.parametrize(("state", "refused"), [(State.TOMBSTONED, True), (State.RUNNING, False)])
def test_order_to_create_a_replica_is_refused_beside_a_tombstone(state, refused):
    class Host:
        async def stamp_above(self, _floor: int) -> None:
            return None

        async def create_replica(self, *_: Any) -> None:
            raise AlreadyPresent("it is here")

        def find(self, _tablet: str) -> Any:
            return SimpleNamespace(state=state)

    class Orders:
        def check(self, _request: Any) -> None:
            return None

        async def run_to_completion(self, work: Any) -> None:
            await work

    parts: Any = (None, Host(), None, None, Orders(), None)
    member = pb.Member(uuid="a" * 32, peer_address="h:1", address="h:2", voter=True, electable=True)
    request = pb.CreateTabletRequest(tablet_id="f" * 32, members=[member])
    work = TabletService(*parts).create_tablet(request)
    if refused:
        with pytest.raises(AlreadyPresent):
            asyncio.run(work)
    else:
        assert asyncio.run(work) == pb.CreateTabletResponse()
