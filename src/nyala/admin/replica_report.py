"""Report of one replica, to masters and operators."""

from nyala.common.errors import NotFound, Unavailable
from nyala.machines import registry
from nyala.machines.kind import MachineInfo
from nyala.raft.status import PeerStatus, Role
from nyala.replica.replica import Replica, is_witness
from nyala.replica.status import ReplicaStatus
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb


def _machine(replica: Replica) -> MachineInfo | None:
    try:
        return registry.describe(replica.machine)
    except (Unavailable, NotFound):  # FAILED or opening, or a tombstone
        return None


def report(replica: Replica) -> pb.TabletReport:
    """Return the report of a replica to masters."""
    status, machine = replica.status(), _machine(replica)
    return pb.TabletReport(
        tablet_id=status.group,
        table_id=machine.table_id if machine else "",
        state=status.state.value,
        consensus=_consensus(status),
        role=status.role.value,
        schema_version=machine.version if machine else 0,
        error=status.error,
        warning=status.warning,
        witness=is_witness(replica),
        retired_at=machine.retired_at if machine else 0,
        kind=machine.kind if machine else 0,
    )


def _consensus(status: ReplicaStatus) -> pb.ConsensusState:
    leader = status.leader if status.role is not Role.CANDIDATE else None
    return convert.consensus_to_proto(status.committed_config, status.term, leader)


def _peer(peer: PeerStatus, tick_ms: int) -> pb.PeerReport:
    return pb.PeerReport(
        uuid=peer.uuid,
        match=peer.match,
        next=peer.next,
        inflight_bytes=peer.inflight_bytes,
        silent_ms=peer.ticks_silent * tick_ms,
        needs_copy=peer.needs_copy,
        stuck_ms=peer.ticks_stuck * tick_ms,
    )


def definition(replica: Replica) -> pb.TabletDefinition | None:
    """Return what a replica knows of its table; None: it has no data, or cannot be used."""
    try:
        machine = registry.with_data(replica.machine)
    except (Unavailable, NotFound):
        return None
    if machine is None:
        return None
    found = registry.kind_of_machine(machine).known(machine)
    if replica.member is not None:
        for transaction in found.transactions:
            if transaction.prepared:
                at = replica.member.transactions.commit_time(transaction.transaction)
                transaction.decided = at or 0
    return found


def status(replica: Replica) -> pb.TabletStatus:
    """Return the full status of a replica."""
    found, machine = replica.status(), _machine(replica)
    tick_ms = replica.context.options.raft_tick_ms
    message = pb.TabletStatus(
        report=report(replica),
        last_term=found.last.term,
        last_index=found.last.index,
        commit_index=found.commit,
        known_commit=found.known_commit,
        applied_index=found.applied.index,
        applied_term=found.applied.term,
        safe_time=found.applied_stamp,
        closed_time=found.closed,
        durable_index=found.durable,
        active=convert.consensus_to_proto(found.config, found.term, found.leader),
        peers=[_peer(p, tick_ms) for p in found.peers],
        vote=found.vote or "",
    )
    if machine is not None:
        message.table_name = machine.name
        message.partition.CopyFrom(convert.partition_to_proto(machine.partition))
        message.data_bytes, message.rows = machine.data_bytes, machine.items
        message.horizon = machine.horizon
    return message
