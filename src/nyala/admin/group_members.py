"""Configurations of groups as the masters know them, for replicas that are behind."""

from collections.abc import Callable

from nyala.common.ids import ServerUuid, TabletId
from nyala.env.env import Env
from nyala.raft.membership import Configuration
from nyala.wire import convert, methods
from nyala.wire.proto import access_pb2 as pb

TIMEOUT_MS = 2_000
OnForeign = Callable[[ServerUuid, TabletId], None]


class GroupMembers:
    """Asks the leader master for configurations. On the event loop only.

    Args:
        env: calls.
        leader: returns the address of the leader master; None: not known at present.
        foreign: called for a message of a server that is no member of a tablet as the masters know it.
    """

    def __init__(
        self, env: Env, leader: Callable[[], str | None], foreign: OnForeign = lambda *_: None
    ) -> None:
        self._env = env
        self._leader = leader
        self._foreign = foreign

    async def find(self, tablet: TabletId, sender: ServerUuid) -> Configuration | None:
        """Return the newest committed configuration of a tablet; None: the masters know none.

        Args:
            tablet: the tablet.
            sender: of a message, which the replica does not know as a member.

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
        found = convert.configuration_from_proto(answer.consensus)
        if sender not in found.uuids:
            self._foreign(sender, tablet)
        return found
