"""End timestamps of a rowset's versions: a dense array in memory, sparse files on disk.

0 is live. Entries are written once, in lane APPLY, in place: a reader at a safe time sees either 0
or a later stamp for versions that end meanwhile, with the same result. Files contain none above their flush
point.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nyala.common.errors import Corrupt
from nyala.env.files import Files
from nyala.storage.sections import Sections, pack
from nyala.tablet.files.file_kind import FileKind
from nyala.tablet.kernels import key_index
from nyala.tablet.rows.lifetimes import Ended

Rows = npt.NDArray[np.int64]
Stamps = npt.NDArray[np.uint64]
_ROWS, _STAMPS = 1, 2


class EndStamps:
    """End timestamps of one rowset's versions.

    Attributes:
        ends: stamp at which each row ended, 0 for live ones; only lane APPLY writes it.
        recording: True: what is set is added to `pending`. Not needed in a memory rowset that still
            receives versions.
        pending: what was set since the manifest's flush point, in order; not in any file yet.
        pending_bytes: memory that the next file would free.
        ended: number and timestamps of the rows that have ended.
    """

    def __init__(self, ends: Stamps, *, recording: bool = True) -> None:
        self.ends = ends
        self.recording = recording
        self.pending: list[tuple[Rows, Stamps]] = []
        self.pending_bytes = 0
        self.ended = Ended.of(ends)

    def end(self, rows: Rows, stamps: Stamps) -> None:
        """Set the end timestamps of rows. Lane APPLY."""
        twice = key_index.set_ends(self.ends, rows, stamps)
        assert twice < 0, f"row {twice} ends twice"
        if len(rows):
            self.record(rows, stamps, int(stamps.min()), int(stamps.max()))

    def end_all(self, rows: int, stamp: int) -> int:
        """Set the end timestamp of every live version; return how many there were. Lane APPLY.

        Args:
            rows: number of versions of the rowset.
            stamp: end timestamp, above every one so far.
        """
        live = np.empty(rows - self.ended.rows, np.int64)
        count: int = key_index.end_all(self.ends[:rows], np.uint64(stamp), live)
        assert count == len(live), f"{count} live rows, not {len(live)}"
        if count:  # one stamp stands for all of them
            self.record(live, np.broadcast_to(np.uint64(stamp), count), stamp, stamp)
        return count

    def record(self, rows: Rows, stamps: Stamps, first: int, last: int) -> None:
        """Record rows, at least one, whose ends were set in `ends`. Lane APPLY.

        Args:
            rows: row numbers of the versions that ended.
            stamps: end timestamp of each.
            first: least of the timestamps.
            last: greatest of the timestamps.
        """
        self.ended = self.ended.with_more(len(rows), first, last)
        if self.recording:
            self.pending.append((rows, stamps))
            self.pending_bytes += rows.nbytes + stamps.nbytes

    def count_ended(self, stamps: Stamps) -> None:
        """Count in `ended` the rows whose ends were set in `ends` to these stamps. Lane APPLY."""
        self.ended = self.ended.more(stamps)

    def drop_written(self, parts: int) -> None:
        """Remove the first parts of `pending`, which a file contains now. Lane APPLY."""
        self.pending_bytes -= sum(r.nbytes + s.nbytes for r, s in self.pending[:parts])
        del self.pending[:parts]

    def ended_by(self, stamp: int) -> tuple[Rows, Stamps]:
        """Return the rows that ended at or below a stamp, in row order, with their stamps."""
        ends = self.ends.copy()  # lane APPLY continues to set ends; one copy decides
        rows = np.flatnonzero((ends != 0) & (ends <= np.uint64(stamp)))
        return rows, ends[rows]


def joined(parts: Sequence[tuple[Rows, Stamps]]) -> tuple[Rows, Stamps]:
    """Concatenate several parts."""
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def write(files: Files, path: str, rows: Rows, stamps: Stamps) -> int:
    """Write a new `del` file, synced (its name is not); return its length in bytes.

    Args:
        files: file system.
        path: path of the file.
        rows: row numbers, ascending.
        stamps: hybrid time at which each row ended.
    """
    order = np.argsort(rows)  # independent of the grouping at apply
    rows, stamps = rows[order], stamps[order]
    data = pack(
        FileKind.END_STAMPS,
        [(_ROWS, rows.astype("<u4").tobytes()), (_STAMPS, stamps.astype("<u8").tobytes())],
    )
    files.write_new(path, [data])
    return len(data)


def read(files: Files, path: str, ends: Stamps, flush_stamp: int) -> int:
    """Add a file's end timestamps to `ends`; return the file's length in bytes.

    Args:
        files: file system.
        path: path of the file.
        ends: end stamp of each row of the rowset; written to.
        flush_stamp: time of the flush point; a timestamp above it is an error.

    Raises:
        Corrupt: damaged, or it names rows that the rowset does not have, or has timestamps above the flush
            point.
    """
    data = files.map(path)
    sections = Sections(data, path, FileKind.END_STAMPS)
    rows, stamps = sections.array(_ROWS, "<u4"), sections.array(_STAMPS, "<u8")
    sections.verify()
    if len(rows) != len(stamps) or (len(rows) and int(rows.max()) >= len(ends)):
        raise Corrupt(f"{path} names rows that its rowset of {len(ends)} rows does not have")
    if len(stamps) and (int(stamps.max()) > flush_stamp or int(stamps.min()) == 0):
        raise Corrupt(
            f"{path} has end timestamps of 0 or above the manifest's flush point at {flush_stamp}"
        )
    ends[rows] = stamps
    return len(data)
