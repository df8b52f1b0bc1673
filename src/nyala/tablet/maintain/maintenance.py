"""Background work beside applying: one flush or compaction at a time, and the manifest that it replaces.

Prepare and install run in lane APPLY, build in lane COMPUTE. Versions that end during a build are carried
over at its install; one build at a time keeps that simple. A flush that is due during a compaction waits.
Work that fails removes its files at once: it is tried again, and would fill the disk with them.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from nyala.common.hybrid_time import to_micros
from nyala.storage.checkpoint import Checkpoint, Holds
from nyala.storage.flush_point import LogPoint
from nyala.tablet.files import diskrowset
from nyala.tablet.files.manifest import Manifest, is_saved, names_of, remove_unreferenced
from nyala.tablet.maintain import compaction, flush, rewrite
from nyala.tablet.write.store import Store

Install = Callable[[], None]
Build = Callable[[], Install]


class _Work(Protocol):
    def build(self) -> rewrite.Built: ...

    def install(self, built: rewrite.Built) -> None: ...


@dataclass(frozen=True, slots=True)
class Figures:
    """Totals of flushes and compactions of a tablet, for metrics, pages and benchmarks.

    Attributes:
        rowsets: on disk.
        depth: maximum number of rowsets with live rows that may contain one key.
        versions: on disk.
        ended: number of these versions that are history.
        flushed: versions written by flushes since the tablet was opened.
        merged: versions written by compactions since then.
        file_bytes: size in bytes of all rowsets.
        memory_bytes: that a flush would free.
        history_s: seconds since the oldest version that is kept ended, by the stamps of the log.
    """

    rowsets: int
    depth: int
    versions: int
    ended: int
    flushed: int
    merged: int
    file_bytes: int
    memory_bytes: int
    history_s: float

    @property
    def amplification(self) -> float:
        """Write amplification: writes per flushed version, compactions included; 1 before the first."""
        return 1 + self.merged / self.flushed if self.flushed else 1.0


class Maintenance:
    """Flushes and compactions of one tablet.

    Args:
        place: where files are written.
        store: store of the tablet.
        manifest: as it is on disk.
        publish: lets readers see the store as it is now.

    Attributes:
        manifest: as it is on disk now.
    """

    def __init__(
        self,
        place: rewrite.FileTarget,
        store: Store,
        manifest: Manifest,
        publish: Callable[[], None],
    ) -> None:
        self.manifest = manifest
        self._place = place
        self._store = store
        self._publish = publish
        self._next_file = manifest.next_file
        self._holds = Holds()
        self._busy = False
        self._flushed = 0
        self._merged = 0

    def figures(self, stamp: int) -> Figures:
        """Return totals of the tablet's flushes and compactions. Any lane; may be slightly out of date.

        Args:
            stamp: timestamp of the last entry applied.
        """
        disks = self._store.disks
        ended = [d.end_stamps.ended for d in disks]
        oldest = min((e.first for e in ended if e.rows), default=stamp)
        return Figures(
            rowsets=len(disks),
            depth=compaction.depth(self._rowsets(None)),
            versions=sum(d.rows for d in disks),
            ended=sum(e.rows for e in ended),
            flushed=self._flushed,
            merged=self._merged,
            file_bytes=sum(d.file_bytes for d in disks),
            memory_bytes=self._store.memory_bytes(),
            history_s=max(0, to_micros(stamp) - to_micros(oldest)) / 1e6,
        )

    def compaction_score(self, horizon: int | None) -> float:
        """Return the score of the compaction that `prepare_compaction` would choose (`compaction.score`)."""
        if self._busy:
            return 0.0
        rowsets = self._rowsets(self._readable(horizon))
        return compaction.score(rowsets, compaction.choose(rowsets, force=False))

    def checkpoint(self) -> Checkpoint:
        """Hold the files of the manifest as it is now."""
        place = self._place
        return Checkpoint(place.files, place.directory, lambda: self.manifest, self._holds)

    def prepare_flush(self, flush_point: LogPoint) -> Build | None:
        """Fix a flush point; None when the files have it already, or a flush or compaction is running."""
        if self._busy:
            return None
        if flush_point.op == self.manifest.flush_point.op:
            self._store.stages.drop_built()
            return None
        first = self._next_file
        work = flush.Flush(self._place, self._store, self.manifest, flush_point, self._number)
        self._publish()
        return self._start(work, range(first, self._next_file))

    def prepare_compaction(
        self, horizon: int | None, *, force: bool, reserve_bytes: int
    ) -> Build | None:
        """Choose rowsets to compact; None: no benefit, or a flush or compaction is running.

        Args:
            horizon: history that ended at or below it is removed; None: all is kept.
            force: compact all of them, if that changes anything.
            reserve_bytes: disk space to leave free.
        """
        if self._busy:
            return None
        horizon = self._readable(horizon)
        numbers = compaction.choose(self._rowsets(horizon), force=force)
        chosen = [d for d in self._store.disks if d.entry.number in numbers]
        if not chosen:
            return None
        first = self._next_file
        work = compaction.Compaction(
            self._place, self._store, self.manifest, chosen, horizon, self._number, reserve_bytes
        )
        return self._start(work, range(first, self._next_file))

    def _readable(self, horizon: int | None) -> int | None:
        """Return a horizon that is at or below every prepare time, at which replicas still answer reads."""
        if horizon is None:
            return None
        earliest = self._store.stages.earliest
        held = self.manifest.stages.prepare_times
        return min([horizon, *held] if earliest is None else [horizon, earliest, *held])

    def _rowsets(self, horizon: int | None) -> list[compaction.Rowset]:
        flush_stamp = self.manifest.cut_stamp
        return [compaction.Rowset.of(d, horizon, flush_stamp) for d in self._store.disks]

    def _start(self, work: _Work, numbers: Iterable[int]) -> Build:
        self._busy = True
        disks = self._store.disks

        def build() -> Install:
            done = False
            try:
                built = work.build()
                diskrowset.check(self._place.files, disks)
                done = True
            except Exception:  # raised again
                self._discard(numbers)
                raise
            finally:
                self._busy = done
            return lambda: self._install(work, built, numbers)

        return build

    def _install(self, work: _Work, built: rewrite.Built, numbers: Iterable[int]) -> None:
        try:
            work.install(built)
        except OSError:  # raised again; a restart may find the new manifest only if it is there now
            with suppress(OSError):
                if not is_saved(self._place.files, self._place.directory, built.manifest):
                    self._discard(numbers)
            raise
        finally:
            self._busy = False
        self.manifest = built.manifest
        written = sum(r.rows for r in built.rowsets)
        if isinstance(work, flush.Flush):
            self._flushed += written
        else:
            self._merged += written
        self._publish()
        held = self._holds.names
        remove_unreferenced(self._place.files, self._place.directory, built.manifest, held)

    def _discard(self, numbers: Iterable[int]) -> None:
        """Remove the files with these numbers, as far as the disk allows: no manifest names them."""
        for name in (name for number in numbers for name in names_of(number)):
            with suppress(OSError):  # the next install, or the next start, removes it
                self._place.files.remove(f"{self._place.directory}/{name}")

    def _number(self) -> int:
        self._next_file += 1
        return self._next_file - 1
