"""Check that all servers are active members of their groups, and that committed entries are durable there."""

from collections.abc import Container, Iterator

from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.node import RaftNode
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.process import SimProcess


def behind(
    cluster: SimCluster,
    groups: list[TabletId],
    wanted: dict[TabletId, int],
    away: Container[str] = (),
    voters: int = 0,
) -> Iterator[str]:
    """Yield the missing parts of a group: a leader, a voter, or entries committed at the first call.

    Args:
        cluster: all servers.
        groups: to check.
        wanted: by group, index that each voter has to reach; filled at the first call.
        away: uuids of servers that are not checked.
        voters: minimum number of voters; a replica that is replaced in place is no voter for some time.
    """
    for group in groups:
        members = {node.core.uuid: (p, node) for p, g, node in cluster.replicas() if g == group}
        leader = cluster.leader_of(group)
        led = next((n for p, n in members.values() if p is leader), None)
        if led is None:
            yield f"{group} has no leader"
            continue
        most = wanted.setdefault(group, led.core.log.committed)
        voting = led.core.configs.active.voters
        if len(voting) < voters:
            yield f"{group} has {len(voting)} of {voters} voters"
        for voter in voting:
            if voter not in away:
                yield from _lacking(group, members.get(ServerUuid(voter)), led.term, most, voter)


def _lacking(
    group: TabletId, found: tuple[SimProcess, RaftNode] | None, term: int, most: int, uuid: str
) -> Iterator[str]:
    if found is None:
        yield f"{group}: {uuid} takes no part"
        return
    process, node = found
    if node.term != term or not (node.is_leader or node.leader):
        yield f"{group}: {process.name} does not follow"
    elif node.core.log.stable < most:
        yield f"{group}: {process.name} is at {node.core.log.stable} of {most}"


async def sound(
    cluster: SimCluster,
    groups: list[TabletId],
    what: str,
    within_s: float,
    away: Container[str] = (),
    voters: int = 0,
) -> None:
    """Wait until no part is missing.

    Raises:
        AssertionError: with the missing parts.
    """
    wanted: dict[TabletId, int] = {}
    end = cluster.loop.time() + within_s
    while found := list(behind(cluster, groups, wanted, away, voters)):
        assert cluster.loop.time() < end, f"{what}: not within {within_s} s: {'; '.join(found)}"
        await cluster.loop.delay(20_000)
