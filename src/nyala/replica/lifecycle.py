"""Creating, opening and deleting a replica's files, each step durable before the next.

    create:  CREATING -> machine's files, consensus metadata -> READY -> runs
    delete:  stopped -> TOMBSTONED -> log forgotten, files removed
             for good: votes no more -> log forgotten -> files removed -> superblock removed
    copy:    see `copy/staging.py`
    open:    CREATING: removed, it never ran · READY: bootstrap · TOMBSTONED: removal repeated ·
             COPYING: the incomplete copy is removed; FAILED, until it is copied again or deleted
             LOST: FAILED, until it is deleted, or recovered by an operator (`offline/recovery.py`)

A crash between any two steps leaves a state that `open` handles. Files are removed by these rules only.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from nyala.common.errors import BadVersion, Corrupt, LogGap, NyalaError, Unavailable
from nyala.common.ids import TabletId
from nyala.env.tasks import Lane, shielded
from nyala.raft.membership import Configuration
from nyala.raft.messages import HardState
from nyala.replica.context import ReplicaContext
from nyala.replica.member.bootstrap import Opened, assemble, bootstrap
from nyala.replica.replica import Replica
from nyala.replica.state_machine import StateMachine
from nyala.replica.superblock import ReplicaStage, Superblock
from nyala.replica.witness import Witness
from nyala.wal.recovery.recovered import RecoveredGroup

RECOVERY_HINT = (
    "Where no replica of it works any more: nyala local_replica unsafe_recover, "
    "docs/operate/lost-majority.md"
)

log = logging.getLogger(__name__)

CreateMachine = Callable[[str], StateMachine]
"""Creates the state machine of a new replica in an empty directory, `<dir>/data/<group>`; lane COMPUTE."""
OpenMachine = Callable[[TabletId, str], StateMachine]
"""Opens the state machine of an existing replica in a directory; lane COMPUTE."""


async def create(
    context: ReplicaContext, group: TabletId, config: Configuration, create_machine: CreateMachine
) -> Opened:
    """Create the files of a new replica. Durable on return.

    Args:
        context: context of the process.
        group: group of the replica.
        config: the group's first configuration.
        create_machine: see `CreateMachine`.

    Returns:
        The replica's parts, ready to run.

    Raises:
        OSError: the disk failed or is full; its files are removed, now or at the next start.
    """
    tasks = context.env.tasks
    try:
        await tasks.run(
            Lane.DISK, context.superblocks.save, Superblock(group, ReplicaStage.CREATING)
        )
        machine = await tasks.run(Lane.COMPUTE, _create_machine, context, group, create_machine)
        hard_state = HardState(machine.flush_point.op.term)  # no vote was cast in it
        await tasks.run(Lane.DISK, _ready, context, group, hard_state, config)
    except (OSError, NyalaError):
        await _undo(context, group)
        raise
    return await assemble(context, group, (hard_state, config), None, machine)


def _ready(
    context: ReplicaContext, group: TabletId, hard_state: HardState, config: Configuration
) -> None:
    context.cmeta.save(group, hard_state, config)
    context.superblocks.save(Superblock(group, ReplicaStage.READY))


def _create_machine(
    context: ReplicaContext, group: TabletId, create_machine: CreateMachine
) -> StateMachine:
    directory = context.machine_directory(group)
    context.env.files.remove_tree(directory)
    context.env.files.make_dir(directory)
    return create_machine(directory)


async def _undo(context: ReplicaContext, group: TabletId) -> None:
    try:
        await _remove_all(context, group)
    except OSError as err:
        log.warning("the unfinished replica of %s stays until the next start: %s", group, err)


async def remove_data(context: ReplicaContext, *directories: str) -> None:
    """Remove directories with data, to the end even if the caller is cancelled.

    Lane COMPUTE: their removal can take seconds, and syncs of the log would wait for it in lane DISK.
    """
    for directory in directories:
        remove = context.env.files.remove_tree
        await shielded(context.env.tasks.run(Lane.COMPUTE, remove, directory))


async def _remove_all(context: ReplicaContext, group: TabletId) -> None:
    """Remove all files of a replica; its superblock last, so that a start after a crash continues."""
    await remove_data(context, context.machine_directory(group))
    await context.env.tasks.run(Lane.DISK, _remove_records, context, group)


def _remove_records(context: ReplicaContext, group: TabletId) -> None:
    files, machines = context.env.files, context.machine_directory(group).rpartition("/")[0]
    if files.exists(machines):
        files.sync_dir(machines)  # else a power failure could bring back files that nothing names
    context.cmeta.delete(group)
    context.superblocks.delete(group)


async def mark_lost_records(
    context: ReplicaContext, recovered: Mapping[TabletId, RecoveredGroup]
) -> None:
    """Mark the replicas that lost records with missing parts of the log; accept the log afterwards.

    Raises:
        OSError: not all are marked; the next start finds the same damage.
    """
    doubt = context.wal.unattributed
    if doubt is not None:
        await context.env.tasks.run(Lane.DISK, _mark_lost, context, recovered)
        await context.wal.accept_damage()


def _mark_lost(context: ReplicaContext, recovered: Mapping[TabletId, RecoveredGroup]) -> None:
    for group in context.superblocks.groups():
        own = recovered.get(group)
        if own is not None and own.corrupt is None:
            continue
        try:
            superblock = context.superblocks.load(group)
        except NyalaError:
            continue  # it cannot be opened anyway
        if superblock is not None and superblock.stage is ReplicaStage.READY:
            context.superblocks.save(Superblock(group, ReplicaStage.LOST))


async def open_all(
    context: ReplicaContext,
    recovered: Mapping[TabletId, RecoveredGroup],
    replicas: dict[TabletId, Replica],
    open_machine: OpenMachine,
) -> None:
    """Open every replica of a data directory, according to the stage in its superblock.

    Args:
        context: the process.
        recovered: content of the log, by group.
        replicas: filled with an entry for each group that has, or should have, a superblock.
        open_machine: see `OpenMachine`.
    """
    groups, saved = await context.env.tasks.run(Lane.DISK, _list_groups, context)
    for group in sorted({*groups, *saved, *recovered}):
        replicas[group] = Replica(context, group)
    for group, replica in list(replicas.items()):
        try:
            if not await _open(context, replica, recovered.get(group), open_machine):
                del replicas[group]
        except Exception as err:  # an error of one replica does not affect the others
            replica.fail(err)
    for group, own in recovered.items():
        failed = replicas.get(group)
        if failed is not None and failed.error is not None:
            await _release_lost(context, failed, own)


async def _release_lost(context: ReplicaContext, replica: Replica, own: RecoveredGroup) -> None:
    """Release the log of a replica that can never run from it again, by its superblock."""
    try:
        if own.corrupt is not None or await _is_lost(context, replica.group):
            await release_log(context, replica)
    except (OSError, NyalaError) as err:
        log.warning("the log keeps what it has of %s: %s", replica.group, err)


async def _is_lost(context: ReplicaContext, group: TabletId) -> bool:
    superblock = await context.env.tasks.run(Lane.DISK, context.superblocks.load, group)
    return superblock is not None and superblock.stage is ReplicaStage.LOST


def _list_groups(context: ReplicaContext) -> tuple[list[TabletId], list[TabletId]]:
    """Return the groups that have a superblock, and those with consensus metadata.

    Staged copies are removed, and what atomic writes left unfinished.
    """
    context.env.files.remove_tree(f"{context.directory}/copy")
    context.superblocks.remove_unfinished()
    context.cmeta.remove_unfinished()
    return context.superblocks.groups(), context.cmeta.groups()


async def _open(
    context: ReplicaContext,
    replica: Replica,
    recovered: RecoveredGroup | None,
    open_machine: OpenMachine,
) -> bool:
    """Open one replica; return whether there is one."""
    group, tasks = replica.group, context.env.tasks
    superblock = await tasks.run(Lane.DISK, context.superblocks.load, group)
    if superblock is None:
        raise Corrupt(
            f"there are log entries or consensus metadata of {group}, but no superblock: files of this "
            "replica are lost; replace it"
        )
    if superblock.stage is ReplicaStage.READY:
        replica.start(
            await bootstrap(
                context,
                group,
                recovered,
                lambda path: Witness.open(context.env.files, path) or open_machine(group, path),
            )
        )
        return True
    if superblock.stage is ReplicaStage.LOST:
        lost = _lost(context, superblock, recovered)
        raise type(lost)(f"{lost.message}. {RECOVERY_HINT}", lost.details)
    if superblock.stage is ReplicaStage.CREATING:
        await _remove_all(context, group)
        return False
    if superblock.stage is ReplicaStage.COPYING:
        if recovered is not None:
            await forget(context, group)
        await remove_copy(context, group, mark=False)
        raise Unavailable(
            f"a copy of {group} to this server was not completed, and nothing of it is left; copy it "
            "again, or delete it"
        )
    replica.become_tombstone(superblock)
    if recovered is not None:
        context.wal.forget(group)
    await _remove_old(context, group)
    return True


def _lost(
    context: ReplicaContext, superblock: Superblock, recovered: RecoveredGroup | None
) -> Corrupt:
    """Return the error of a replica of stage LOST: found at this start, or at an earlier one."""
    if recovered is not None and recovered.corrupt is not None:
        return recovered.corrupt
    if context.wal.unattributed is not None:
        return context.wal.unattributed.error
    if superblock.lost:
        return Corrupt(superblock.lost)
    return LogGap(
        f"the log of this server lost records of {superblock.group}, votes perhaps among them: it takes part "
        "no more; delete this replica, and have it copied from another one"
    )


async def delete(context: ReplicaContext, replica: Replica) -> None:
    """Stop a replica and remove its data; its vote and last op id stay. Durable on return.

    Raises:
        OSError: the disk failed. If its superblock is TOMBSTONED, the remaining files are removed at the next
            start; otherwise it is FAILED until it is deleted again or reopened.
    """
    tasks, group = context.env.tasks, replica.group
    await replica.stop()
    if replica.tombstone is None:
        try:
            tombstone = await _tombstone_of(context, replica)
            await tasks.run(Lane.DISK, context.superblocks.save, tombstone)
        except OSError as err:  # it has stopped; its status shows the error
            replica.fail(Unavailable(f"its deletion failed on the disk: {err}; delete it again"))
            raise
        replica.become_tombstone(tombstone)
    context.wal.forget(group)
    await _remove_old(context, group)


async def delete_for_good(context: ReplicaContext, replica: Replica) -> None:
    """Delete a replica, and its tombstone: its group will never need its vote. Durable on return.

    Raises:
        OSError: the disk failed. Throttled, Unavailable: the log accepts nothing now. The tombstone stays.
    """
    if replica.tombstone is None:
        await delete(context, replica)
    tombstone, group = replica.tombstone, replica.group
    assert tombstone is not None, f"{group} was deleted and has no tombstone"
    await tombstone.suspend_votes()  # a vote would write the superblock again
    try:
        await forget(context, group)  # entries without a superblock would look like a lost replica
        await _remove_all(context, group)
    except (OSError, NyalaError):
        tombstone.resume_votes()
        raise


async def _tombstone_of(context: ReplicaContext, replica: Replica) -> Superblock:
    """Return the tombstone; that of a replica that could not be opened has no vote."""
    tombstone = replica.tombstone_record()
    if not tombstone.votes:
        try:
            saved = await context.env.tasks.run(Lane.DISK, context.cmeta.load, replica.group)
        except Corrupt:
            saved = None
        if saved is not None:
            tombstone = replace(tombstone, hard_state=saved[0])
    return tombstone


async def release_log(context: ReplicaContext, replica: Replica) -> None:
    """Release the log of a FAILED replica, which is then FAILED for good. Durable on return.

    Raises:
        OSError, BadVersion: the superblock was not written, or is of a newer format; the log keeps
            everything.
    """
    group = replica.group
    reason = (
        "this replica failed, and the log has released entries that it needed; replace it. It had "
        f"failed since: {replica.error}"
    )
    copying = await context.env.tasks.run(Lane.DISK, _note_release, context, group, reason)
    if replica.error is not None and not copying:
        context.wal.release(group)


def _note_release(context: ReplicaContext, group: TabletId, reason: str) -> bool:
    """Mark a replica as LOST unless it is deleted or copied meanwhile; return whether it is being copied.

    In one step of the lane, so that no other superblock is written in between.
    """
    try:
        before = context.superblocks.load(group)
    except BadVersion:  # a newer build may be able to run from the log
        raise
    except Corrupt:  # damaged: nothing can go on from it, and the next superblock says why
        before = Superblock(group, ReplicaStage.READY)
    if before is not None and before.stage is ReplicaStage.READY:
        context.superblocks.save(Superblock(group, ReplicaStage.LOST, lost=reason))
    return before is not None and before.stage is ReplicaStage.COPYING


async def forget(context: ReplicaContext, group: TabletId) -> None:
    """Void a group's content of the log; durable on return.

    Raises:
        Throttled, Unavailable: the log accepts nothing now. OSError: the log has failed.
    """
    done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    context.wal.forget(group, lambda err: None if done.done() else done.set_result(err))
    if (err := await done) is not None:
        raise err


async def _remove_old(context: ReplicaContext, group: TabletId) -> None:
    """Remove the data of a replica whose tombstone is durable."""
    await remove_data(context, context.machine_directory(group))
    await context.env.tasks.run(Lane.DISK, context.cmeta.delete, group)


async def remove_copy(context: ReplicaContext, group: TabletId, *, mark: bool) -> None:
    """Remove the files of an incomplete copy.

    Args:
        context: context of the process.
        group: group of the copy.
        mark: remove the superblock of stage COPYING, too.
    """
    await remove_data(context, context.staging_directory(group), context.machine_directory(group))
    await shielded(context.env.tasks.run(Lane.DISK, _remove_copy_records, context, group, mark))


def _remove_copy_records(context: ReplicaContext, group: TabletId, mark: bool) -> None:
    context.cmeta.delete(group)
    if mark:
        context.superblocks.delete(group)
