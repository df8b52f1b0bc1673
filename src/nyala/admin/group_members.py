"""Configurations of groups as the masters know them, for replicas that are behind."""

from collections.abc import Callable

from nyala.common.ids import TabletId
from nyala.env.env import Env
from nyala.raft.membership import Configuration
from nyala.wire import convert, methods
from nyala.wire.proto import access_pb2 as pb

TIMEOUT_MS = 2_000


class GroupMembers:
    """Asks the leader master for configurations. On the event loop only.

    Args:
        env: calls.
        leader: returns the address of the leader master; None: not known at present.
    """

    def __init__(self, env: Env, leader: Callable[[], str | None]) -> None:
        self._env = env
        self._leader = leader

    async def find(self, tablet: TabletId) -> Configuration | None:
        """Return the newest committed configuration of a tablet; None: the masters know none.

        Raises:
            NyalaError: the leader master does not answer.
        """
        address = self._leader()
        if address is None:
            return None
        answer: pb.MembersResponse = await self._env.rpc.call(
            address, methods.MEMBERS, pb.MembersRequest(tablet_id=tablet), timeout_ms=TIMEOUT_MS
        )
        if not answer.HasField("consensus"):
            return None
        return convert.configuration_from_proto(answer.consensus)
