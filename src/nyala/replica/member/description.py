"""Status of a running replica, for reports, pages and the host."""

from nyala.replica.member.member import ReplicaMember
from nyala.replica.status import ReplicaStatus, State


def describe(member: ReplicaMember, state: State) -> ReplicaStatus:
    """Return the status of the replica, which is in `state`."""
    raft, applier = member.node.status(), member.applier
    return ReplicaStatus(
        group=member.group,
        state=state,
        role=raft.role,
        term=raft.term,
        leader=raft.leader,
        config=raft.config,
        committed_config=raft.committed_config,
        commit=raft.commit,
        applied=applier.applied,
        applied_stamp=applier.applied_stamp,
        known_commit=raft.known_commit,
        durable=raft.durable,
        last=raft.last,
        flush_op=applier.machine.flush_point.op,
        closed=raft.closed,
        vote=raft.vote,
        unflushed_bytes=applier.machine.unflushed_bytes(),
        peers=raft.peers,
        quiesced=raft.quiesced,
        error=member.context.unavailable_reason or member.context.memory.over_budget_reason,
        warning=member.context.log_disk.warning,
    )
