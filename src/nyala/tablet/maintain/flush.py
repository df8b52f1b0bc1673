"""Flush: memory becomes a disk rowset, what ended elsewhere becomes `del` files, at one cut of the log."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from nyala.storage.cut import FlushedCut, LogCut
from nyala.tablet.files import manifest, marks
from nyala.tablet.files.diskrowset import DiskRowSet
from nyala.tablet.files.manifest import Manifest, RowSetEntry
from nyala.tablet.files.marks import Rows, Stamps
from nyala.tablet.maintain import rewrite
from nyala.tablet.write.store import Store

MAX_MARK_FILES = 8
"""A rowset with so many `del` files gets one that replaces them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Marked:
    """Versions of one disk rowset that ended since the last manifest.

    Attributes:
        disk: the rowset.
        parts: how many parts of `marks.pending` this is.
        rows: that ended.
        stamps: when.
        whole: these are all its marks: older files are not needed any more.
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
        cut: position in the log of the last applied entry.
        number: gives the numbers of new files.
    """

    def __init__(
        self,
        place: rewrite.FileTarget,
        store: Store,
        current: Manifest,
        cut: LogCut,
        number: Callable[[], int],
    ) -> None:
        store.freeze()
        self._place = place
        self._store = store
        self._base = replace(
            current,
            cut=FlushedCut(cut.op, cut.stamp, cut.extra),
            info=store.info,
            retired=store.retired,
        )
        self._inputs = [rewrite.RewriteInput.of(m, cut.stamp) for m in store.frozen]
        self._numbers = (number(), number(), 0, 0)
        self._marked = [(_marked(d, cut.stamp), number()) for d in store.disks if d.marks.pending]
        self._next_file = number()

    def build(self) -> rewrite.Built:
        """Write all files and make them durable. Lane COMPUTE.

        Raises:
            OSError: nothing has changed; a later flush writes all again.
        """
        entries = {e.number: e for e in self._base.rowsets}
        for marked, number in self._marked:
            entries[marked.disk.entry.number] = self._write(marked, number)
        base = replace(self._base, rowsets=tuple(entries.values()), next_file=self._next_file)
        plan = rewrite.RewritePlan(0, apart=False, position=len(entries), numbers=self._numbers)
        return rewrite.build(self._place, base, self._inputs, plan)

    def _write(self, marked: _Marked, number: int) -> RowSetEntry:
        path = f"{self._place.directory}/{manifest.marks_name(number)}"
        marks.write(self._place.files, path, marked.rows, marked.stamps)
        entry = marked.disk.entry
        older = () if marked.whole else entry.marks
        return replace(entry, marks=(*older, number))

    def install(self, built: rewrite.Built) -> None:
        """Switch to the new files. Lane APPLY."""
        rewrite.switch(self._place, self._store, built)
        for marked, _ in self._marked:
            marked.disk.marks.written(marked.parts)


def _marked(disk: DiskRowSet, stamp: int) -> _Marked:
    parts = len(disk.marks.pending)
    whole = len(disk.entry.marks) >= MAX_MARK_FILES
    rows, stamps = disk.marks.ended_by(stamp) if whole else marks.joined(disk.marks.pending)
    return _Marked(disk, parts, rows, stamps, whole)
