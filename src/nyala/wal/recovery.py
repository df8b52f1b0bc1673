"""Opening a log: read every segment, judge it (verdict.py), replay, seal what a crash left open."""

import errno
import logging

from nyala.common.errors import Corrupt
from nyala.env.files import Files
from nyala.wal.extent import Extent
from nyala.wal.format import Kind, Position, Row
from nyala.wal.recovered import Damage, Recovery
from nyala.wal.scan import Scan, scan
from nyala.wal.segment import (
    PLACEHOLDER_SUFFIX,
    Segment,
    reseal,
    row_of,
    segment_path,
    sequence_of,
    sync_sealed,
)
from nyala.wal.verdict import groups_of, judge

READS = 5
"""Before a segment is found torn or damaged, it is read up to so many times more."""

log = logging.getLogger(__name__)


def recover(
    files: Files,
    directory: str,
    server_uuid: str,
    close_time_us: int,
    extent: Extent | None = None,
) -> Recovery:
    """Read the log in `directory` and leave it sealed: every segment on disk, none half-written.

    Args:
        files: where it lives.
        directory: of its segments.
        server_uuid: of the server that must have written it.
        close_time_us: of a segment that is sealed now.
        extent: what must be there of it; None: not known.

    Raises:
        Corrupt: the log belongs to another server. BadVersion: it is of an unknown format.
        OSError: a file cannot be read or written.
    """
    scans, data = _read(files, directory, server_uuid)
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
    _replay(result, scans, verdict.found)
    if scans:
        result.next_sequence = scans[-1].sequence + 1
        _seal_last(files, result, scans[-1], data, verdict.proven, close_time_us)
    for blank in verdict.blank:
        if blank.sequence != result.next_sequence:  # that one is replaced, and never missing
            files.remove(blank.path)
    files.sync_dir(directory)
    return result


def _read(files: Files, directory: str, server_uuid: str) -> tuple[list[Scan], bytes]:
    """Scan all segments; drop placeholders. Return the bytes of the last that is not blank too."""
    sequences = []
    for name in files.list(directory):
        if name.endswith(PLACEHOLDER_SUFFIX):
            files.remove(f"{directory}/{name}")
        elif (sequence := sequence_of(name)) is not None:
            sequences.append(sequence)
    scans, last = [], b""
    for sequence in sequences:
        path = segment_path(directory, sequence)
        data = files.read(path)
        one = scan(data, path, sequence)
        if one.gaps or one.server_uuid is None:  # the fault may be the read's
            data = _read_again(files, path, data)
            one = scan(data, path, sequence)
        if one.server_uuid not in (None, server_uuid):
            raise Corrupt(
                f"{path} was written by server {one.server_uuid}, this is {server_uuid}; "
                "give each server its own data directory"
            )
        scans.append(one)
        last = last if one.blank else data
    return scans, last


def _read_again(files: Files, path: str, data: bytes) -> bytes:
    """Return a file's bytes as two reads in a row agree on them.

    Raises:
        OSError: no two do.
    """
    for _ in range(READS):
        again = files.read(path)
        if again == data:
            return data
        data = again
    raise OSError(errno.EIO, f"{READS} reads of {path} gave as many results; check the disk", path)


def _replay(
    result: Recovery, scans: list[Scan], found: dict[int, list[tuple[int, Damage]]]
) -> None:
    for one in scans:
        segment = Segment(one.sequence, one.path, one.end)
        result.segments.append(segment)
        damages = list(found[one.sequence])
        for record in one.records:
            while damages and damages[0][0] < record.offset:
                result.mark(damages.pop(0)[1])
            result.replay(segment, record)
        for _, damage in damages:
            result.mark(damage)
    result.pin()


def _seal_last(
    files: Files, result: Recovery, last: Scan, data: bytes, proven: Position, close_time_us: int
) -> None:
    """Make the last segment durable as it was understood; remove it when nothing is in it."""
    segment = result.segments[-1]
    known = proven.offset if proven.sequence == last.sequence else 0
    if last.footer is not None:
        sync_sealed(files, last.path, data[known:])
        return
    damage = [d for d in result.damage if d.error.details["path"] == last.path]
    if not last.records and not damage:
        result.segments.pop()
        result.next_sequence = last.sequence  # it is replaced
        return
    rows = [row_of(r) for r in last.records if r.kind is not Kind.MARKER]
    for gap in last.gaps:  # the verdict stays readable when the groups can no longer be told
        for group in groups_of(last, gap, tuple(result.groups)):
            raw = bytes.fromhex(group)
            rows.append(Row(raw, 0, 0, gap.start, gap.end - gap.start))
    rows.sort(key=lambda r: r.offset)
    reseal(files, segment, data[known : segment.end], rows, close_time_us, proven)
