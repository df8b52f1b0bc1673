"""Tablet: apply, view, flush, compact; satisfies the replica's state-machine protocol by shape.

Lanes: `apply`, `prepare_*`, the installs and `close` in APPLY; builds in COMPUTE; the rest anywhere. There
are no locks: lane APPLY publishes an immutable view by one assignment, and readers take it.
"""

from collections.abc import Generator, Mapping, Sequence
from functools import partial

from nyala.common.errors import Unavailable
from nyala.common.ids import CommittedOperation, PreparedTransaction
from nyala.common.keys.hashing import hash_bytes, hash_one
from nyala.env.files import Files
from nyala.storage.checkpoint import Checkpoint
from nyala.storage.flush_point import LogPoint, StoredFlushPoint
from nyala.storage.steps import to_end
from nyala.tablet.files import diskrowset, manifest, replicated_ops, transaction_ops
from nyala.tablet.files.columns import compression_of
from nyala.tablet.files.manifest import Manifest, TabletInfo
from nyala.tablet.files.stored_stages import StageFiles, StoredStages
from nyala.tablet.maintain import rewrite
from nyala.tablet.maintain.maintenance import Build, Figures, Maintenance
from nyala.tablet.read.view import View
from nyala.tablet.rows.rowset import HashKeys
from nyala.tablet.write.apply import apply_writes
from nyala.tablet.write.apply_schema import apply_schema
from nyala.tablet.write.apply_transactions import apply_transaction
from nyala.tablet.write.op_runs import runs
from nyala.tablet.write.stages import Stages
from nyala.tablet.write.store import Store

_RANGE_DROPPED = replicated_ops.encode_result(
    0, [replicated_ops.RowError(0, replicated_ops.RANGE_DROPPED, "the tablet's range was dropped")]
)
_INDEX_SEED = 0x6E79616C61696478  # "nyalaidx": no partition level uses it


