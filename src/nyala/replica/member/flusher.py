"""Flushes and compactions of one replica, one at a time, and its anchor in the log.

A flush is due when unflushed rows, or the log that they need, exceed their limit. Entries up to the files'
flush point are retained only for members that lag behind: every replica retains what they need, since any may
become leader.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nyala.common.errors import Corrupt
from nyala.common.ids import TabletId
from nyala.env.tasks import Lane, shielded
from nyala.raft.messages import Entry
from nyala.raft.node import RaftNode
from nyala.replica.context import ReplicaContext
from nyala.replica.member.applier import Applier
from nyala.replica.memory import MemoryPart
from nyala.replica.status import MaintenanceStats
from nyala.wal.segments.allocator import FULL

log = logging.getLogger(__name__)

Maintenance = Callable[[], Callable[[], Callable[[], None]] | None]
"""`prepare` (lane APPLY) -> None, or `build` (lane COMPUTE) -> `install` (lane APPLY)."""

Fail = Callable[[BaseException], None]
"""Makes a replica FAILED."""

ENTRY_OVERHEAD_BYTES = 64
RETRY_MS = 1000
"""Pause after the first failed flush, and after each one on a full disk, in milliseconds; else it doubles."""
MAX_RETRY_MS = 8000
"""Maximum pause after a failed flush, in milliseconds."""
FLUSH_TRIES = 10
"""Number of consecutive failed flushes, on a disk that is not full, after which a replica is FAILED: the log
would have to retain everything that is not flushed.
"""


@dataclass(slots=True)
class _Cost:
    """Operations of one kind. `began_us`: of the one that is under way; None: none is."""

    kind: str
    began_us: int | None = None
    done: int = 0
    us: int = 0


class Flusher:
    """Flushes and compactions of one replica. On the loop only.

    Args:
        context: the process.
        group: group of the replica.
        node: its Raft node, which knows the entries that other members need.
        applier: has the state machine and the applied position.
        fail: makes this replica FAILED.
    """

    def __init__(
        self,
        context: ReplicaContext,
        group: TabletId,
        node: RaftNode,
        applier: Applier,
        fail: Fail,
    ) -> None:
        self._context = context
        self._group = group
        self._node = node
        self._applier = applier
        self._fail = fail
        self._lock = asyncio.Lock()
        self._log_bytes = 0
        self._log_bytes_at_start = 0  # of the flush or compaction that holds the lock
        self._flushing = False
        self._flush_frees_log = False
        self._peers_retain_index = 1  # first index that another member may need, as last known
        self._released = 0  # entries before this index are not retained for other members
        self._too_long = False  # the limit was exceeded: a witness' log is collected as others
        self._closed = False
        self._refused = 0  # consecutive flushes that failed
        self._flushes = _Cost("flush")
        self._compactions = _Cost("compaction")

    @property
    def _keeps_all(self) -> bool:
        """True for a witness that will become a data replica: it retains its whole log, within the limit."""
        return self._node.view.keeps_log and not self._too_long

    def maintenance_stats(self) -> MaintenanceStats:
        """Return the cost of flushes and compactions."""
        flushes, compactions, clock = self._flushes, self._compactions, self._context.env.clock
        return MaintenanceStats(
            *_running(clock.monotonic_us(), flushes, compactions),
            self._log_bytes,
            flushes.done, flushes.us,
            compactions.done, compactions.us,
        )  # fmt: skip

    async def compact(self, prepare: Maintenance) -> bool:
        """Run one compaction; return whether there was anything to do. Raises as `flush`."""
        return await self._run(prepare, self._compactions)

    async def _run(self, prepare: Maintenance, cost: "_Cost") -> bool:
        async with self._lock:
            self._log_bytes_at_start = self._log_bytes
            cost.began_us = self._context.env.clock.monotonic_us()
            try:
                # A cancelled caller (the target of a copy has ended) must not leave prepared work without
                # its install: the state machine would refuse all further flushes and compactions.
                return not self._closed and await shielded(self._work(prepare, cost))
            finally:
                cost.began_us = None

    async def _work(self, prepare: Maintenance, cost: "_Cost") -> bool:
        tasks, clock = self._context.env.tasks, self._context.env.clock
        build = await tasks.run(Lane.APPLY, prepare)
        if build is None:
            return False
        began_us = clock.monotonic_us()
        try:
            install = await tasks.run(Lane.COMPUTE, build)
        except Corrupt as err:  # its files are damaged
            self._fail(err)
            raise
        try:
            await tasks.run(Lane.APPLY, install)
        except OSError:  # nothing changed
            raise
        except Exception as bug:  # memory may differ from the files
            self._fail(bug)
            raise
        cost.done += 1
        cost.us += clock.monotonic_us() - began_us
        self.count()
        self._context.counters.flushed.inc()
        self._context.schedule(self._group)  # the log may be able to release entries
        return True

    async def flush(self) -> bool:
        """Flush up to the last applied entry; return whether files changed. Durable on return.

        Raises:
            OSError: the disk failed; nothing changed. After `FLUSH_TRIES` in a row the replica is FAILED.
        """
        if self._keeps_all:
            self._log_bytes = 0
            return False
        try:
            done = await self._run(self._applier.prepare_flush, self._flushes)
        except OSError as err:
            self._refused += err.errno not in FULL
            if self._refused == FLUSH_TRIES:
                self._fail(err)
            raise
        # Also if nothing was flushed: another attempt would not flush more.
        self._refused = 0
        self._log_bytes -= self._log_bytes_at_start
        if not done:
            self.count()  # memory may be free all the same
        return done

    def applied(self, entries: Sequence[Entry]) -> None:
        """Count applied entries, and flush in the background if that is due."""
        self._log_bytes += sum(len(e.payload) + ENTRY_OVERHEAD_BYTES for e in entries)
        if self._is_due():
            self.flush_soon()

    def _is_due(self) -> bool:
        options, rows = self._context.options, self.count()
        return self._log_bytes >= options.flush_log_bytes or rows >= options.flush_bytes

    def count(self) -> int:
        """Account for the unflushed rows in the memory tracker; return their bytes."""
        rows = self._applier.machine.unflushed_bytes()
        self._context.memory.set_size(MemoryPart.ROWS, self._group, rows)
        return rows

    def flush_soon(self) -> None:
        """Flush in the background, unless a flush is in progress."""
        if not self._flushing and not self._closed:
            self._flushing = True
            self._context.env.tasks.spawn(self._flush(), f"flush {self._group}")

    async def _flush(self) -> None:
        again, pause_ms = False, 0
        try:
            try:
                again = await self.flush() and self._is_due()  # rows were applied meanwhile
            except OSError as err:  # a full disk may have room later; the log retains all entries
                doublings = 0 if err.errno in FULL else self._refused - 1
                pause_ms = min(RETRY_MS << doublings, MAX_RETRY_MS)
                log.warning(
                    "%s was not flushed, trying again in %d ms: %s", self._group, pause_ms, err
                )
            if pause_ms:  # not while the error keeps what the attempt used
                await self._context.env.tasks.sleep_ms(pause_ms)
                again = True
        except Exception as err:  # a bug of the state machine fails this replica, not the server
            self._fail(err)
        finally:
            self._flushing = False
        if again:
            self.flush_soon()

    def anchor(self) -> None:
        """Set the anchor: the first entry that this replica or another member of its group needs.

        Entries that no flush would release may be moved to the log's end. If a follower lags behind the
        files' flush point, one entry more is retained: it gives the term that the first one follows.
        Otherwise the flush point gives it, and an idle group retains nothing.
        """
        flushed = self._applier.machine.flush_point.op.index
        unflushed = flushed + 1
        # Until a leader is known, any member may need the entries of this log.
        self._peers_retain_index = self._node.view.retain_index or self._peers_retain_index
        retained = min(unflushed, max(self._peers_retain_index, self._released))
        applied = self._applier.applied.index
        self._flush_frees_log = retained == unflushed and flushed < applied and not self._keeps_all
        first = retained if retained == unflushed else max(1, retained - 1)
        own = max(unflushed, applied + 1) if self._keeps_all else unflushed
        movable = not self._flush_frees_log
        self._context.wal.set_anchor(self._group, first, own, movable=movable)

    def release_log(self) -> None:
        """Let the next `anchor` release entries retained for lagging members: the slowest ones, or all.

        A new leader retains entries for members that have not replied to it yet. A witness that will become a
        data replica then receives the data from files of a later flush point.
        """
        if self._keeps_all:
            log.warning(
                "log limit reached: the witness of %s no longer retains its whole log", self._group
            )
            self._too_long = True
            return
        unflushed, before = self._applier.machine.flush_point.op.index + 1, self._released
        self._node.mark_for_copy(unflushed)
        retain_index = self._node.view.retain_index
        known = self._node.is_leader and retain_index > 0
        self._released = min(unflushed, retain_index) if known else unflushed
        if self._released > max(before, self._peers_retain_index):
            log.warning(
                "log limit reached: entries that lagging members of %s need are released; these members "
                "need a tablet copy",
                self._group,
            )

    def flush_if_pinning(self) -> bool:
        """Flush if that releases the oldest segment, which this group pins; return whether it does."""
        if self._flush_frees_log:
            self.flush_soon()
        return self._flush_frees_log

    async def close(self) -> None:
        """Wait for the flush or compaction in progress; no further one starts."""
        self._closed = True
        async with self._lock:
            return


def _running(now_us: int, *costs: _Cost) -> tuple[str, int]:
    """Return the kind of operation that is under way, and for how long; ("", 0): none is."""
    return next(((c.kind, now_us - c.began_us) for c in costs if c.began_us is not None), ("", 0))
