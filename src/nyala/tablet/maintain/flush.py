"""Flush: memory becomes a disk rowset, what ended elsewhere becomes `del` files, at one flush point."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from nyala.storage.flush_point import LogPoint, StoredFlushPoint
from nyala.tablet.files import end_stamps, manifest, stored_stages
from nyala.tablet.files.diskrowset import DiskRowSet
from nyala.tablet.files.end_stamps import Rows, Stamps
from nyala.tablet.files.manifest import Manifest, RowSetEntry
from nyala.tablet.maintain import rewrite
from nyala.tablet.write.store import Store

MAX_DEL_FILES = 8
"""A rowset with so many `del` files gets one that replaces them."""


@dataclass(frozen=True, slots=True, eq=False)
class _NewEnds:
    """Versions of one disk rowset that ended since the last manifest.

    Attributes:
        disk: the rowset.
        parts: number of parts of `end_stamps.pending` these are.
        rows: rows that ended.
        stamps: end timestamp of each.
        whole: these are all its ends; they replace its older `del` files.
    """

    disk: DiskRowSet
    parts: int
    rows: Rows
    stamps: Stamps
    whole: bool


class Flush:
    """One flush: fixed in lane APPLY, built in lane COMPUTE, installed in lane APPLY.

    Args:
        place: where to write.
        store: its memory is written; later versions are added to a new memory rowset.
        current: the manifest now.
        flush_point: position in the log of the last applied entry.
        number: gives the numbers of new files.
    """

    def __init__(
        self,
        place: rewrite.FileTarget,
        store: Store,
        current: Manifest,
        flush_point: LogPoint,
        number: Callable[[], int],
    ) -> None:
        store.freeze()
        store.forget_dropped(current.horizon)
        self._place = place
        self._store = store
        self._batches = store.stages.unflushed()
        self._payloads = [b.payload for b in self._batches if b.payload is not None]
        self._stage_file = number() if self._batches else 0
        self._base = replace(
            current,
            flush_point=StoredFlushPoint(flush_point.op, flush_point.stamp, flush_point.extra),
            info=store.info,
            retired=store.retired,
            stages=store.stages.stored(self._stage_file),
        )
        self._inputs = [rewrite.RewriteInput.of(m, flush_point.stamp) for m in store.frozen]
        self._numbers = (number(), number(), 0, 0)
        self._new_ends = [
            (_new_ends(d, flush_point.stamp), number()) for d in store.disks if d.end_stamps.pending
        ]
        self._next_file = number()

    def build(self) -> rewrite.Built:
        """Write all files and make them durable. Lane COMPUTE.

        Raises:
            OSError: nothing has changed; a later flush writes all again.
        """
        entries = {e.number: e for e in self._base.rowsets}
        for ends, number in self._new_ends:
            entries[ends.disk.entry.number] = self._write(ends, number)
        if self._payloads:
            name = stored_stages.stage_name(self._stage_file)
            path = f"{self._place.directory}/{name}"
            stored_stages.write(self._place.files, path, self._payloads)
        base = replace(self._base, rowsets=tuple(entries.values()), next_file=self._next_file)
        plan = rewrite.RewritePlan(
            0, split_history=False, position=len(entries), numbers=self._numbers
        )
        return rewrite.build(self._place, base, self._inputs, plan)

    def _write(self, ends: _NewEnds, number: int) -> RowSetEntry:
        path = f"{self._place.directory}/{manifest.del_name(number)}"
        end_stamps.write(self._place.files, path, ends.rows, ends.stamps)
        entry = ends.disk.entry
        older = () if ends.whole else entry.del_files
        return RowSetEntry(entry.number, (*older, number))

    def install(self, built: rewrite.Built) -> None:
        """Switch to the new files. Lane APPLY."""
        rewrite.switch(self._place, self._store, built)
        for ends, _ in self._new_ends:
            ends.disk.end_stamps.drop_written(ends.parts)
        self._store.stages.written_to(self._stage_file, self._batches)


def _new_ends(disk: DiskRowSet, stamp: int) -> _NewEnds:
    parts = len(disk.end_stamps.pending)
    whole = len(disk.entry.del_files) >= MAX_DEL_FILES
    rows, stamps = end_stamps.joined(disk.end_stamps.pending)
    if whole:
        rows, stamps = disk.end_stamps.ended_by(stamp)
    return _NewEnds(disk, parts, rows, stamps, whole)
