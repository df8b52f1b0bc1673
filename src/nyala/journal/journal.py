"""Journal: apply, read, flush, merge; satisfies the replica's state-machine protocol by shape.

Lanes: `apply`, reads, `prepare_*`, the installs and `close` in APPLY; builds in COMPUTE; the rest anywhere.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from nyala.common.errors import Unavailable
from nyala.common.ids import CommittedOperation
from nyala.env.files import Files
from nyala.journal import manifest, merge, steps
from nyala.journal.data_file import DataFileWriter
from nyala.journal.files import Build, JournalFiles
from nyala.journal.manifest import JournalInfo, JournalManifest
from nyala.journal.state import JournalState
from nyala.journal.unflushed import Unflushed
from nyala.storage.checkpoint import Checkpoint
from nyala.storage.disk_space import require_space
from nyala.storage.flush_point import LogPoint, StoredFlushPoint

KEPT_DIGESTS = 1024
"""Last changes after which the digest of the content is kept."""


class JournalMachine:
    """State machine of a journal: named logs and a key space. Use `create` or `open`."""

    def __init__(self, files: Files, directory: str, current: JournalManifest) -> None:
        self._files = JournalFiles(files, directory, current)
        self._file_system = files
        self._directory = directory
        self._info = current.info
        self._unflushed = Unflushed()
        self._frozen: Unflushed | None = None
        self._broken = False
        logs, keys = self._files.read()
        self.state = JournalState(
            self._unflushed,
            logs=logs,
            keys=keys,
            last=current.last,
            limit_bytes=current.info.limit_bytes,
        )
        self._last_stamp = current.flush_point.stamp
        self._digests: deque[tuple[int, int, int]] = deque(maxlen=KEPT_DIGESTS)
        self._note_digest()

    @classmethod
    def create(cls, files: Files, directory: str, info: JournalInfo) -> "JournalMachine":
        """Make the files of an empty journal, durable on return.

        Args:
            files: the file system.
            directory: directory of the journal.
            info: its identity and definition.

        Raises:
            AlreadyPresent: there is a journal in the directory.
        """
        return cls(files, directory, manifest.create(files, directory, info))

    @classmethod
    def open(cls, files: Files, directory: str) -> "JournalMachine":
        """Open what `JOURNAL` names; the group's log is replayed from after `flush_point.op`.

        Raises:
            Corrupt: a file is missing or damaged.
        """
        current = manifest.load(files, directory)
        files.sync_dir(directory)  # else a power cut undoes what was read
        opened = cls(files, directory, current)
        manifest.remove_unreferenced(files, directory, current)
        return opened

    @property
    def info(self) -> JournalInfo:
        """Identity and definition, as of the last applied entry."""
        return self._info

    @property
    def flush_point(self) -> StoredFlushPoint:
        """Flush point of the group's log that the files hold."""
        return self._files.manifest.flush_point

    @property
    def data_bytes(self) -> int:
        """Bytes on disk, and in memory until they are flushed."""
        return sum(self._files.sizes) + self.unflushed_bytes()

    @property
    def resident_bytes(self) -> int:
        """Memory of the logs and keys."""
        return self.state.resident_bytes

    def unflushed_bytes(self) -> int:
        """Memory that a flush would free."""
        frozen = self._frozen
        return self._unflushed.size_bytes + (0 if frozen is None else frozen.size_bytes)

    def digest_at(self, stamp: int) -> tuple[int, int] | None:
        """Return the items and the digest of the content as of a hybrid time; None: too long ago. Any lane.

        The caller has waited until everything at or below the time is applied.
        """
        for at, items, digest in reversed(self._digests.copy()):  # a copy: lane APPLY adds to it
            if at <= stamp:
                return items, digest
        return None

    def _note_digest(self) -> None:
        self._digests.append((self._last_stamp, self.state.items, self.state.digest))

    def apply(self, operations: Sequence[CommittedOperation]) -> list[bytes]:
        """Apply committed operations in order; return an encoded result (`steps.decode_result`) each.

        Raises:
            Corrupt: a payload does not decode; the journal is of no use any more.
        """
        assert not self._broken, f"journal {self._info.name} failed before"
        self._broken = True
        results = []
        for operation in operations:
            assert operation.stamp > self._last_stamp, f"entry {operation.id} out of order"
            self._last_stamp = operation.stamp
            results.append(self._apply(steps.decode(operation.payload), operation.stamp))
            self._note_digest()  # of each, since other replicas group them otherwise
        self._broken = False
        return results

    def _apply(self, operation: steps.Step | steps.Batch | steps.Definition, stamp: int) -> bytes:
        if isinstance(operation, steps.Step):
            return steps.encode_result(self.state.apply(operation, stamp))
        if isinstance(operation, steps.Batch):
            return steps.encode_results([self.state.apply(s, stamp) for s in operation.steps])
        if operation.version > self._info.version:
            self._info = replace(
                self._info,
                version=operation.version,
                name=operation.name,
                limit_bytes=operation.limit_bytes,
            )
            self.state.limit_bytes = operation.limit_bytes
        return steps.encode_result(steps.Done(()))

    # ---- files -------------------------------------------------------------------------------------

    def prepare_flush(self, flush_point: LogPoint) -> Build | None:
        """Fix a flush point at what has been applied.

        Args:
            flush_point: the last entry applied, its stamp, and the replica's own state then.

        Returns:
            A build for lane COMPUTE, which returns an install for lane APPLY; None when the files have this
            flush point already, or a flush or merge is under way.
        """
        assert flush_point.stamp >= self._last_stamp, (
            f"flush point {flush_point.op} below what was applied"
        )
        self._last_stamp = flush_point.stamp
        if self._files.busy or flush_point.op == self.flush_point.op:
            return None
        flushed = self._freeze()
        number = self._files.new_number() if flushed else None
        before = self._files.manifest
        after = replace(
            before,
            info=self._info,
            flush_point=StoredFlushPoint(flush_point.op, flush_point.stamp, flush_point.extra),
            last=self.state.last,
            next_file=self._files.next_number,
            files=(*before.files, *(() if number is None else (number,))),
        )

        def write() -> dict[int, int]:
            return {} if number is None else {number: self._write(number, flushed)}

        def install() -> None:
            self._frozen = None

        return self._files.replacement(write, after, install)

    def compaction_score(self, horizon: int | None = None) -> float:
        """Return the score of a merge; 0: none is worth it. The horizon is ignored: there is no history."""
        return 0.0 if self._files.busy else float(self._choose_merge())

    def prepare_compaction(
        self, horizon: int | None = None, *, force: bool = False, reserve_bytes: int = 0
    ) -> Build | None:
        """Choose data files to merge. Returns as `prepare_flush`; None also if no merge is worth its cost.

        Args:
            horizon: ignored; a journal has no history.
            force: merge all of them, if that changes anything.
            reserve_bytes: disk space to leave free; without it the build fails with ENOSPC.
        """
        files = self._files
        numbers = files.manifest.files
        count = len(numbers) if force else self._choose_merge()
        if files.busy or not count:
            return None
        chosen, number = numbers[len(numbers) - count :], files.new_number()
        kept = numbers[: len(numbers) - count]
        after = replace(files.manifest, next_file=files.next_number, files=(*kept, number))

        need_bytes = sum(files.sizes[len(numbers) - count :])

        def write() -> dict[int, int]:
            require_space(self._file_system, self._directory, need_bytes, reserve_bytes)
            paths = [files.path(n) for n in chosen]
            target = files.path(number)
            return {number: merge.merge(self._file_system, paths, target, base=not kept)}

        return files.replacement(write, after, lambda: None)

    def _choose_merge(self) -> int:
        return merge.choose(self._files.sizes, self.state.size_bytes)

    def readable(self) -> JournalState:
        """Return the state as of the last applied entry. Lane APPLY.

        Raises:
            Unavailable: an operation failed, perhaps in the middle of its changes, or the journal is closed.
        """
        if self._broken:
            raise Unavailable(
                f"journal {self._info.name!r} failed or was closed here: its replica failed or is being "
                "deleted; ask another replica"
            )
        return self.state

    def checkpoint(self) -> Checkpoint:
        """Hold the files that make the journal at its flush point, for a copy of them."""
        return self._files.checkpoint()

    def close(self) -> None:
        """Release memory; durable state stays."""
        self._broken = True
        self.state = JournalState(Unflushed(), limit_bytes=0)

    def _freeze(self) -> Unflushed:
        """Give the next changes a new buffer; return what is to be flushed now."""
        older, newer = self._frozen, self._unflushed
        if older is not None:  # its flush failed
            older.absorb(newer)
            newer = older
        self._frozen = newer
        self._unflushed = Unflushed()
        self.state.observer = self._unflushed
        return newer

    def _write(self, number: int, unflushed: Unflushed) -> int:
        writer = DataFileWriter(self._file_system, self._files.path(number))
        try:
            return unflushed.write(writer)
        finally:
            writer.close()
