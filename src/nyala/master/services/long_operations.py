"""Long operations: moves of replicas, and servers that are decommissioned. Pure.

Each has its commit point in the catalog: a server's mark, or a configuration with `replace`. From there on
every leader derives the next step from the present state, and so continues the operations of the last one.
"""

from nyala.common.ids import ServerUuid
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records import CatalogTablet
from nyala.wire.proto import nyala_pb2 as pb


def under_way(catalog: Catalog) -> list[pb.LongOperation]:
    """Return the operations under way, servers first, with their commit points and next steps."""
    counts = catalog.replica_counts()
    leaving = [s for s in catalog.servers.all() if s.decommission]
    found = [_decommission(s, counts.get(ServerUuid(s.uuid), 0)) for s in leaving]
    for tablet in catalog.moving():
        found += _moves(tablet)
    return found


def _decommission(server: pb.ListedServer, replicas: int) -> pb.LongOperation:
    return pb.LongOperation(
        what="decommission",
        subject=server.uuid,
        step=f"{replicas} replicas to be moved" if replicas else "done: no replicas are left",
        commit_point=f"version {server.version} of the server list",
    )


def _moves(tablet: CatalogTablet) -> list[pb.LongOperation]:
    members = tablet.consensus.members
    coming = [m.uuid for m in members if m.promote and not m.voter]
    leaving = [m.uuid for m in members if m.replace]
    step = f"{coming[0]} gets the data, and a vote" if coming else "another one votes, or is chosen"
    return [
        pb.LongOperation(
            what="move replica",
            subject=f"{tablet.id} from {uuid}",
            step=step,
            commit_point=f"configuration of {tablet.config_id}",
        )
        for uuid in leaving
    ]
