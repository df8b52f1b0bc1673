"""Transfer of one copy: the source's files to a staging directory, its entries to the local log. Resumable.

If the source cannot be reached for a while, the transfer continues after the last byte on disk. If the
session has expired, it starts again from the beginning. On the loop only.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from nyala.common.errors import (
    Corrupt,
    SessionExpired,
    Throttled,
    TimedOut,
    Unavailable,
)
from nyala.common.ids import OpId
from nyala.env.files import Buffer
from nyala.env.tasks import Lane
from nyala.raft.messages import Entry, EntryKind
from nyala.replica.context import ReplicaContext
from nyala.replica.copy.job import CopyJob
from nyala.replica.copy.preflight import check_entries, check_offer, check_reach
from nyala.replica.copy.protocol import CopyFile, CopyOffer, CopySource, CopyStage
from nyala.replica.copy.shielded_steps import (
    PAUSE_MS,
    PIECES,
    BackgroundSteps,
    append_to_log,
    ignore_errors,
    run_blocking,
    void_log,
)
from nyala.replica.copy.staging import Staging
from nyala.replica.memory import MemoryPart
from nyala.replica.superblock import Superblock

log = logging.getLogger(__name__)

T = TypeVar("T")
WRITE, SYNC = "write", "sync"
RESTARTS = 5
_SOURCE_AWAY = (Unavailable, TimedOut, Throttled)


class CopyFetcher:
    """The transfer of one copy.

    Args:
        context: the process.
        job: source, progress and limits of the copy.
        tombstone: tombstone of the group on this server; None: no tombstone.

    Attributes:
        offer: the source's offer in the last session; None: no session has begun.
        last: op id and stamp of the last entry received; None: no entry was received.
        configs: the configuration entries received.
        logged: True if the local log may have entries, or an anchor, of the group.
    """

    def __init__(self, context: ReplicaContext, job: CopyJob, tombstone: Superblock | None) -> None:
        self.progress = job.progress
        self.offer: CopyOffer | None = None
        self.last: tuple[OpId, int] | None = None
        self.configs: list[Entry] = []
        self.logged = False
        self._context = context
        self._group = job.progress.group
        self._source = job.source
        self._throttle = job.throttle
        self._quota = job.quota
        self._pending_bytes = job.pending_bytes
        self._tombstone = tombstone
        self._staging = Staging(context, self._group, job.throttle.chunk_bytes)
        self._last_response_us = 0

    async def run(self, *, force: bool) -> CopyOffer:
        """Fetch files and log entries, durable on return; return the source's offer.

        Raises:
            NyalaError, OSError: the copy failed; the caller voids its log entries and removes its files.
        """
        return await self._fetch_with_restarts(partial(self._files_and_log, force))

    async def files(self, *, min_index: int, force: bool) -> CopyOffer:
        """Fetch only the files, of a flush point at index `min_index` or later; otherwise as `run`."""
        return await self._fetch_with_restarts(partial(self._files, min_index, force))

    async def _fetch_with_restarts(self, fetch: Callable[[], Awaitable[CopyOffer]]) -> CopyOffer:
        """Fetch, and start again when the session has expired."""
        for _ in range(RESTARTS):
            await run_blocking(self._context, Lane.COMPUTE, self._staging.clear)
            if self.logged:
                await void_log(self._context, self._group)
                self.logged = False
            self.last = None
            self.configs.clear()
            self.progress.bytes_done = self.progress.log_bytes = 0
            try:
                return await fetch()
            except SessionExpired as err:
                log.warning("the copy of %s restarts from the beginning: %s", self._group, err)
                self.progress.retries += 1
        raise Unavailable(
            f"the source's session for the copy of {self._group} expired {RESTARTS} times; start the copy "
            "again"
        )

    async def _files(self, min_index: int, force: bool) -> CopyOffer:
        offer = await self._begin(min_index, force)
        progress = self.progress
        progress.bytes_total, progress.may_lose = offer.size_bytes, offer.may_lose
        context = self._context
        free_bytes = await run_blocking(
            context, Lane.DISK, context.env.files.free_bytes, context.directory
        )
        check_offer(
            context,
            progress,
            offer,
            free_bytes,
            self._pending_bytes(),
            self._tombstone,
            force=force,
        )
        progress.stage = CopyStage.FILES
        with context.memory.hold(MemoryPart.COPIES, PIECES * context.options.copy_chunk_bytes):
            for file in offer.files:
                await self._retry(partial(self._fetch_file, offer.session, file))
        return offer

    async def _begin(self, min_index: int, force: bool) -> CopyOffer:
        """Begin a session when its files fit into `copy_staged_bytes`; no session is held until then."""
        begin = partial(self._source.begin, self._group, min_index=min_index, force=force)
        while True:
            self.offer = offer = await self._retry(begin)
            if self._quota.admit(self._group, offer.size_bytes):
                return offer
            log.info("the copy of %s waits: other copies use all of copy_staged_bytes", self._group)
            await ignore_errors(self._source.hold(offer.session, end=True))
            while not self._quota.admit(self._group, offer.size_bytes):
                await self._context.env.tasks.sleep_ms(PAUSE_MS)

    async def _files_and_log(self, force: bool) -> CopyOffer:
        offer = await self._files(0, force)
        self.progress.stage = CopyStage.LOG
        self.progress.last = offer.flush_op
        work = BackgroundSteps()
        try:
            while await self._retry(partial(self._fetch_entries, offer, work)):
                pass
            await work.wait(WRITE)
        finally:
            await work.wait_all()
        check_reach(offer, self.last_entry(offer)[0], self._tombstone)
        return offer

    async def _retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Retry while the source does not answer, until `copy_retry_ms` after its last response."""
        self._last_response_us = self._context.env.clock.monotonic_us()
        while True:
            try:
                return await request()
            except _SOURCE_AWAY as err:
                silent_us = self._context.env.clock.monotonic_us() - self._last_response_us
                if silent_us >= self._context.options.copy_retry_ms * 1000:
                    raise
                log.info("the copy of %s waits for its source: %s", self._group, err)
                self.progress.retries += 1
                await self._context.env.tasks.sleep_ms(PAUSE_MS)

    async def _fetch_file(self, session: str, file: CopyFile) -> None:
        """Fetch a file, from the first byte that is not on disk yet; synced on return."""
        done = await run_blocking(self._context, Lane.COMPUTE, self._staging.start, file)
        work = BackgroundSteps()
        try:
            async with aclosing(self._source.read(session, file.name, done)) as pieces:
                async for piece in pieces:
                    done += len(piece)
                    if done > file.size_bytes:
                        raise Corrupt(f"{file.name} is longer than the {file.size_bytes} offered")
                    if await work.wait(WRITE):
                        await work.wait(SYNC)
                        work.start(
                            SYNC, run_blocking(self._context, Lane.COMPUTE, self._staging.sync)
                        )
                    work.start(WRITE, self._put(piece))
                    await self._limit_rate(len(piece))
            await work.wait(WRITE)
            await work.wait(SYNC)
            if done < file.size_bytes:
                raise Unavailable(f"{file.name} ended after {done} of {file.size_bytes} bytes")
            await run_blocking(self._context, Lane.COMPUTE, self._staging.finish)
        finally:
            try:
                await work.wait_all()
            finally:
                self._staging.close()

    async def _put(self, piece: Buffer) -> bool:
        due = await run_blocking(self._context, Lane.COMPUTE, self._staging.append, piece)
        self.progress.bytes_done += len(piece)
        self._last_response_us = self._context.env.clock.monotonic_us()
        return due

    async def _fetch_entries(self, offer: CopyOffer, work: BackgroundSteps) -> bool:
        """Fetch the next entries and start writing them to the log; return False at the end of the log."""
        found = await self._source.entries(offer.session, self.progress.last)
        if not found:
            return False
        last, stamp = check_entries(found, *self.last_entry(offer))
        await work.wait(WRITE)
        self.logged = True
        self._throttle.writers.note_own_round()
        work.start(WRITE, append_to_log(self._context, self._group, found, None, work))
        size = sum(len(e.payload) for e in found)
        self.last = last, stamp
        self.configs += [e for e in found if e.kind is EntryKind.CONFIG]
        self.progress.last = last
        self.progress.log_bytes += size
        self._last_response_us = self._context.env.clock.monotonic_us()
        await self._limit_rate(size)
        return True

    async def _limit_rate(self, size: int) -> None:
        """Wait as long as the rate limit requires after `size` bytes."""
        assert self.offer is not None, "bytes without a session"
        await _wait(self._context, self._source, self.offer, self._throttle.spend(size))

    def last_entry(self, offer: CopyOffer) -> tuple[OpId, int]:
        """Return op id and stamp of the last entry that the copy has."""
        return self.last or (offer.flush_op, offer.stamp)


async def _wait(
    context: ReplicaContext, source: CopySource, offer: CopyOffer, left_ms: float
) -> None:
    """Wait, and keep the source's session alive meanwhile."""
    while left_ms > 0:
        step_ms = min(left_ms, max(PAUSE_MS, offer.ttl_ms / 4))
        await context.env.tasks.sleep_ms(step_ms)
        left_ms -= step_ms
        if left_ms > 0:
            await ignore_errors(source.hold(offer.session))
