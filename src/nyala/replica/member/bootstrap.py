"""Bootstrap of a replica: a Raft node from consensus metadata, log and the state machine's flush point.

The log is checked first (S4.34): lost or damaged records decide whether this replica may vote at all. Nothing
is repaired here; inconsistent files raise an error, and the replica becomes FAILED.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nyala.common.errors import Corrupt, LogGap
from nyala.common.ids import NO_OP, OpId, TabletId
from nyala.env.tasks import Lane
from nyala.raft.membership import Configuration
from nyala.raft.messages import Entry, HardState
from nyala.raft.node import RaftNode
from nyala.replica.context import ReplicaContext
from nyala.replica.member.client_sessions import ClientSessions
from nyala.replica.state_machine import AnyFlushPoint, StateMachine
from nyala.wal.log import Wal
from nyala.wal.recovery.recovered import RecoveredGroup

READ_BYTES = 8 << 20
"""Bytes of the log that are read at a time."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Parts of a replica that is ready to run.

    Attributes:
        node: its Raft node; `ready()` returns the committed entries that are not in the files.
        machine: opened at its flush point.
        sessions: as of the flush point.
    """

    node: RaftNode
    machine: StateMachine
    sessions: ClientSessions


async def bootstrap(
    context: ReplicaContext,
    group: TabletId,
    recovered: RecoveredGroup | None,
    open_machine: Callable[[str], StateMachine],
) -> Opened:
    """Reopen a replica.

    Args:
        context: the process.
        group: id of the replica's group.
        recovered: content of the log for the group; None: no records.
        open_machine: opens the state machine in its directory; runs in lane COMPUTE.

    Raises:
        Corrupt: files or log are damaged or inconsistent. OSError: the disk failed.
    """
    if recovered is not None and recovered.corrupt is not None:
        raise recovered.corrupt
    tasks = context.env.tasks
    saved = await tasks.run(Lane.DISK, context.cmeta.load, group)
    if saved is None:
        raise Corrupt(
            f"the consensus metadata of {group} is missing, and with it possibly a vote; replace this replica"
        )
    machine = await tasks.run(Lane.COMPUTE, open_machine, context.machine_directory(group))
    try:
        return await assemble(context, group, saved, recovered, machine)
    except BaseException:  # raised again; the state machine's files are closed
        machine.close()
        raise


async def assemble(
    context: ReplicaContext,
    group: TabletId,
    saved: tuple[HardState, Configuration],
    recovered: RecoveredGroup | None,
    machine: StateMachine,
    committed: int = 0,
) -> Opened:
    """Make a Raft node from the recovered parts; see `bootstrap`.

    Args:
        context: the process.
        group: id of the replica's group.
        saved: hard state and configuration, as in the consensus metadata.
        recovered: content of the log for the group; None: no records.
        machine: opened at its flush point.
        committed: index up to which entries are known to be committed; they are read from disk when applied.

    Raises:
        Corrupt: log and files are inconsistent. OSError: the disk failed.
    """
    hard_state, config = saved
    recovered = recovered or RecoveredGroup()
    hard_state = newest(hard_state, recovered.hard_state)
    flush_point = machine.flush_point
    base, skipped = choose_base(recovered, flush_point)
    stamp, index = flush_point.stamp, flush_point.op.index
    if flush_point.op.index < committed <= recovered.last.index:
        index = committed
        known = (await context.wal.read(group, index, 1))[0]
        stamp = known.stamp
        starts = (op for op in recovered.starts if flush_point.op.index < op.index <= index)
        skipped = [*skipped, *starts, known.id]
    later = await entries_after(context.wal, group, index, recovered.last.index)
    node = RaftNode(
        context.uuid,
        config,
        hard_state,
        later,
        base=base,
        base_stamp=stamp,
        skipped=skipped,
        configs=[c for c in recovered.configs if c.id.index <= index],
        commit_index=max(flush_point.op.index, config.id.index, committed),
        applied_index=flush_point.op.index,
        options=context.raft_options(),
        random=context.env.random.randrange,
    )
    return Opened(node, machine, ClientSessions.load(flush_point.extra))


async def entries_after(wal: Wal, group: TabletId, index: int, last: int) -> list[Entry]:
    """Return a group's entries after an index, from the log.

    Args:
        wal: the log.
        group: id of the group.
        index: index before the first entry to return.
        last: index of the last entry to return.
    """
    found: list[Entry] = []
    while index < last:
        found += await wal.read(group, index + 1, READ_BYTES)
        index = found[-1].id.index
    return found


def newest(saved: HardState, logged: HardState | None) -> HardState:
    """Return the newer of two hard states: the one of the higher term; in one term, the one with a vote."""
    if logged is None:
        return saved
    if saved.term != logged.term:
        return max(saved, logged, key=lambda h: h.term)
    if None not in (saved.vote, logged.vote) and saved.vote != logged.vote:
        raise Corrupt(
            f"the log has a vote for {logged.vote} in term {logged.term}, the consensus metadata one "
            f"for {saved.vote}; replace this replica"
        )
    return saved if saved.vote is not None else logged


def choose_base(recovered: RecoveredGroup, flush_point: AnyFlushPoint) -> tuple[OpId, list[OpId]]:
    """Return the base of a Raft node for this log and these files, and the op ids that it need not load.

    Entries up to the flush point stay in the log for followers that still need them. The node gets only the
    first op id of each term among them, and the last one. If the log does not start at index 1, its first
    entry is the
    base: it gives the term that the next entry follows.

    Raises:
        LogGap: entries between the flush point and the log, or entries up to the flush point, are missing.
        Corrupt: log and files disagree about the entry at the flush point.
    """
    first, last = recovered.first, recovered.last
    if last == NO_OP:
        return flush_point.op, []
    if first > flush_point.op.index + 1:
        raise LogGap(
            f"data files end at {flush_point.op}, but the log begins at {first}; the entries between are "
            "missing: replace this replica"
        )
    if last.index < flush_point.op.index:
        raise LogGap(
            f"data files end at {flush_point.op}, but the log ends before, at {last}; synced entries are "
            "missing: replace this replica"
        )
    if first == flush_point.op.index + 1:
        return flush_point.op, []
    starts = [op for op in recovered.starts if op.index <= flush_point.op.index]
    if starts[-1].term != flush_point.op.term:
        logged = OpId(starts[-1].term, flush_point.op.index)
        raise Corrupt(
            f"data files end at {flush_point.op}, but the log has {logged} at this index; replace "
            "this replica"
        )
    base = NO_OP if first == 1 else starts[0]
    return base, [op for op in (*starts, flush_point.op) if op.index > base.index]
