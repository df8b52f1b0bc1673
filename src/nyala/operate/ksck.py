"""Checks of `nyala cluster ksck`: the masters' reports against each replica's own.

Read-only. The state of each replica is read from its server, not from the masters.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError, TimedOut, Unavailable
from nyala.machines import registry
from nyala.operate.tablets import HOLDS, merge_holds
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 5_000
ENDED = ("DONE", "FAILED", "CANCELLED")
"""Stages of copies that are over."""
BEHIND = 10_000
"""Maximum number of entries that a replica may lag behind its leader without a problem."""
STUCK_MS = 10_000
"""Time without an acknowledgement after which a replica that lacks entries is a problem, in milliseconds."""
DROPPED = "DROPPED"
"""State of a tablet whose range was dropped: readable at earlier times, and repaired, until it is deleted."""
HELD = ("table", *HOLDS)
"""Columns of `ClusterHealth.holds`."""
NEAR_PERCENT = 90
"""Part of its quota from which a table is listed, in percent."""
QUOTAS = ("table", "bytes", "quota", "percent", "state")
"""Columns of `ClusterHealth.quotas`."""
MASTER = ("uuid", "address", "version", "state")
"""Columns of `ClusterHealth.masters`."""
TSERVER = ("uuid", "address", "version", "replicas", "state")
"""Columns of `ClusterHealth.tservers`."""
_REPLICA = ("table", "tablet", "address", "state", "role", "term", "applied", "behind")


@dataclass(slots=True)
class ClusterHealth:
    """Result of ksck. `problems` is empty exactly when the cluster is healthy.

    A table at or near its quota is listed in `quotas`, and is no problem of the cluster.
    """

    masters: list[tuple[str, str, str, str]] = field(default_factory=list)
    tservers: list[tuple[str, str, str, int, str]] = field(default_factory=list)
    tables: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    replicas: list[tuple[str, str, str, str, str, int, int, int]] = field(default_factory=list)
    holds: list[tuple[str, str, int, int, int, int]] = field(default_factory=list)
    quotas: list[tuple[str, int, int, int, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "healthy": not self.problems,
            "masters": [dict(zip(MASTER, m, strict=True)) for m in self.masters],
            "tservers": [dict(zip(TSERVER, t, strict=True)) for t in self.tservers],
            "tables": [
                dict(zip(("table", "replicas", "tablets", "healthy", "problems"), t, strict=True))
                for t in self.tables
            ],
            "replicas": [dict(zip(_REPLICA, r, strict=True)) for r in self.replicas],
            "holds": [dict(zip(HELD, h, strict=True)) for h in self.holds],
            "quotas": [dict(zip(QUOTAS, q, strict=True)) for q in self.quotas],
            "problems": self.problems,
        }

    def states(self) -> list[tuple[str, str, int]]:
        """Return the number of replicas of tablets in each state and role."""
        counts = Counter((r[3], r[4]) for r in self.replicas)
        return [(*key, counts[key]) for key in sorted(counts)]


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


async def _call(core: ClientCore, address: str, method: Any, request: Any) -> Any:
    try:
        return await core.env.rpc.call(address, method, request, timeout_ms=ASK_MS)
    except NyalaError as err:
        return err


async def check_masters(
    core: ClientCore, masters: list[pb.ServerEntry], health: ClusterHealth
) -> None:
    """Check the masters of a cluster.

    Args:
        core: sends the requests.
        masters: as the leader master lists them.
        health: takes the findings.
    """
    answers = await asyncio.gather(
        *(_call(core, m.address, methods.MASTER_STATUS, pb.MasterStatusRequest()) for m in masters)
    )
    leaders = 0
    for master, answer in zip(masters, answers, strict=True):
        if isinstance(answer, NyalaError):
            state = "UNREACHABLE"
            health.problems.append(f"master {master.address} is unreachable: {answer.message}")
        else:
            state, leaders = _state_of(answer), leaders + answer.leader
            if answer.error:
                health.problems.append(f"master {master.address} is FAILED: {answer.error}")
        running = "" if isinstance(answer, NyalaError) else answer.server.version
        health.masters.append((master.uuid, master.address, running, state))
    listings = await asyncio.gather(
        *(_call(core, m.address, methods.LIST_TABLETS, pb.ListTabletsRequest()) for m in masters)
    )
    for master, answer in zip(masters, listings, strict=True):
        if not isinstance(answer, NyalaError):
            health.problems += [
                f"master {master.address}: {problem}" for problem in answer.problems
            ]
    if leaders != 1:
        health.problems.append(f"{leaders} masters say that they lead; there should be one")


def _state_of(answer: pb.MasterStatusResponse) -> str:
    if answer.error:
        return "FAILED"
    return "LEADER" if answer.leader else "FOLLOWER"


async def check_tservers(
    core: ClientCore, tservers: list[pb.ServerEntry], health: ClusterHealth
) -> dict[str, dict[str, pb.TabletStatus]]:
    """Check the tablet servers of a cluster.

    Args:
        core: asks them.
        tservers: as the leader master lists them.
        health: takes the findings.

    Returns:
        The replicas of each reachable server, by tablet.
    """
    answers = await asyncio.gather(
        *(_call(core, t.address, methods.LIST_TABLETS, pb.ListTabletsRequest()) for t in tservers)
    )
    copies = await asyncio.gather(
        *(_call(core, t.address, methods.COPY_STATUS, pb.CopyStatusRequest()) for t in tservers)
    )
    found: dict[str, dict[str, pb.TabletStatus]] = {}
    for server, answer, copying in zip(tservers, answers, copies, strict=True):
        if isinstance(answer, NyalaError):
            state = "DECOMMISSIONED" if is_retired(server) else "UNREACHABLE"
            if state == "UNREACHABLE":
                health.problems.append(
                    f"tablet server {server.address} is unreachable: {answer.message}"
                )
            health.tservers.append((server.uuid, server.address, "", 0, state))
            continue
        unanswered = _stream_port_problems(copying)
        under_way = {} if isinstance(copying, NyalaError) else _copies(copying)
        found[server.uuid] = under_way | {t.report.tablet_id: t for t in answer.tablets}
        whole = [t.report for t in answer.tablets if t.report.state not in ("FAILED", "TOMBSTONED")]
        errors = dict.fromkeys(
            r.error for r in whole if r.error
        )  # errors of the server, which each of its replicas reports
        errors |= dict.fromkeys([*answer.problems, *unanswered])
        health.problems += [f"tablet server {server.address}: {error}" for error in errors]
        warnings = dict.fromkeys(r.warning for r in whole if r.warning)
        health.problems += [f"tablet server {server.address}: {warning}" for warning in warnings]
        state = "UNHEALTHY" if errors or warnings else "HEALTHY"
        health.tservers.append(
            (server.uuid, server.address, server.version, len(answer.tablets), state)
        )
    return found


def is_retired(server: pb.ServerEntry) -> bool:
    """Return whether a tablet server was decommissioned, and stopped when all replicas had been moved."""
    return server.decommission and not server.alive and not server.replicas


def _stream_port_problems(copying: pb.CopyStatusResponse | NyalaError) -> list[str]:
    """Return the problem of a server that answers at its public port only.

    Args:
        copying: its answer to CopyStatus, which is called over the stream port, or the error.
    """
    if not isinstance(copying, Unavailable | TimedOut):
        return []  # one that refuses the caller answers
    return [
        f"it answers at its public port, and not at its stream port ({copying.message}); no client can read "
        "or write there: let clients and servers reach both ports, and until then transfer its leaders "
        "(nyala tablet leader_step_down) or stop it"
    ]


def _copies(answer: pb.CopyStatusResponse) -> dict[str, pb.TabletStatus]:
    """Return the copies under way as replicas that are COPYING."""
    return {
        c.tablet_id: pb.TabletStatus(
            report=pb.TabletReport(
                tablet_id=c.tablet_id,
                state="COPYING",
                error=f"from {c.source_address}: {c.stage}, {c.bytes_done} of {c.bytes_total} bytes",
            )
        )
        for c in answer.copies
        if c.stage not in ENDED
    }


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


def hold_rows(
    table: pb.TableSummary,
    tablets: list[pb.TabletLocation],
    replicas: dict[str, dict[str, pb.TabletStatus]],
    now_us: int,
) -> list[tuple[str, str, int, int, int, int]]:
    """Return a row of `ClusterHealth.holds` for each hold of a table's history.

    Args:
        table: summary of the table.
        tablets: of the table, with their members.
        replicas: by server and tablet, as the servers report them.
        now_us: the present, in microseconds since the epoch.
    """
    statuses = (status for tablet in tablets for _, status in _reported(tablet, replicas))
    return [
        (table.name, h.hold, h.at, h.age_s, h.left_s, h.tablets)
        for h in merge_holds(statuses, now_us)
    ]


def named(table: pb.TableSummary, tablet: pb.TabletLocation) -> str:
    """Return the name of a tablet in problems."""
    kept = " (of a dropped range, kept for its history)" if tablet.state == DROPPED else ""
    return f"{registry.kind_of(table.kind).name} {table.name}, tablet {tablet.id}{kept}"


def tablet_problems(
    tablet: pb.TabletLocation,
    replicas: dict[str, dict[str, pb.TabletStatus]],
    table: pb.TableSummary,
) -> list[str]:
    """Return the problems of one tablet.

    Args:
        tablet: with its members, as the leader master lists them.
        replicas: by server and tablet, as the servers report them.
        table: summary of the tablet's table.
    """
    found: list[str] = []
    voters = [r for r in tablet.replicas if r.voter]
    if len(voters) != table.replicas:
        found.append(f"{len(voters)} voters where {table.replicas} are wanted")
    leaders: list[str] = []
    for replica in tablet.replicas:
        status = replicas.get(replica.uuid, {}).get(tablet.id)
        if replica.uuid not in replicas:
            found.append(f"the replica on {replica.address or replica.uuid} is unreachable")
        elif status is None:
            found.append(f"{replica.address} has no replica of it")
        elif status.report.state != "RUNNING":
            state = f"{status.report.state}{':' * (status.report.state == 'FAILED')}"
            why = f"{state} {status.report.error}".rstrip(": ")  # a copy has its progress there
            found.append(f"the replica on {replica.address} is {why}")
        else:
            if status.report.role == "LEADER":
                leaders.append(f"{replica.address} in term {status.report.consensus.term}")
    if len(leaders) != 1:
        found.append(
            f"{len(leaders)} replicas lead it" + (f": {', '.join(leaders)}" if leaders else "")
        )
    return found + _index_problems(tablet, replicas)


def _reported(
    tablet: pb.TabletLocation, replicas: dict[str, dict[str, pb.TabletStatus]]
) -> list[tuple[pb.ReplicaLocation, pb.TabletStatus]]:
    """Return the replicas of a tablet that were reported."""
    listings = [(r, replicas.get(r.uuid, {}).get(tablet.id)) for r in tablet.replicas]
    return [(r, status) for r, status in listings if status is not None]


def _leader(reported: list[tuple[pb.ReplicaLocation, pb.TabletStatus]]) -> pb.TabletStatus | None:
    leaders = [s for _, s in reported if s.report.role == "LEADER"]
    return max(leaders, key=lambda s: s.report.consensus.term, default=None)


def _index_problems(
    tablet: pb.TabletLocation, replicas: dict[str, dict[str, pb.TabletStatus]]
) -> list[str]:
    """Compare logs and configurations with those of the leader, if there is one."""
    reported = _reported(tablet, replicas)
    leader = _leader(reported)
    if leader is None:
        return []
    found = []
    addresses = {r.uuid: r.address or r.uuid for r, _ in reported}
    for peer in leader.peers:
        if peer.needs_copy:
            where = addresses.get(peer.uuid, peer.uuid)
            found.append(
                f"the replica on {where} needs a copy: it lacks entries that its leader's log no longer holds"
            )
        elif peer.stuck_ms >= STUCK_MS:
            where = addresses.get(peer.uuid, peer.uuid)
            found.append(
                f"the replica on {where} has made no progress for {peer.stuck_ms // 1000} s: its leader "
                f"knows that its log has entries up to {peer.match} of {leader.last_index}; check the log "
                "and the disk of its server, and replace the replica if this does not change"
            )
    for replica, status in reported:
        lag = leader.commit_index - status.applied_index
        if lag >= BEHIND:
            found.append(f"the replica on {replica.address} is {lag} entries behind its leader")
        if status.commit_index > leader.last_index:
            found.append(
                f"the replica on {replica.address} has {status.commit_index} entries committed, its leader "
                f"only {leader.last_index} at all: their logs are not of one history"
            )
    return found


def replica_rows(
    tablet: pb.TabletLocation,
    replicas: dict[str, dict[str, pb.TabletStatus]],
    table: pb.TableSummary,
) -> list[tuple[str, str, str, str, str, int, int, int]]:
    """Return a row of `ClusterHealth.replicas` for each replica of a tablet that was reported.

    Args:
        tablet: with its members, as the leader master lists them.
        replicas: by server and tablet, as the servers report them.
        table: summary of the tablet's table.
    """
    reported = _reported(tablet, replicas)
    leader = _leader(reported)
    commit = 0 if leader is None else leader.commit_index
    return [
        (
            table.name, tablet.id, replica.address, status.report.state, status.report.role,
            status.report.consensus.term, status.applied_index,
            max(0, commit - status.applied_index),
        )
        for replica, status in reported
    ]  # fmt: skip
