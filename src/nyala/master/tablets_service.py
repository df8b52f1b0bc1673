"""What people ask the leader master about single tablets."""

from nyala.common.ids import ServerUuid, TabletId
from nyala.env.rpc import Handlers
from nyala.master import create_table, replace_tablet
from nyala.master.catalog import Catalog
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
        shown = self._shown(TabletId(request.tablet_id))
        answer = described(term.catalog, request.tablet_id, shown)
        if not request.dry_run:
            around = create_table.circumstances(self._parts.env, term.catalog, self._parts.servers)
            wanted = replace_tablet.unsafe(request, around, shown)
            await self._parts.require_leading().run(wanted, term)
        found = term.catalog.successor(TabletId(request.tablet_id))
        assert found is not None, request.tablet_id
        answer.tablet_id = found.id
        return answer

    def _shown(self, tablet: TabletId) -> list[ServerUuid]:
        live = self._parts.servers.alive(self._parts.env.clock.monotonic_us())
        return [s.uuid for s in live if s.replicas.get(tablet, BROKEN[0]) not in BROKEN]


def described(
    catalog: Catalog, tablet_id: str, shown: list[ServerUuid]
) -> pb.ReplaceTabletResponse:
    """Return what there is of a tablet.

    Raises:
        NotFound: no such tablet, or it was deleted.
    """
    tablet, table = replace_tablet.known(catalog, tablet_id)
    return pb.ReplaceTabletResponse(
        table_name=table.name,
        state=tablet.state.name,
        members=tablet.consensus.members,
        shown_by=shown,
    )
