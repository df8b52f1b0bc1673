"""Reading entries back, for a follower that fell behind or to write them again: nearby records with one read.

Rules: what blocks runs in lane COMPUTE on places that the index gave; each record is checked. No memory
maps: a read error has to be an OSError, not the end of the process.
"""

from collections.abc import Iterator, Sequence

from nyala.common.errors import BadChecksum
from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks
from nyala.raft.messages import Entry
from nyala.wal.format import ENTRIES, group_bytes, to_entry, unpack_record
from nyala.wal.index import EntryLocation
from nyala.wal.segment import Segment

NEAR_BYTES = 64 << 10
"""Records closer than this are read together, with what lies between them."""


async def read_runs(
    tasks: Tasks,
    files: Files,
    group: TabletId,
    runs: Sequence[tuple[Segment, Sequence[EntryLocation]]],
) -> list[Entry]:
    """Return a group's entries at these places; their segments' files stay until they are read.

    Args:
        tasks: has the lane.
        files: where segments live.
        group: whose entries.
        runs: by segment, the places in it.

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
    """Return the entries at these places, in their order.

    Args:
        files: where segments live.
        group: that every record must be of.
        runs: by path, the places in that segment.

    Raises:
        BadChecksum: a record is not what the index says, with `path` and `offset`.
        OSError: a file cannot be read.
    """
    return [
        entry
        for path, places in runs
        for near in _together(places)
        for entry in _read(files, group, path, near)
    ]


def _together(places: Sequence[EntryLocation]) -> Iterator[list[EntryLocation]]:
    near: list[EntryLocation] = []
    for place in places:
        if near:
            between = place.offset - (near[-1].offset + near[-1].length)
            if not 0 <= between <= NEAR_BYTES:
                yield near
                near = []
        near.append(place)
    if near:
        yield near


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
