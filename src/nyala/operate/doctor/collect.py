"""Collection of the facts: what the leader master, each other master and each tablet server answer."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError, TimedOut, Unavailable
from nyala.common.ids import SYS_CATALOG
from nyala.operate.doctor.facts import ClusterFacts, MasterFacts, TabletFacts, TServerFacts
from nyala.operate.master_group import MasterDirectory
from nyala.operate.survivors import ServerEndpoint, Survivor, by_tablet, replicas
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 3_000
PAGE = 2_000
"""Number of catalog records in one answer of the leader master."""


async def collect(core: ClientCore) -> ClusterFacts:
    """Return the facts. Read-only.

    Replicas are listed before the catalog, so that those of a table that is created meanwhile are no orphans.

    Raises:
        NyalaError: the leader master refused a request, or was lost meanwhile.
    """
    try:
        listed = await core.servers()
    except (Unavailable, TimedOut):
        return ClusterFacts("", await _known_masters(core))
    masters = [s for s in listed.servers if s.role == "master"]
    tservers = [s for s in listed.servers if s.role == "tserver"]
    places = [ServerEndpoint(s.uuid, s.address) for s in tservers]
    listings = await asyncio.gather(*(replicas(core.env, p, []) for p in places))
    found = by_tablet(listings)
    tables = await core.tables(all_kinds=True)
    tablets = [t for table in tables for t in await _tablets(core, table, found)]
    return ClusterFacts(
        next((s.address for s in masters if s.leader), ""),
        tuple(await asyncio.gather(*(_master(core, m.uuid, m.address) for m in masters))),
        tuple(
            await asyncio.gather(
                *(_tserver(core, *one) for one in zip(tservers, listings, strict=True))
            )
        ),
        tuple(tablets),
        await _orphans(core, found, {t.tablet for t in tablets}),
        max((t.replicas for t in tables), default=0),
    )


async def _known_masters(core: ClientCore) -> tuple[MasterFacts, ...]:
    """Return the masters that the known ones name."""
    directory = MasterDirectory(core)
    try:
        await directory.learn()
    except NyalaError:
        return tuple(MasterFacts(ServerEndpoint("", a), answers=False) for a in core.masters.known)
    known = [(s.uuid, s.address) for s in directory.servers.values()]
    return tuple(await asyncio.gather(*(_master(core, *one) for one in known)))


async def _master(core: ClientCore, uuid: str, address: str) -> MasterFacts:
    place = ServerEndpoint(uuid, address)
    answer = await _ask(core, address, methods.MASTER_STATUS, pb.MasterStatusRequest())
    if answer is None or (uuid and answer.uuid != uuid):
        return MasterFacts(place, answers=False)
    found = await replicas(core.env, place, [])
    return MasterFacts(place, True, answer.error, (found or {}).get(SYS_CATALOG))


async def _tserver(
    core: ClientCore, server: pb.ServerEntry, listing: dict[str, Survivor] | None
) -> TServerFacts:
    """Return the facts of a tablet server; one that has not listed its replicas may still have them."""
    place = ServerEndpoint(server.uuid, server.address)
    info = await _ask(core, server.address, methods.SERVER_INFO, pb.ServerInfoRequest())
    if info is not None and info.uuid != server.uuid:
        return TServerFacts(place, answers=False, alive=server.alive, other=info.uuid)
    if info is None or listing is None:
        return TServerFacts(place, False, starting=info is not None, alive=server.alive)
    failed = [(tablet, s.error) for tablet, s in listing.items() if s.state == "FAILED"]
    return TServerFacts(
        place, True, alive=server.alive, masters=tuple(info.master_addresses), failed=tuple(failed)
    )


async def _tablets(
    core: ClientCore, table: pb.TableSummary, found: dict[str, list[Survivor]]
) -> Iterable[TabletFacts]:
    answer: pb.TabletLocationsResponse = await core.masters.call(
        methods.TABLET_LOCATIONS, pb.TabletLocationsRequest(table_id=table.id), timeout_ms=ASK_MS
    )
    return [
        TabletFacts(
            t.id,
            table.name,
            tuple(ServerEndpoint(r.uuid, r.address) for r in t.replicas if r.voter),
            tuple(found.get(t.id, ())),
        )
        for t in (*answer.tablets, *answer.dropped)
    ]


async def _orphans(
    core: ClientCore, found: dict[str, list[Survivor]], known: set[str]
) -> tuple[tuple[str, Survivor], ...]:
    """Return the replicas without a record in the catalog; tablets of deleted tables have one."""
    other = {
        tablet: [s for s in some if s.state != "TOMBSTONED"]
        for tablet, some in found.items()
        if tablet not in known
    }
    if any(other.values()):
        recorded = await _recorded(core)
        other = {tablet: some for tablet, some in other.items() if tablet not in recorded}
    return tuple((tablet, s) for tablet, some in other.items() for s in some)


async def _recorded(core: ClientCore) -> set[str]:
    """Return the ids of all tablets of which the catalog has a record, page by page."""
    tablets: set[str] = set()
    while True:
        request = pb.InspectMasterRequest(maps=True, limit=PAGE, offset=len(tablets))
        answer = await core.masters.call(methods.INSPECT_MASTER, request, timeout_ms=5 * ASK_MS)
        page: dict[str, Any] = json.loads(answer.maps)
        tablets |= page["tablets"].keys()
        if not page["tablets"] or "tablets" not in page["more"]:
            return tablets


async def _ask(core: ClientCore, address: str, method: Any, request: Any) -> Any:
    """Return the answer of a server; None: it does not answer."""
    try:
        return await core.env.rpc.call(address, method, request, timeout_ms=ASK_MS)
    except NyalaError:
        return None
