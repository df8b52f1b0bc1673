"""Collection of the facts: what the leader master, each other master and each tablet server answer."""

import asyncio
import json
from dataclasses import replace
from typing import Any

from nyala.client.core import ClientCore
from nyala.common.errors import NotFound, NyalaError, TimedOut, Unavailable
from nyala.common.ids import SYS_CATALOG
from nyala.machines import registry
from nyala.operate.doctor.facts import ClusterFacts, MasterFacts, TabletFacts, TServerFacts
from nyala.operate.ksck.servers import is_retired
from nyala.operate.master_group import MasterDirectory
from nyala.operate.survivors import (
    ServerEndpoint,
    Survivor,
    by_tablet,
    has_majority,
    list_replicas,
    list_server,
)
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.tls.untrusted import UNTRUSTED

ASK_MS = 3_000
NONE_ANSWERS = "nor does any other that was named; if the cluster has more masters, name them, too"
PAGE = 2_000
"""Number of catalog records in one answer of the leader master."""


async def collect(core: ClientCore) -> ClusterFacts:
    """Return the facts. Read-only.

    Replicas are listed before the catalog, so that those of a table that is created meanwhile are no orphans;
    and once more after it if a tablet seems to have no majority, because it may have been created meanwhile.

    Raises:
        NyalaError: the leader master refused a request, or was lost meanwhile.
    """
    try:
        listed = await core.servers()
    except (Unavailable, TimedOut):
        return ClusterFacts("", await _known_masters(core))
    masters = [s for s in listed.servers if s.role == "master"]
    tservers = [s for s in listed.servers if s.role == "tserver"]
    asked = await asyncio.gather(*(_tserver(core, s) for s in tservers))
    found = by_tablet(listing for _, listing in asked)
    tables = await core.tables(all_kinds=True)
    tablets = [t for table in tables for t in await _tablets(core, table, found)]
    if not all(has_majority(t.found) for t in tablets):
        found = by_tablet(await asyncio.gather(*(_listed_again(core, *one) for one in asked)))
        tablets = [replace(t, found=tuple(found.get(t.tablet, ()))) for t in tablets]
    return ClusterFacts(
        next((s.address for s in masters if s.leader), ""),
        tuple(await asyncio.gather(*(_master(core, m.uuid, m.address) for m in masters))),
        tuple(facts for facts, _ in asked),
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
        return tuple(
            MasterFacts(ServerEndpoint("", a), answers=False, problem=NONE_ANSWERS)
            for a in core.masters.known
        )
    known = [(s.uuid, s.address) for s in directory.servers.values()]
    return tuple(await asyncio.gather(*(_master(core, *one) for one in known)))


async def _master(core: ClientCore, uuid: str, address: str) -> MasterFacts:
    place = ServerEndpoint(uuid, address)
    answer = await _ask(core, address, methods.MASTER_STATUS, pb.MasterStatusRequest())
    if isinstance(answer, NyalaError):
        return MasterFacts(
            place, not _silent(answer), problem=answer.message, untrusted=_untrusted(answer)
        )
    if uuid and answer.uuid != uuid:
        problem = f"another master, {answer.uuid}, answers at its address"
        return MasterFacts(place, False, problem=problem, other=answer.uuid)
    try:
        found = await list_server(core.env, place, [])
    except NyalaError as err:
        return MasterFacts(place, True, answer.error, problem=err.message)
    return MasterFacts(
        place, True, answer.error, found.replicas.get(SYS_CATALOG), reports=found.problems
    )


async def _tserver(
    core: ClientCore, server: pb.ServerEntry
) -> tuple[TServerFacts, dict[str, Survivor]]:
    """Return the facts of a tablet server, and its replicas; one that does not list them may have some."""
    place, alive = ServerEndpoint(server.uuid, server.address), server.alive
    info = await _ask(core, server.address, methods.SERVER_INFO, pb.ServerInfoRequest())
    if isinstance(info, NyalaError):
        starting, retired = not _silent(info), is_retired(server)
        facts = TServerFacts(
            place, False, starting, alive, info.message, retired=retired, untrusted=_untrusted(info)
        )
        return facts, {}
    if info.uuid != server.uuid:
        problem = f"another server, {info.uuid}, answers at its address"
        return TServerFacts(place, False, False, alive, problem, info.uuid), {}
    try:
        listing = await list_server(core.env, place, [])
    except NyalaError as err:
        return TServerFacts(place, False, True, alive, err.message), {}
    found = listing.replicas
    failed = tuple((tablet, s.error) for tablet, s in found.items() if s.state == "FAILED")
    facts = TServerFacts(
        place, True, alive=alive, masters=tuple(info.master_addresses), failed=failed,
        reports=listing.problems,
    )  # fmt: skip
    return facts, found


async def _listed_again(
    core: ClientCore, facts: TServerFacts, listing: dict[str, Survivor]
) -> dict[str, Survivor]:
    """Return the present replicas of a server; those that it has listed if it does not answer any more."""
    try:
        return await list_replicas(core.env, facts.place, []) if facts.answers else listing
    except NyalaError:
        return listing


async def _tablets(
    core: ClientCore, table: pb.TableSummary, found: dict[str, list[Survivor]]
) -> list[TabletFacts]:
    request = pb.TabletLocationsRequest(table_id=table.id)
    try:
        answer: pb.TabletLocationsResponse = await core.masters.call(
            methods.TABLET_LOCATIONS, request, timeout_ms=ASK_MS
        )
    except NotFound:
        return []  # dropped meanwhile
    return [
        TabletFacts(
            t.id,
            table.name,
            tuple(ServerEndpoint(r.uuid, r.address) for r in t.replicas if r.voter),
            tuple(found.get(t.id, ())),
            registry.kind_of(table.kind).name,
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
    """Return the answer of a server, or the error of the call."""
    try:
        return await core.env.rpc.call(address, method, request, timeout_ms=ASK_MS)
    except NyalaError as err:
        return err


def _silent(err: NyalaError) -> bool:
    """Return whether a call's error says that no server answered: one that refuses a call runs.

    So does one whose certificate is not accepted.
    """
    return isinstance(err, Unavailable | TimedOut) and not _untrusted(err)


def _untrusted(err: NyalaError) -> str:
    """Return why the certificate of the server that was called is not accepted; empty: it is."""
    return err.details.get(UNTRUSTED, "")
