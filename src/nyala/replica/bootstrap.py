"""Bootstrap: from superblock, consensus metadata, log and the machine's cut to a core that may take part.

The log comes first (S4.34): what it lost or what is damaged decides whether this replica may vote at
all. Nothing is repaired here; whatever does not fit together raises, and the replica is FAILED.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nyala.common.errors import Corrupt, LogGap
from nyala.common.ids import NO_OP, OpId, TabletId
from nyala.env.tasks import Lane
from nyala.raft.membership import Configuration
from nyala.raft.messages import Entry, HardState
from nyala.raft.node import RaftNode
from nyala.replica.around import Around
from nyala.replica.sessions import Sessions
from nyala.replica.state_machine import AnyCut, StateMachine
from nyala.wal.recovered import RecoveredGroup


@dataclass(frozen=True, slots=True)
class Opened:
    """A replica that may take part.

    Attributes:
        node: its core; what is known to be committed and not in the files is owed by `ready()`.
        machine: opened at its cut.
        sessions: as of the cut.
        first_index: the lowest index whose entry the log still has (last index + 1: none).
    """

    node: RaftNode
    machine: StateMachine
    sessions: Sessions
    first_index: int


async def bootstrap(
    around: Around,
    group: TabletId,
    recovered: RecoveredGroup | None,
    open_machine: Callable[[str], StateMachine],
) -> Opened:
    """Reopen a replica.

    Args:
        around: the process.
        group: of the replica.
        recovered: what the log held of the group; None: nothing.
        open_machine: opens the state machine from its directory; runs in lane COMPUTE.

    Raises:
        Corrupt: files or log are damaged, or do not fit together. OSError: the disk failed.
    """
    if recovered is not None and recovered.corrupt is not None:
        raise recovered.corrupt
    tasks = around.env.tasks
    saved = await tasks.run(Lane.DISK, around.cmeta.load, group)
    if saved is None:
        raise Corrupt(
            f"the consensus metadata of {group} is gone, and its vote may be lost with it; replace "
            "this replica"
        )
    machine = await tasks.run(Lane.COMPUTE, open_machine, around.machine_directory(group))
    try:
        return assemble(around, saved, recovered, machine)
    except BaseException:  # whatever it is goes on up; the machine's files are let go of
        machine.close()
        raise


def assemble(
    around: Around,
    saved: tuple[HardState, Configuration],
    recovered: RecoveredGroup | None,
    machine: StateMachine,
    committed: int = 0,
) -> Opened:
    """Fit the recovered pieces together; see `bootstrap`. Entries up to `committed` are known to be so."""
    hard_state, config = saved
    entries: Sequence[Entry] = ()
    if recovered is not None:
        hard_state = newest(hard_state, recovered.hard_state)
        entries = recovered.entries
    base, base_stamp, log = fit(entries, machine.cut)
    node = RaftNode(
        around.uuid,
        config,
        hard_state,
        log,
        base=base,
        base_stamp=base_stamp,
        commit_index=max(machine.cut.op.index, config.id.index, committed),
        applied_index=machine.cut.op.index,
        options=around.raft_options(),
        random=around.env.random.randrange,
    )
    return Opened(node, machine, Sessions.load(machine.cut.extra), base.index + 1)


def newest(saved: HardState, logged: HardState | None) -> HardState:
    """Return the later of two promises: the higher term, and in one term the one with a vote."""
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


def fit(entries: Sequence[Entry], cut: AnyCut) -> tuple[OpId, int, Sequence[Entry]]:
    """Return base, its stamp and the entries after it, for a core over this log and these files.

    Entries below the cut stay in the core's log, for followers that still need them. Where the log does
    not reach back to its beginning, its first entry is the base: it says what the others follow.

    Raises:
        LogGap: entries between the cut and the log are missing, or those up to the cut are not there.
        Corrupt: log and files disagree about the entry at the cut.
    """
    if not entries:
        return cut.op, cut.stamp, ()
    first, last = entries[0].id, entries[-1].id
    if first.index > cut.op.index + 1:
        raise LogGap(
            f"the files stand for {cut.op}, and the log begins at {first}: what lies between is lost; "
            "replace this replica"
        )
    if last.index < cut.op.index:
        raise LogGap(
            f"the files stand for {cut.op}, and the log ends at {last} before it: synced entries are "
            "lost; replace this replica"
        )
    if cut.op.index >= first.index and (found := entries[cut.op.index - first.index].id) != cut.op:
        raise Corrupt(f"the files stand for {cut.op}, but the log has {found} there")
    if first.index == 1:
        return NO_OP, 0, entries
    if first.index == cut.op.index + 1:
        return cut.op, cut.stamp, entries
    return first, entries[0].stamp, entries[1:]
