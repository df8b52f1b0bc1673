"""Checks of tablets: the members in the catalog against each replica's own state."""

from nyala.machines import registry
from nyala.operate.tablets import merge_holds
from nyala.wire.proto import nyala_pb2 as pb

BEHIND = 10_000
"""Maximum number of entries that a replica may lag behind its leader without a problem."""
STUCK_MS = 10_000
"""Time without an acknowledgement after which a replica that lacks entries is a problem, in milliseconds."""
DROPPED = "DROPPED"
"""State of a tablet whose range was dropped: readable at earlier times, and repaired, until it is deleted."""


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
