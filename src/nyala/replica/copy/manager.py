"""Copies of a process: to this server, and from it.

`start` begins a copy in the background and returns at once; a repeated call returns its progress. During a
copy its group can be neither created nor deleted on this server. On the loop only.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from nyala.common.errors import AlreadyPresent, InvalidArgument, NyalaError, Throttled
from nyala.common.ids import TabletId
from nyala.env.tasks import Lane
from nyala.replica.context import ReplicaContext
from nyala.replica.copy.fill_witness import CopyWitness
from nyala.replica.copy.job import CopyJob
from nyala.replica.copy.protocol import ENDED, CopyOffer, CopyProgress, CopySource, CopyStage
from nyala.replica.copy.quota import CopyQuota
from nyala.replica.copy.shielded_steps import PIECES, ignore_errors
from nyala.replica.copy.source_sessions import CopySessions
from nyala.replica.copy.target import CopyTarget
from nyala.replica.copy.throttle import CopyThrottle, WriteActivity
from nyala.replica.lifecycle import OpenMachine
from nyala.replica.memory import MemoryPart
from nyala.replica.registry import ReplicaRegistry
from nyala.replica.replica import Replica, is_witness
from nyala.replica.status import State
from nyala.replica.superblock import ReplicaStage

log = logging.getLogger(__name__)

POLL_MS = 200
KEPT_PROGRESS = 100
"""Number of ended copies whose progress is kept."""


class CopyManager:
    """Copies to this server, and sessions of copies from it.

    Attributes:
        sessions: sessions of servers that copy from this one.
        quota: limit of disk space for the files of copies to this server.

    Args:
        context: the process.
        registry: the replicas of the process.
        open_machine: see `OpenMachine`.
    """

    def __init__(
        self, context: ReplicaContext, registry: ReplicaRegistry, open_machine: OpenMachine
    ) -> None:
        writers = WriteActivity(context.env.clock, lambda: context.wal.stats().rounds)
        self.sessions = CopySessions(context, registry.find, writers)
        self.quota = CopyQuota(context.options.copy_staged_bytes, context.env.clock)
        self._context = context
        self._registry = registry
        self._open_machine = open_machine
        rates = context.options.copy_rate_bytes, context.options.copy_busy_rate_bytes
        self._throttle = CopyThrottle(context.env.clock, writers, *rates)
        self._known: dict[TabletId, CopyProgress] = {}  # oldest first
        self._running: dict[TabletId, asyncio.Task[object]] = {}

    async def start(
        self,
        group: TabletId,
        source: CopySource,
        *,
        force: bool = False,
        for_member: bool = False,
    ) -> CopyProgress:
        """Begin to copy a replica to this server; a repeated call returns the progress.

        Args:
            group: group of the replica.
            source: the replica that is copied.
            force: copy even if the source may lack acknowledged writes, or this server's vote is lost.
            for_member: a master orders it, which has added this server to the configuration before.

        Returns:
            The progress, which is kept up to date.

        Raises:
            AlreadyPresent: there is a replica here, or it is copied from another server.
            InvalidArgument: the source is this server.
            Throttled: too many copies are being made. Unavailable: being created or deleted.
        """
        known = self._known.get(group)
        if group in self._running:
            assert known is not None, f"a copy of {group} that nobody knows"
            if (known.source, known.address) != (source.uuid, source.address):
                raise AlreadyPresent(
                    f"{group} is being copied from {known.source} at {known.address}: cancel that first"
                )
            known.for_member = known.for_member and for_member
            return known
        if source.uuid == self._context.uuid:
            raise InvalidArgument(f"a replica of {group} cannot be copied to its own server")
        replica = self._registry.find(group)
        if replica is not None and replica.state is not State.TOMBSTONED:
            if known is not None and known.stage is CopyStage.DONE and known.source == source.uuid:
                return known
            if not is_witness(replica) and not await is_partial_copy(replica):
                raise AlreadyPresent(
                    f"{group} has a replica on this server, which is {replica.state.value}: delete it "
                    "first if it is to be replaced"
                )
        if len(self._running) >= self._context.options.copy_sessions_max:
            raise Throttled(
                f"{len(self._running)} copies are made to this server already; try again later, or "
                "raise copy_sessions_max",
                {"retry_after_ms": "1000"},
            )
        self._registry.reserve(group)
        progress = self._spawn(group, source, replica, force)
        progress.for_member = for_member
        return progress

    def chunk_memory(self) -> AbstractContextManager[None]:
        """Count the memory of file pieces in transfer from this server, until the block ends."""
        context = self._context
        return context.memory.hold(MemoryPart.COPIES, PIECES * context.options.copy_chunk_bytes)

    def _spawn(
        self, group: TabletId, source: CopySource, replica: Replica | None, force: bool
    ) -> CopyProgress:
        now_us = self._context.env.clock.monotonic_us()
        progress = CopyProgress(group, source.uuid, source.address, began_us=now_us)
        self._known.pop(group, None)
        self._known[group] = progress
        for old in [g for g, p in self._known.items() if p.stage in ENDED][:-KEPT_PROGRESS]:
            del self._known[old]
        pending_bytes = partial(_pending_bytes, self._known.values())
        job = CopyJob(
            source, progress, self._throttle, self.quota, pending_bytes, self._open_machine
        )
        target = _target(self._context, job, replica)
        work = self._run(target, progress, source, force)
        task = self._running[group] = self._context.env.tasks.spawn(work, f"copy of {group}")
        task.add_done_callback(lambda task: self._cancelled_before_start(progress, task))
        return progress

    def _cancelled_before_start(self, progress: CopyProgress, task: asyncio.Task[object]) -> None:
        """Clean up after a task that was cancelled before its first step, so that `_run` has not started."""
        if self._running.get(progress.group) is task:
            del self._running[progress.group]
            self._registry.free(progress.group)
            progress.stage = CopyStage.CANCELLED
            progress.ended_us = self._context.env.clock.monotonic_us()

    def progress(self, groups: Sequence[TabletId] = ()) -> list[CopyProgress]:
        """Return the progress of copies to this server, ended ones included; no groups given: of all."""
        return [p for g, p in self._known.items() if not groups or g in groups]

    def waiting(self, group: TabletId) -> bool:
        """Return whether a copy of a group is under way or waits until its group has added it as a member."""
        return group in self._running

    def protected(self, group: TabletId) -> bool:
        """Return whether a replica is being copied, or an operator who ordered the copy may still add it.

        A master orders a copy to a member only. If it waits to become one, the member was removed meanwhile,
        and no other server depends on the copy.
        """
        if group not in self._running:
            return False
        progress = self._known[group]
        return not (progress.for_member and progress.stage is CopyStage.WAITING)

    async def cancel(self, group: TabletId) -> None:
        """Cancel a copy that is under way, and wait until it has been removed; no error if there is none.

        A replica that runs already stays.
        """
        await _stop([self._running[group]] if group in self._running else [])

    async def close(self) -> None:
        """Cancel all copies to this server."""
        await _stop(list(self._running.values()))

    # ---- one copy ----------------------------------------------------------------------------------

    async def _run(
        self,
        target: CopyTarget | CopyWitness,
        progress: CopyProgress,
        source: CopySource,
        force: bool,
    ) -> None:
        group = progress.group
        try:
            try:
                if isinstance(target, CopyWitness):
                    replica = await target.copy(force=force)
                else:
                    replica = self._registry.add(group, await target.copy(force=force))
            finally:
                self.quota.release(group)
                self._registry.free(group)
            progress.stage = CopyStage.WAITING
            assert target.fetch.offer is not None, "copied without a session"
            await _until_member(self._context, replica, source, target.fetch.offer)
        except asyncio.CancelledError:
            if progress.stage is not CopyStage.WAITING:
                progress.stage = CopyStage.CANCELLED
        except Exception as err:  # any error of the source or the disk ends only this copy
            log.warning("the copy of %s from %s failed: %r", group, progress.address, err)
            progress.error = err
            progress.stage = CopyStage.FAILED
        finally:
            del self._running[group]
            progress.ended_us = self._context.env.clock.monotonic_us()
        if progress.stage is CopyStage.WAITING:
            progress.stage = CopyStage.DONE
        if target.fetch.offer is not None:
            await ignore_errors(source.hold(target.fetch.offer.session, end=True))


def _pending_bytes(known: Iterable[CopyProgress]) -> int:
    """Return the bytes of files that the copies under way still have to write."""
    return sum(p.bytes_total - p.bytes_done for p in known if p.stage not in ENDED)


def _target(
    context: ReplicaContext, job: CopyJob, replica: Replica | None
) -> CopyTarget | CopyWitness:
    if replica is not None and is_witness(replica):
        return CopyWitness(context, job, replica)
    tombstone = None if replica is None else replica.tombstone
    return CopyTarget(
        context, job, tombstone, was_partial=replica is not None and tombstone is None
    )


async def _stop(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Cancel tasks and wait for their clean-up (`shielded`)."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def is_partial_copy(replica: Replica) -> bool:
    """Return whether a replica is an incomplete copy that a crash left, which another copy can replace."""
    if replica.state is not State.FAILED:
        return False
    load, tasks = replica.context.superblocks.load, replica.context.env.tasks
    try:
        found = await tasks.run(Lane.DISK, load, replica.group)
    except NyalaError:
        return False
    return found is not None and found.stage is ReplicaStage.COPYING


async def _until_member(
    context: ReplicaContext, replica: Replica, source: CopySource, offer: CopyOffer
) -> None:
    """Keep the source's session until the committed configuration has this member and a leader is known."""
    clock, wait_ms = context.env.clock, context.options.copy_wait_ms
    began_us = held_us = clock.monotonic_us()
    while (node := replica.node) is not None:
        if node.committed_config.get(node.uuid) is not None and node.leader is not None:
            return
        now_us = clock.monotonic_us()
        if (now_us - began_us) // 1000 >= wait_ms:
            log.warning("the copy of %s is no member yet; its log is kept no longer", replica.group)
            return
        if (now_us - held_us) // 1000 >= offer.ttl_ms // 4:
            held_us = now_us
            await ignore_errors(source.hold(offer.session))
        await context.env.tasks.sleep_ms(POLL_MS)
