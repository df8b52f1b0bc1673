"""What people ask the leader master about single tablets."""

from nyala.common.ids import ServerUuid, TabletId
from nyala.env.rpc import Handlers
from nyala.master import create_table, replace_tablet
from nyala.master.service import Parts
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

BROKEN = ("FAILED", "TOMBSTONED")


class TabletsService:
    """Handlers of `MasterService` about tablets. On the loop only.

    Args:
        parts: of this master.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {methods.REPLACE_TABLET: self.replace_tablet}

    async def replace_tablet(self, request: pb.ReplaceTabletRequest) -> pb.ReplaceTabletResponse:
        """Let an empty tablet take the key range of one that is lost; durable on return.

        The same again answers the same. Replicas that turn up later are deleted.

        Raises:
            NotFound: no such tablet, or it was deleted.
            InvalidArgument: live servers have replicas of it and `force` is not set, or too few live.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: ask again.
        """
        term = await self._parts.confirmed()
        env, servers, tablet_id = self._parts.env, self._parts.servers, TabletId(request.tablet_id)
        around = create_table.circumstances(env, term.catalog, servers)
        shown: list[ServerUuid] = [
            s.uuid
            for s in servers.alive(env.clock.monotonic_us())
            if s.replicas.get(tablet_id, BROKEN[0]) not in BROKEN
        ]
        wanted = replace_tablet.unsafe(request, around, shown)
        await self._parts.require_leading().run(wanted, term)
        found = term.catalog.successor(tablet_id)
        assert found is not None, tablet_id
        return pb.ReplaceTabletResponse(tablet_id=found.id)
