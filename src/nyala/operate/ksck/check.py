"""Checks of `nyala cluster ksck`: the masters' reports against each replica's own.

Read-only. The state of each replica is read from its server, not from the masters.
"""

from collections.abc import Sequence

from nyala.client.core import ClientCore
from nyala.operate.ksck.health import ClusterHealth
from nyala.operate.ksck.servers import ASK_MS, check_masters, check_tservers
from nyala.operate.ksck.tablets import hold_rows, named, replica_rows, tablet_problems
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

NEAR_PERCENT = 90
"""Part of its quota from which a table is listed, in percent."""


async def check(core: ClientCore) -> ClusterHealth:
    """Check a whole cluster.

    Raises:
        TimedOut: no master leads; nothing else can be checked then.
    """
    health = ClusterHealth()
    listed = await core.servers()
    masters = [s for s in listed.servers if s.role == "master"]
    tservers = [s for s in listed.servers if s.role == "tserver"]
    await check_masters(core, masters, health)
    replicas = await check_tservers(core, tservers, health)
    health.problems += version_problems([*health.masters, *health.tservers])
    tables = await core.tables(all_kinds=True)
    health.quotas = quota_rows(tables)
    for table in tables:
        await _check_table(core, table, replicas, health)
    return health


def version_problems(servers: Sequence[tuple[str, str, str, *tuple[object, ...]]]) -> list[str]:
    """Return the problem of servers of different releases, which are only meant to run during an upgrade.

    Args:
        servers: uuid, address and version of each; one without a version does not answer.
    """
    by_version: dict[str, list[str]] = {}
    for _, address, version, *_ in servers:
        if version:
            by_version.setdefault(version, []).append(address)
    if len(by_version) < 2:
        return []
    named = "; ".join(
        f"nyala {v} at {', '.join(sorted(by_version[v]))}" for v in sorted(by_version)
    )
    return [
        f"the servers are of different releases: {named}. Stop all servers, install the newest release on "
        "each machine, and start them (docs/operate/upgrade.md)"
    ]


def quota_rows(tables: list[pb.TableSummary]) -> list[tuple[str, int, int, int, str]]:
    """Return a row of `ClusterHealth.quotas` for each table that is at its quota, or near it.

    Args:
        tables: as the leader master lists them, with the sizes of those that have a quota.
    """
    found = []
    for table in tables:
        percent = 100 * table.bytes // table.quota_bytes if table.quota_bytes else 0
        if percent >= NEAR_PERCENT:
            state = "takes deletes only" if percent >= 100 else "near its quota"
            found.append((table.name, table.bytes, table.quota_bytes, percent, state))
    return found


async def _check_table(
    core: ClientCore,
    table: pb.TableSummary,
    replicas: dict[str, dict[str, pb.TabletStatus]],
    health: ClusterHealth,
) -> None:
    answer: pb.TabletLocationsResponse = await core.masters.call(
        methods.TABLET_LOCATIONS, pb.TabletLocationsRequest(table_id=table.id), timeout_ms=ASK_MS
    )
    healthy = problems = 0
    kept = [*answer.tablets, *answer.dropped]
    for tablet in kept:
        found = tablet_problems(tablet, replicas, table)
        health.replicas += replica_rows(tablet, replicas, table)
        health.problems += [f"{named(table, tablet)}: {p}" for p in found]
        healthy += not found
        problems += len(found)
    health.holds += hold_rows(table, kept, replicas, core.env.clock.wall_us())
    health.tables.append((table.name, table.replicas, len(kept), healthy, problems))
