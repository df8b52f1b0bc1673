"""Opening a log: read every segment, tell a torn tail from damage, replay, seal what a crash left open.

The rule (design section 6): every record tells the position known durable when it was written. A
stretch without a record that begins below any such position is damage: its groups are corrupt, the
files are kept. Any other is the torn tail of a crash: the log ends there, since nothing behind it
was acknowledged.
"""

import errno
import logging

from nyala.common.errors import BadChecksum, Corrupt, LogGap
from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.wal.format import Kind, Position, Row, to_group
from nyala.wal.recovered import Damage, Recovery, TornTail
from nyala.wal.scan import Gap, Scan, scan
from nyala.wal.segment import (
    PLACEHOLDER_SUFFIX,
    Segment,
    reseal,
    row_of,
    segment_path,
    sequence_of,
    sync_sealed,
)

READS = 5
"""Before a segment is found torn or damaged, it is read up to so many times more."""

log = logging.getLogger(__name__)


def recover(files: Files, directory: str, server_uuid: str, close_time_us: int) -> Recovery:
    """Read the log in `directory` and leave it sealed: every segment on disk, none half-written.

    Raises:
        Corrupt: the log belongs to another server. BadVersion: it is of an unknown format.
        OSError: a file cannot be read or written.
    """
    scans = _read(files, directory, server_uuid)
    proven = max((s.proven for s in scans), default=Position(0, 0))
    _drop_blank(files, directory, scans)
    result = Recovery()
    if scans:
        result.next_sequence = scans[-1].sequence + 1
        _expect_footers(scans, proven)
        result.torn = _cut(scans[-1], proven)
    found = _attribute(scans)
    result.damage = [d for damages in found.values() for _, d in damages]
    for damage in result.damage:
        log.error("%s", damage.error.message)
    _replay(result, scans, found)
    if scans:
        _seal_last(files, result, scans[-1], proven, close_time_us)
    return result


def _read(files: Files, directory: str, server_uuid: str) -> list[Scan]:
    """Scan all segments; drop placeholders."""
    sequences = []
    for name in files.list(directory):
        if name.endswith(PLACEHOLDER_SUFFIX):
            files.remove(f"{directory}/{name}")
        elif (sequence := sequence_of(name)) is not None:
            sequences.append(sequence)
    scans = []
    for sequence in sequences:
        path = segment_path(directory, sequence)
        data = files.read(path)
        one = scan(data, path, sequence)
        if one.gaps or one.server_uuid is None:  # the fault may be the read's
            one = scan(_read_again(files, path, data), path, sequence)
        if one.server_uuid not in (None, server_uuid):
            raise Corrupt(
                f"{path} was written by server {one.server_uuid}, this is {server_uuid}; "
                "give each server its own data directory"
            )
        scans.append(one)
    return scans


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


def _drop_blank(files: Files, directory: str, scans: list[Scan]) -> None:
    """Remove segments at the end that were never written to, with a header or without."""
    while scans and scans[-1].blank:
        files.remove(scans.pop().path)
    files.sync_dir(directory)


def _expect_footers(scans: list[Scan], proven: Position) -> None:
    """A segment is sealed before the next one begins: note a missing footer as a gap."""
    for one in scans:
        sealed = one.footer is not None or any(g.footer for g in one.gaps)
        if one.sequence < proven.sequence and not sealed:
            one.gaps.append(Gap(one.end, one.size))
            one.end = one.size


def _cut(last: Scan, proven: Position) -> TornTail | None:
    """Find the torn tail in the last segment and drop what stands behind it."""
    for gap in last.gaps:
        if gap.footer:  # the records are whole; the footer is written again
            end = last.end
        elif Position(last.sequence, gap.start) >= proven:
            end = gap.start
        else:
            continue
        torn = TornTail(last.path, gap.start, last.size - gap.start)
        log.warning(
            "%s: the log ends at offset %d; what a crash left behind it was never acknowledged",
            last.path, gap.start,
        )  # fmt: skip
        last.records = [r for r in last.records if r.offset < end]
        last.gaps = [g for g in last.gaps if g.start < end]
        last.end, last.footer = end, None
        return torn
    return None


def _attribute(scans: list[Scan]) -> dict[int, list[tuple[int, Damage]]]:
    """Return the damage of each segment by (offset, damage), each with the groups it affects."""
    everyone = _present(scans)
    found: dict[int, list[tuple[int, Damage]]] = {}
    expected = scans[0].sequence if scans else 0
    for one in scans:
        own = found.setdefault(one.sequence, [])
        if one.sequence != expected:
            text = f"{one.path}: the segments {expected}..{one.sequence - 1} before it are missing"
            error: Corrupt = LogGap(text, {"path": one.path, "offset": "0"})
            own.append((0, Damage(error, everyone, certain=False)))
        if one.server_uuid is None:
            groups = _present([one])
            error = _bad(one.path, 0, "the segment header")
            own.append((0, Damage(error, groups or everyone, certain=bool(groups))))
        for gap in one.gaps:
            error = _bad(one.path, gap.start, "the footer" if gap.footer else "a durable record")
            certain = gap.footer or gap.record is not None or one.rows is not None
            own.append((gap.start, Damage(error, _groups(one, gap, everyone), certain)))
        expected = one.sequence + 1
    return found


def _present(scans: list[Scan]) -> tuple[TabletId, ...]:
    """Return the groups with a record in these segments."""
    raw = dict.fromkeys(r.group for s in scans for r in s.records if r.kind is not Kind.MARKER)
    return tuple(map(to_group, raw))


def _bad(path: str, offset: int, what: str) -> BadChecksum:
    return BadChecksum(
        f"{path}: {what} at offset {offset} is damaged; the file is kept, "
        "replicas that need it have to be replaced",
        {"path": path, "offset": str(offset)},
    )


def _groups(one: Scan, gap: Gap, everyone: tuple[TabletId, ...]) -> tuple[TabletId, ...]:
    """Return whose records a damaged stretch held: by header, by index array, or anybody's."""
    if gap.footer:
        return ()
    if gap.record is not None:
        return () if gap.record.kind is Kind.MARKER else (to_group(gap.record.group),)
    if one.rows is None:
        return everyone
    hit = [r for r in one.rows if r.offset < gap.end and r.offset + r.length > gap.start]
    return tuple(dict.fromkeys(to_group(r.group) for r in hit))


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
    files: Files, result: Recovery, last: Scan, proven: Position, close_time_us: int
) -> None:
    """Make the last segment durable as it was understood; remove it when nothing is in it."""
    segment = result.segments[-1]
    if last.footer is not None:
        sync_sealed(files, last.path)
        return
    damage = [d for d in result.damage if d.error.details["path"] == last.path]
    if not last.records and not damage:
        result.segments.pop()
        result.next_sequence = last.sequence
        files.remove(last.path)
        return
    rows = [row_of(r) for r in last.records if r.kind is not Kind.MARKER]
    for gap in last.gaps:  # the verdict stays readable when the groups can no longer be told
        for group in _groups(last, gap, tuple(result.groups)):
            raw = bytes.fromhex(group)
            rows.append(Row(raw, 0, 0, gap.start, gap.end - gap.start))
    reseal(files, segment, sorted(rows, key=lambda r: r.offset), close_time_us, proven)
