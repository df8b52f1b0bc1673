"""One copy of another server's replica to this one.

A copy that fails before the replica is READY leaves the previous state. On the loop only.
"""

import asyncio
import logging
from functools import partial

from nyala.common.errors import Corrupt, NyalaError
from nyala.common.ids import OpId, TabletId
from nyala.env.tasks import Lane
from nyala.raft.messages import HardState
from nyala.replica.context import ReplicaContext
from nyala.replica.copy import staging
from nyala.replica.copy.fetcher import CopyFetcher
from nyala.replica.copy.job import CopyJob
from nyala.replica.copy.protocol import CopyOffer, CopyStage
from nyala.replica.copy.uncancellable import lane, to_end, void, write
from nyala.replica.lifecycle import remove_copy
from nyala.replica.member.bootstrap import Opened, assemble
from nyala.replica.superblock import ReplicaStage, Superblock
from nyala.replica.tombstone import Tombstone

log = logging.getLogger(__name__)


class CopyTarget:
    """One copy to this server.

    Args:
        context: the process.
        job: source, progress and limits of the copy.
        tombstone: of the group on this server; None: there is none.
        again: the server has an incomplete copy that a crash left; its superblock stays if this one fails.

    Attributes:
        fetch: the transfer from the source.
    """

    def __init__(
        self,
        context: ReplicaContext,
        job: CopyJob,
        tombstone: Tombstone | None,
        *,
        again: bool = False,
    ) -> None:
        buried = None if tombstone is None else tombstone.superblock
        self.fetch = CopyFetcher(context, job, buried)
        self._context = context
        self._group: TabletId = job.progress.group
        self._progress = job.progress
        self._open_machine = job.open_machine
        self._tombstone = tombstone
        self._again = again

    async def copy(self, *, force: bool) -> Opened:
        """Copy the replica, durable on return; return its parts, ready to run.

        Raises:
            NyalaError, OSError: the copy failed and was removed, as far as the disk allowed.
        """
        context = self._context
        try:
            if self._tombstone is None:
                await lane(self._context, Lane.DISK, staging.mark, context, self._group)
            offer = await self.fetch.run(force=force)
            self._progress.stage = CopyStage.INSTALLING
            return await self._install(offer)
        except (
            Exception,
            asyncio.CancelledError,
        ):  # raised again, after the previous state is restored
            await to_end(self._undo())
            raise

    async def _install(self, offer: CopyOffer) -> Opened:
        context, group = self._context, self._group
        last, stamp = self.fetch.end(offer)
        await context.clock.advance_past(stamp)
        buried = None if self._tombstone is None else await self._tombstone.suspend_votes()
        hard_state = promised(offer, last, buried)
        self.fetch.logged = True
        await write(context, group, [], hard_state)
        await lane(
            self._context, Lane.DISK, staging.install, context, group, hard_state, offer.config
        )
        directory = context.machine_directory(group)
        machine = await lane(self._context, Lane.COMPUTE, self._open_machine, group, directory)
        try:
            if machine.cut.op != offer.cut:
                raise Corrupt(
                    f"the source offered {offer.cut}; its files stand for {machine.cut.op}"
                )
            saved = hard_state, offer.config
            logged = context.wal.logged(group)
            logged.configs = self.fetch.configs
            opened = await assemble(context, group, saved, logged, machine, last.index)
            ready = Superblock(group, ReplicaStage.READY)
            await lane(self._context, Lane.DISK, context.superblocks.save, ready)
        except BaseException:  # raised again; the machine is closed before its files are removed
            machine.close()
            raise
        return opened

    async def _undo(self) -> None:
        context, marked = self._context, self._tombstone is None and not self._again
        try:
            if self._progress.stage is CopyStage.INSTALLING:
                # READY may be on disk though saving it failed.
                before = Superblock(self._group, ReplicaStage.COPYING)
                if self._tombstone is not None:
                    before = self._tombstone.superblock
                await lane(self._context, Lane.DISK, context.superblocks.save, before)
            if self.fetch.logged:
                await void(context, self._group)
            await lane(
                self._context,
                Lane.DISK,
                partial(remove_copy, context, self._group, mark=marked),
            )
        except (NyalaError, OSError) as err:
            log.warning("half a copy of %s stays until the next start: %s", self._group, err)
        if self._tombstone is not None:
            self._tombstone.resume_votes()


def promised(offer: CopyOffer, last: OpId, buried: Superblock | None) -> HardState:
    """Return term and vote of a copy: not below those of this server's tombstone, nor below the log.

    In the source's own term the vote goes to its leader: no other candidate can win that term any more.

    Args:
        offer: of the source.
        last: op id of the last entry that the copy has.
        buried: tombstone of the group on this server; None: there is none.
    """
    term = max(offer.term, last.term)
    made = HardState(term, offer.leader if term == offer.term else None)
    if buried is None or buried.hard_state.term < term:
        return made
    if buried.hard_state.term > term or buried.hard_state.vote is not None:
        return buried.hard_state
    return made