class Tablet:
    """The columnar store of one tablet. Use `create` or `open`."""

    def __init__(
        self, files: Files, directory: str, current: Manifest, hash_keys: HashKeys
    ) -> None:
        self._place = rewrite.FileTarget(files, directory, hash_keys)
        disks = diskrowset.open_all(files, directory, current)
        stages = Stages(current.stages, current.flush_point.stamp)
        self._store = Store(
            current.info, current.index_seed, hash_keys, disks, current.retired, stages
        )
        self._maintenance = Maintenance(self._place, self._store, current, self._publish)
        self._last_stamp = current.flush_point.stamp
        self._broken = self._closed = False
        self._publish()

    @classmethod
    def create(
        cls, files: Files, directory: str, info: TabletInfo, *, hash_keys: HashKeys = hash_bytes
    ) -> "Tablet":
        """Create the files of an empty tablet, durable on return.

        Args:
            files: the file system.
            directory: is made.
            info: what the tablet is.
            hash_keys: the index hash; the same at every opening.

        Raises:
            AlreadyPresent: there is a tablet in the directory.
            InvalidArgument: an option that this build does not know.
        """
        compression_of(info.options)
        seed = hash_one(info.table_id.encode(), _INDEX_SEED)
        return cls(files, directory, manifest.create(files, directory, info, seed), hash_keys)

    @classmethod
    def open(cls, files: Files, directory: str, *, hash_keys: HashKeys = hash_bytes) -> "Tablet":
        """Open the manifest's files; the log is replayed after `flush_point.op`.

        Args:
            files: file system.
            directory: directory of the tablet.
            hash_keys: the index hash.

        Raises:
            Corrupt: a file is missing or damaged. Column blocks are verified when first touched.
        """
        current = manifest.load(files, directory)
        files.sync_dir(directory)  # else a power failure could undo it after it was read
        manifest.check_files(files, directory, current)
        opened = cls(files, directory, current, hash_keys)
        manifest.remove_unreferenced(files, directory, current)
        return opened

    @property
    def info(self) -> TabletInfo:
        """Identity and schema of the tablet, as of the last applied entry."""
        return self._store.info

    @property
    def flush_point(self) -> StoredFlushPoint:
        """Flush point of the log that the files hold."""
        return self._maintenance.manifest.flush_point

    @property
    def horizon(self) -> int:
        """The earliest time that can still be read."""
        return self._maintenance.manifest.horizon

    @property
    def last_stamp(self) -> int:
        """Hybrid time of the last applied entry, or of the flush point. Any lane."""
        return self._last_stamp

    @property
    def store(self) -> Store:
        """Rowsets as of what has been applied. Lane APPLY."""
        return self._store

    @property
    def rows(self) -> int:
        """Number of live rows as of the last applied entry."""
        return self._store.live

    @property
    def data_bytes(self) -> int:
        """Bytes on disk and in memory; rows that are built while they are staged do not count twice."""
        store, stages = self._store, self._store.stages
        on_disk = sum(d.file_bytes for d in store.disks) + stages.file_bytes
        return on_disk + store.memory_bytes() - stages.built_bytes

    @property
    def stages(self) -> Stages:
        """Staged transactions as of what has been applied. Lane APPLY, except for what says otherwise."""
        return self._store.stages

    @property
    def prepared(self) -> Mapping[bytes, PreparedTransaction]:
        """Prepared transactions as of what has been applied."""
        return self._store.stages.prepared

    def verify_stages(self) -> None:
        """Read the staged batches of a tablet that was just opened.

        Raises:
            Corrupt: a file is damaged.
        """
        self._store.stages.verify(StageFiles(self._place.files, self._place.directory))

    def unflushed_bytes(self) -> int:
        """Memory that a flush would free."""
        return self._store.memory_bytes()

    def view(self) -> View:
        """Return an immutable view as of the last applied entry.

        Raises:
            Unavailable: the tablet is closed.
        """
        if self._closed:
            raise Unavailable(
                f"tablet {self.info.tablet_id} was closed here: its replica failed or is being deleted; ask "
                "another replica"
            )
        return self._view

    def apply(self, operations: Sequence[CommittedOperation]) -> list[bytes]:
        """Apply committed operations in order; return the encoded result of each (`replicated_ops`).

        Raises:
            Corrupt: a payload does not decode, or a file is damaged; the tablet cannot be used any more.
        """
        return to_end(self.apply_in_steps(operations))

    def apply_in_steps(
        self, operations: Sequence[CommittedOperation]
    ) -> Generator[None, None, list[bytes]]:
        """Apply operations as `apply`, in steps of bounded size.

        Between the steps readers see nothing of what is applied: they may not read its commit time yet.
        Maintenance goes on, but no flush begins: there is no flush point within an operation.
        """
        assert not self._broken, f"tablet {self.info.tablet_id} failed before"
        self._broken = True
        self._last_stamp = _in_order(operations, self._last_stamp)
        results: list[bytes] = []
        for run in runs(operations):
            results += yield from self._apply(run)
        diskrowset.check(self._place.files, self._store.disks)
        self._publish()
        self._broken = False
        return results

    def prepare_flush(self, flush_point: LogPoint) -> Build | None:
        """Fix a flush point at the last applied entry.

        Args:
            flush_point: the last entry applied, its stamp, and the replica's own state then.

        Returns:
            A build for lane COMPUTE, which returns an install for lane APPLY; None when the files
            represent this flush point already, or a flush or compaction is running.
        """
        assert flush_point.stamp >= self._last_stamp, (
            f"flush point {flush_point.op} below what was applied"
        )
        self._last_stamp = flush_point.stamp
        return self._maintenance.prepare_flush(flush_point)

    def prepare_compaction(
        self, horizon: int | None = None, *, force: bool = False, reserve_bytes: int = 0
    ) -> Build | None:
        """Choose disk rowsets to compact. Returns as `prepare_flush`; None also if none has a benefit.

        Args:
            horizon: history that ended at or below it is removed; None: all is kept. Never above a time that
                may still be read.
            force: compact all of them, if that changes anything.
            reserve_bytes: disk space to leave free; without it the build fails with ENOSPC.
        """
        return self._maintenance.prepare_compaction(
            horizon, force=force, reserve_bytes=reserve_bytes
        )

    def compaction_score(self, horizon: int | None) -> float:
        """Return the score of the best compaction; 0: none has a benefit, or one is running. Any lane."""
        return self._maintenance.compaction_score(horizon)

    def figures(self) -> Figures:
        """Return totals of flushes and compactions. Any lane."""
        return self._maintenance.figures(self._last_stamp)

    def checkpoint(self) -> Checkpoint:
        """Hold the files of the tablet at its flush point, for a copy of them. Lane APPLY."""
        return self._maintenance.checkpoint()

    def close(self) -> None:
        """Release memory and mapped files once the last view is gone; durable state stays."""
        self._broken = self._closed = True
        known = Stages(StoredStages(), 0)
        self._store = Store(self.info, 0, self._place.hash_keys, (), self._store.retired, known)
        self._publish()

    def _apply(self, run: Sequence[CommittedOperation]) -> Generator[None, None, list[bytes]]:
        store = self._store
        if transaction_ops.is_transaction(run[0].payload):
            files = StageFiles(self._place.files, self._place.directory)
            results: list[bytes] = []
            for operation in run:
                results.append((yield from apply_transaction(store, operation, files)))
            return results
        store.stages.written = run[-1].stamp
        if replicated_ops.is_schema(run[0].payload):
            return [apply_schema(store, o.payload, o.stamp) for o in run]
        if store.info.retired_at:
            return [_RANGE_DROPPED] * len(run)
        return apply_writes(store, run)

    def _publish(self) -> None:
        self._view = View(
            self.info,
            self._maintenance.manifest.horizon,
            self._store.views(),
            seed=self._maintenance.manifest.index_seed,
            hash_keys=self._place.hash_keys,
            check=partial(diskrowset.check, self._place.files, self._store.disks),
            retired=self._store.retired,
        )


def _in_order(operations: Sequence[CommittedOperation], last_stamp: int) -> int:
    """Return the last of the operations' stamps, which grow."""
    for operation in operations:
        assert operation.stamp > last_stamp, (
            f"entry {operation.id} stamped {operation.stamp} after {last_stamp}"
        )
        last_stamp = operation.stamp
    return last_stamp
