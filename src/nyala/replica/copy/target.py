"""One copy of another server's replica to this one.

A copy that fails before the replica is READY leaves the previous state. On the loop only.
"""

import asyncio
import logging

from nyala.common.errors import Corrupt, NyalaError
from nyala.common.ids import OpId, TabletId
from nyala.env.tasks import Lane, shielded
from nyala.raft.messages import HardState
from nyala.replica.context import ReplicaContext
from nyala.replica.copy import staging
from nyala.replica.copy.fetcher import CopyFetcher
from nyala.replica.copy.job import CopyJob
from nyala.replica.copy.protocol import CopyOffer, CopyStage
from nyala.replica.copy.shielded_steps import append_to_log, run_blocking, void_log
from nyala.replica.lifecycle import remove_copy, remove_data
from nyala.replica.member.bootstrap import Opened, assemble
from nyala.replica.superblock import ReplicaStage, Superblock
from nyala.replica.tombstone import Tombstone

log = logging.getLogger(__name__)


class CopyTarget:
    """One copy to this server.

    Args:
        context: the process.
        job: source, progress and limits of the copy.
        tombstone: tombstone of the group on this server; None: there is none.
        was_partial: a crash left an incomplete copy on the server; its superblock stays if this one fails.

    Attributes:
        fetch: the transfer from the source.
    """

    def __init__(
        self,
        context: ReplicaContext,
        job: CopyJob,
        tombstone: Tombstone | None,
        *,
        was_partial: bool = False,
    ) -> None:
        superblock = None if tombstone is None else tombstone.superblock
        self.fetch = CopyFetcher(context, job, superblock)
        self.fetch.logged = was_partial  # the failed replica's anchor must not apply to this copy
        self._context = context
        self._group: TabletId = job.progress.group
        self._progress = job.progress
        self._open_machine = job.open_machine
        self._tombstone = tombstone
        self._was_partial = was_partial

    async def copy(self, *, force: bool) -> Opened:
        """Copy the replica, durable on return; return its parts, ready to run.

        Raises:
            NyalaError, OSError: the copy failed and was removed, as far as the disk allowed.
        """
        context = self._context
        try:
            if self._tombstone is None:
                await run_blocking(self._context, Lane.DISK, staging.mark, context, self._group)
            offer = await self.fetch.run(force=force)
            self._progress.stage = CopyStage.INSTALLING
            return await self._install(offer)
        except (
            Exception,
            asyncio.CancelledError,
        ):  # raised again, after the previous state is restored
            await shielded(self._undo())
            raise

    async def _install(self, offer: CopyOffer) -> Opened:
        context, group = self._context, self._group
        last, stamp = self.fetch.last_entry(offer)
        await context.clock.advance_past(stamp)
        superblock = None if self._tombstone is None else await self._tombstone.suspend_votes()
        hard_state = initial_hard_state(offer, last, superblock)
        self.fetch.logged = True
        await append_to_log(context, group, [], hard_state)
        directory = context.machine_directory(group)
        await remove_data(context, directory)
        await run_blocking(
            self._context, Lane.DISK, staging.install, context, group, hard_state, offer.config
        )
        machine = await run_blocking(
            self._context, Lane.COMPUTE, self._open_machine, group, directory
        )
        try:
            if machine.flush_point.op != offer.flush_op:
                raise Corrupt(
                    f"the source offered {offer.flush_op}; its files stand for {machine.flush_point.op}"
                )
            saved = hard_state, offer.config
            logged = context.wal.logged(group)
            logged.configs = self.fetch.configs
            opened = await assemble(context, group, saved, logged, machine, last.index)
            ready = Superblock(group, ReplicaStage.READY)
            await run_blocking(self._context, Lane.DISK, context.superblocks.save, ready)
        except BaseException:  # raised again; the machine is closed before its files are removed
            machine.close()
            raise
        return opened

    async def _undo(self) -> None:
        context, marked = self._context, self._tombstone is None and not self._was_partial
        try:
            if self._progress.stage is CopyStage.INSTALLING:
                # READY may be on disk though saving it failed.
                before = Superblock(self._group, ReplicaStage.COPYING)
                if self._tombstone is not None:
                    before = self._tombstone.superblock
                await run_blocking(self._context, Lane.DISK, context.superblocks.save, before)
            if self.fetch.logged:
                await void_log(context, self._group)
            await remove_copy(context, self._group, mark=marked)
        except (NyalaError, OSError) as err:
            log.warning("half a copy of %s stays until the next start: %s", self._group, err)
        if self._tombstone is not None:
            self._tombstone.resume_votes()


def initial_hard_state(offer: CopyOffer, last: OpId, tombstone: Superblock | None) -> HardState:
    """Return term and vote of a copy: not below those of this server's tombstone, nor below the log.

    In the source's own term the vote goes to its leader: no other candidate can win that term any more.

    Args:
        offer: offer of the source.
        last: op id of the last entry that the copy has.
        tombstone: tombstone of the group on this server; None: there is none.
    """
    term = max(offer.term, last.term)
    copied = HardState(term, offer.leader if term == offer.term else None)
    if tombstone is None or tombstone.hard_state.term < term:
        return copied
    if tombstone.hard_state.term > term or tombstone.hard_state.vote is not None:
        return tombstone.hard_state
    return copied
