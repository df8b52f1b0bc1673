"""Reads entries from segments, for followers that are behind and for rewrites.

Nearby records are read together. Blocking calls run in lane COMPUTE, with locations from the index; each
record is checked. No memory maps: a read error must be an OSError, not the end of the process.
"""

from collections.abc import Iterator, Sequence

from nyala.common.errors import BadChecksum
from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks
from nyala.raft.messages import Entry
from nyala.wal.index import EntryLocation
from nyala.wal.segments.format import ENTRIES, group_bytes, to_entry, unpack_record
from nyala.wal.segments.segment import Segment

NEAR_BYTES = 64 << 10
"""Distance in bytes below which records are read together, with the bytes between them."""


async def read_runs(
    tasks: Tasks,
    files: Files,
    group: TabletId,
    runs: Sequence[tuple[Segment, Sequence[EntryLocation]]],
) -> list[Entry]:
    """Return a group's entries at these locations; their segments are retained until then.

    Args:
        tasks: runs the lane.
        files: file system of the segments.
        group: id of the Raft group.
        runs: locations by segment.

    Raises:
        BadChecksum: a record is damaged. OSError: a file cannot be read.
    """
    for segment, _ in runs:
        segment.readers += 1
    try:
        paths = [(segment.path, run) for segment, run in runs]
        return await tasks.run(Lane.COMPUTE, read_entries, files, group_bytes(group), paths)
    finally:
        for segment, _ in runs:
            segment.readers -= 1


def read_entries(
    files: Files, group: bytes, runs: Sequence[tuple[str, Sequence[EntryLocation]]]
) -> list[Entry]:
    """Return the entries at these locations, in order.

    Args:
        files: file system of the segments.
        group: 16 bytes; the group of every record.
        runs: locations by path of the segment.

    Raises:
        BadChecksum: a record does not match the index; details: `path`, `offset`.
        OSError: a file cannot be read.
    """
    return [
        entry
        for path, places in runs
        for run in _contiguous(places)
        for entry in _read(files, group, path, run)
    ]


def _contiguous(places: Sequence[EntryLocation]) -> Iterator[list[EntryLocation]]:
    run: list[EntryLocation] = []
    for place in places:
        if run:
            between = place.offset - (run[-1].offset + run[-1].length)
            if not 0 <= between <= NEAR_BYTES:
                yield run
                run = []
        run.append(place)
    if run:
        yield run


def _read(files: Files, group: bytes, path: str, places: list[EntryLocation]) -> Iterator[Entry]:
    base = places[0].offset
    data = files.read(path, base, places[-1].offset + places[-1].length - base)
    for place in places:
        record = unpack_record(data, place.offset - base, place.sequence, base)
        if (
            record is None
            or record.payload is None
            or record.kind not in ENTRIES
            or (record.group, record.index, record.term) != (group, place.index, place.term)
        ):
            raise BadChecksum(
                f"{path}: entry {place.term}.{place.index} at offset {place.offset} is damaged; "
                "the replica has to be replaced",
                {"path": path, "offset": str(place.offset)},
            )
        yield to_entry(record)
