"""Copy of the data to a witness: files from another replica, its own log from their flush point on (S1.51).

The witness runs while the files are copied. It does not need the source's log, since it kept its own. The
commit point is the removal of the witness' file: a start before it finds a witness, one after it a replica
with data. On the loop only.
"""

import asyncio
import logging
from contextlib import suppress

from nyala.common.errors import Corrupt, NyalaError, Unavailable
from nyala.env.tasks import Lane, shielded
from nyala.raft.membership import Configuration
from nyala.raft.node import RaftNode
from nyala.replica import witness
from nyala.replica.context import ReplicaContext
from nyala.replica.copy import staging as copy_files
from nyala.replica.copy.fetcher import CopyFetcher
from nyala.replica.copy.job import CopyJob
from nyala.replica.copy.protocol import CopyOffer, CopyStage
from nyala.replica.copy.shielded_steps import (
    PAUSE_MS,
    BackgroundSteps,
    append_to_log,
    run_blocking,
)
from nyala.replica.lifecycle import remove_data
from nyala.replica.member.bootstrap import Opened, assemble
from nyala.replica.member.member import ReplicaMember
from nyala.replica.replica import Replica
from nyala.replica.state_machine import StateMachine
from nyala.replica.witness import Witness

log = logging.getLogger(__name__)


class CopyWitness:
    """Copy of the data to one witness.

    Args:
        context: the process.
        job: what is copied, and what it shares with other copies.
        replica: the witness.

    Attributes:
        fetch: the transfer from the source.
    """

    def __init__(self, context: ReplicaContext, job: CopyJob, replica: Replica) -> None:
        self.fetch = CopyFetcher(context, job, None)
        self._context = context
        self._progress = job.progress
        self._open_machine = job.open_machine
        self._replica = replica

    async def copy(self, *, force: bool) -> Replica:
        """Copy the files and restart the replica with the data; return it.

        Raises:
            NyalaError, OSError: the copy failed; the replica is still a witness, or FAILED.
        """
        context, group = self._context, self._progress.group
        try:
            # Its log continues after its own flush point.
            kept = self._replica.running_member().applier.machine.flush_point.op.index
            offer = await self.fetch.files(min_index=kept, force=force)
            await self._until_log_reaches(offer)
            self._progress.stage = CopyStage.INSTALLING
            staging = context.staging_directory(group)
            machine = await run_blocking(context, Lane.COMPUTE, self._open_machine, group, staging)
            machine.close()  # the files are intact; they are opened again after the move
            if machine.flush_point.op != offer.flush_op:
                raise Corrupt(
                    f"the source offered {offer.flush_op}; its files stand for {machine.flush_point.op}"
                )
            # There is room in the log now; later this cannot be cancelled.
            await append_to_log(context, group, [], None)
        except (Exception, asyncio.CancelledError):  # raised again; the witness still runs
            await self._clear()
            raise
        steps = BackgroundSteps()
        with suppress(
            asyncio.CancelledError
        ):  # past the commit point: it ends with data, or FAILED
            await shielded(self._switch(steps), steps.end)
        return self._replica

    async def _until_log_reaches(self, offer: CopyOffer) -> None:
        """Wait until this witness has the entry at the files' flush point, committed and durable."""
        clock, timeout_us = self._context.env.clock, self._context.options.copy_retry_ms * 1000
        end_us = clock.monotonic_us() + timeout_us
        while True:
            node = self._replica.running_member().node
            if _durably_committed(node) >= offer.flush_op.index:
                break
            if clock.monotonic_us() > end_us:
                raise Unavailable(
                    f"this witness' log does not reach {offer.flush_op}; is it cut off?"
                )
            await self._context.env.tasks.sleep_ms(PAUSE_MS)
        if not node.view.holds(offer.flush_op):
            raise Corrupt(
                f"the source's files stand for {offer.flush_op}, which this witness' log lacks"
            )

    async def _switch(self, steps: BackgroundSteps) -> None:
        """Restart the witness as a replica with data; term, vote and log stay."""
        context, replica = self._context, self._replica
        member = replica.running_member()
        config, committed = _known(member)
        await replica.stop()
        try:
            hard_state = replica.hard_state
            await append_to_log(
                context, replica.group, [], hard_state, steps
            )  # all before it is durable, too
            await run_blocking(
                context, Lane.DISK, copy_files.fill, context, replica.group, witness.FILE_NAME
            )
            machine = await run_blocking(context, Lane.COMPUTE, self._open)
            saved, logged = (hard_state, config), context.wal.logged(replica.group)
            opened = await assemble(context, replica.group, saved, logged, machine, committed)
            opened.node.inherit(member.node)
        except Exception as err:  # the state is decided by the files at the next start
            replica.fail(err)
            raise
        self._begin(opened)

    def _begin(self, opened: Opened) -> None:
        self._replica.start(opened)
        self._context.schedule(self._replica.group)
        self._context.changed(self._replica.group)

    def _open(self) -> StateMachine:
        group = self._progress.group
        directory = self._context.machine_directory(group)
        return Witness.open(self._context.env.files, directory) or self._open_machine(
            group, directory
        )

    async def _clear(self) -> None:
        staging = self._context.staging_directory(self._progress.group)
        try:
            await remove_data(self._context, staging)
        except (NyalaError, OSError) as err:
            log.warning("%s stays until the next start: %s", staging, err)


def _known(member: ReplicaMember) -> tuple[Configuration, int]:
    """Return the committed configuration, and the last index that is committed and durable here."""
    return member.node.committed_config, _durably_committed(member.node)


def _durably_committed(node: RaftNode) -> int:
    return min(node.commit_index, node.view.durable_index)
