"""Opening a log: read every segment, judge it (verdict.py), replay it, seal the one that a crash left open.

Segments are read twice, one at a time: for the verdict, then for the replay. So memory holds one segment and
the location of each entry, however long the log is.
"""

import errno
import logging

from nyala.common.errors import Corrupt
from nyala.env.files import Files
from nyala.wal.recovery.recovered import Damage, Recovery
from nyala.wal.recovery.verdict import groups_of, judge
from nyala.wal.segments.extent import Extent
from nyala.wal.segments.format import IndexRow, LogPosition, Record, RecordKind, crc32c
from nyala.wal.segments.scan import SegmentScan, scan
from nyala.wal.segments.segment import (
    PLACEHOLDER_SUFFIX,
    Segment,
    reseal,
    row_of,
    segment_path,
    sequence_of,
    sync_sealed,
)

READS = 5
"""Maximum number of further reads before a segment is considered torn or damaged."""

log = logging.getLogger(__name__)


def recover(
    files: Files,
    directory: str,
    server_uuid: str,
    close_time_us: int,
    extent: Extent | None = None,
) -> Recovery:
    """Recover the log in `directory`; on return every segment is sealed and durable.

    Args:
        files: the file system.
        directory: directory of the segments.
        server_uuid: uuid of the server that must have written it.
        close_time_us: close time for a segment that is sealed now, microseconds since the epoch.
        extent: segments that must exist; None: unknown.

    Raises:
        Corrupt: the log belongs to another server. BadVersion: it is of an unknown format.
        OSError: a file cannot be read or written.
    """
    scans = _read(files, directory, server_uuid)
    verdict = judge(scans, directory, extent)
    result = Recovery(damage=verdict.damage, torn=verdict.torn)
    result.missing = verdict.missing is not None
    if verdict.blank:
        result.next_sequence = verdict.blank[-1].sequence
    elif extent is not None:
        result.next_sequence = extent.end.sequence + 1
    if verdict.torn is not None:
        log.warning(
            "%s: the log ends at offset %d; what a crash left behind it was never acknowledged",
            verdict.torn.path, verdict.torn.offset,
        )  # fmt: skip
    for damage in result.damage:
        log.error("%s", damage.error.message)
    _replay(files, result, scans, verdict.found)
    if scans:
        result.next_sequence = scans[-1].sequence + 1
        _seal_last(files, result, scans[-1], verdict.proven, close_time_us)
    for blank in verdict.blank:
        if blank.sequence != result.next_sequence:  # that one is replaced
            files.remove(blank.path)
    files.sync_dir(directory)
    return result


def _read(files: Files, directory: str, server_uuid: str) -> list[SegmentScan]:
    """Scan all segments and remove placeholders. Only the last non-blank scan keeps its payloads."""
    sequences = []
    for name in files.list(directory):
        if name.endswith(PLACEHOLDER_SUFFIX):
            files.remove(f"{directory}/{name}")
        elif (sequence := sequence_of(name)) is not None:
            sequences.append(sequence)
    scans: list[SegmentScan] = []
    for sequence in sequences:
        path = segment_path(directory, sequence)
        data = files.read(path)
        one = scan(data, path, sequence, payloads=False)
        if one.gaps or one.server_uuid is None:  # the read itself may have failed
            data = _read_again(files, path, data)
            one = scan(data, path, sequence, payloads=False)
        if one.server_uuid not in (None, server_uuid):
            raise Corrupt(
                f"{path} was written by server {one.server_uuid}, this is {server_uuid}; "
                "give each server its own data directory"
            )
        if not one.blank:
            for before in scans:
                if not before.omitted_records:
                    before.drop_payloads()
        scans.append(one)
        del data  # one segment at a time
    return scans


def _read_again(files: Files, path: str, data: bytes) -> bytes:
    """Return a file's bytes once two consecutive reads agree.

    Raises:
        OSError: no two reads agree.
    """
    for _ in range(READS):
        again = files.read(path)
        if again == data:
            return data
        data = again
    raise OSError(
        errno.EIO, f"{READS} reads of {path} returned different bytes; check the disk", path
    )


def _replay(
    files: Files,
    result: Recovery,
    scans: list[SegmentScan],
    found: dict[int, list[tuple[int, Damage]]],
) -> None:
    for one in scans:
        segment = Segment(one.sequence, one.path, one.end)
        result.segments.append(segment)
        damages = list(found[one.sequence])
        for record in _records(files, one):
            while damages and damages[0][0] < record.offset:
                result.mark(damages.pop(0)[1])
            result.replay(segment, record)
        for _, damage in damages:
            result.mark(damage)
    result.pin()
    result.finish()


def _records(files: Files, one: SegmentScan) -> list[Record]:
    """Return all records of a segment.

    Raises:
        OSError: the bytes differ from those of the verdict.
    """
    if not one.omitted_records:
        return one.records
    return scan(_as_scanned(files, one), one.path, one.sequence, payloads=False).records


def _as_scanned(files: Files, one: SegmentScan) -> bytes:
    """Return the same bytes of a segment as for the verdict."""
    for _ in range(READS):
        data = files.read(one.path)
        if crc32c(data) == one.checksum:
            return data
    text = f"{one.path} changed between two reads; check the disk"
    raise OSError(errno.EIO, text, one.path)


def _seal_last(
    files: Files, result: Recovery, last: SegmentScan, proven: LogPosition, close_time_us: int
) -> None:
    """Make the last segment durable as it was recovered; remove it if it is empty."""
    segment = result.segments[-1]
    known = proven.offset if proven.sequence == last.sequence else 0
    if last.footer is not None:
        sync_sealed(files, last.path, _as_scanned(files, last)[known:])
        return
    damage = [d for d in result.damage if d.error.details["path"] == last.path]
    if not last.records and not damage:
        result.segments.pop()
        result.next_sequence = last.sequence  # it is replaced
        return
    rows = [row_of(r) for r in last.records if r.kind is not RecordKind.MARKER]
    for gap in last.gaps:  # keeps the affected groups of damage known
        for group in groups_of(last, gap, tuple(result.groups)):
            raw = bytes.fromhex(group)
            rows.append(IndexRow(raw, 0, 0, gap.start, gap.end - gap.start))
    rows.sort(key=lambda r: r.offset)
    data = _as_scanned(files, last)
    reseal(files, segment, data[known : segment.end], rows, close_time_us, proven)
