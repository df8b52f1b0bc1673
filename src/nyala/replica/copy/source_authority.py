"""Check of a copy's source: it leads and has all acknowledged writes, or no replica with more is known."""

from nyala.common.errors import NotLeader, TimedOut
from nyala.replica.context import ReplicaContext
from nyala.replica.replica import Replica

WAIT_TIMEOUTS = 4
"""Number of election timeouts for which a source waits for a leader, or for a majority."""


async def possible_loss(context: ReplicaContext, replica: Replica, force: bool) -> str:
    """Return a description of the writes that a copy of a replica may lack; empty: none.

    Args:
        context: context of the process.
        replica: the source.
        force: copy also if it may lack acknowledged writes.

    Raises:
        NotLeader: another replica leads, and `force` is not given.
        Unavailable, NotFound: the replica does not run.
    """
    member, options = replica.running_member(), context.options
    timeout_ms = WAIT_TIMEOUTS * options.election_timeout_ms
    for _ in range(WAIT_TIMEOUTS):
        if member.node.leader is not None or force:
            break
        await context.env.tasks.sleep_ms(options.election_timeout_ms)
    node = replica.running_member().node
    if node.is_leader:
        try:
            await replica.read_point(None, timeout_ms)
        except (TimedOut, NotLeader):
            why = "no majority confirms that this replica leads"
        else:
            return ""
    elif node.leader is not None:
        leader = node.config.get(node.leader)
        address = leader.address if leader is not None else ""
        why = f"this replica follows {node.leader} {address}"
        if not force:
            raise NotLeader(
                f"{why}, which has all that was acknowledged: copy from there, or force it and lose "
                f"what came after {node.last}",
                {"leader": node.leader, "leader_address": address},
            )
    else:
        why = "no leader is known"
    return f"{why}: writes after {node.view.committed} may be lost, though they were acknowledged"
