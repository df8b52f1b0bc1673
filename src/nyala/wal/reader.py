"""Reading entries back for a follower that fell behind: nearby records with one read, each checked.

Rules: blocking; runs in lane COMPUTE on places that the index gave. No memory maps: a read error has
to be an OSError, not the end of the process.
"""

from collections.abc import Iterator, Sequence

from nyala.common.errors import BadChecksum
from nyala.env.files import Files
from nyala.raft.messages import Entry
from nyala.wal.format import ENTRIES, to_entry, unpack_record
from nyala.wal.index import Place

NEAR_BYTES = 64 << 10
"""Records closer than this are read together, with what lies between them."""


def read_entries(
    files: Files, group: bytes, runs: Sequence[tuple[str, Sequence[Place]]]
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


def _together(places: Sequence[Place]) -> Iterator[list[Place]]:
    near: list[Place] = []
    for place in places:
        if near:
            between = place.offset - (near[-1].offset + near[-1].length)
            if not 0 <= between <= NEAR_BYTES:
                yield near
                near = []
        near.append(place)
    if near:
        yield near


def _read(files: Files, group: bytes, path: str, places: list[Place]) -> Iterator[Entry]:
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
