"""Verdict on the segments of a log: torn tail or damage, and the groups that have lost records.

Rule: every record stores the position that was known durable when it was written. A gap that begins below any
such position is damage: its groups are corrupt, and it is not repaired. All segments are retained until the
superblocks of these groups have the reason, and then are removed with others of their age. Any other gap is
the torn tail of a crash: the log ends there, because nothing after it was acknowledged. The extent file
proves a position too, and gives the first segment. Without I/O: opening.py acts on the verdict,
`nyala wal dump` prints it.
"""

from dataclasses import dataclass, field

from nyala.common.errors import BadChecksum, Corrupt, LogGap
from nyala.common.ids import TabletId
from nyala.wal.recovery.recovered import Damage, TornTail
from nyala.wal.segments.extent import Extent
from nyala.wal.segments.format import SEGMENT_HEADER_BYTES, LogPosition, RecordKind, to_group
from nyala.wal.segments.scan import Gap, SegmentScan


@dataclass(slots=True)
class LogVerdict:
    """Verdict on the segments of a log.

    Attributes:
        proven: last position that the log or the extent file proves to have been durable.
        blank: segments at the end without any record, with a header or without.
        torn: the torn tail; None: the log ends cleanly.
        found: damage of each segment, by sequence number, as (offset, damage).
        missing: segments of the extent that do not exist; None: none.
    """

    proven: LogPosition
    blank: list[SegmentScan] = field(default_factory=list)
    torn: TornTail | None = None
    found: dict[int, list[tuple[int, Damage]]] = field(default_factory=dict)
    missing: Damage | None = None

    @property
    def damage(self) -> list[Damage]:
        """All damage, in the order of the log."""
        found = [damage for damages in self.found.values() for _, damage in damages]
        return found if found or self.missing is None else [self.missing]


def judge(scans: list[SegmentScan], directory: str, extent: Extent | None = None) -> LogVerdict:
    """Return the verdict on the segments of a log.

    Args:
        scans: all of them, oldest first. Blank ones at the end are removed, records after a torn tail are
            dropped from the last one, missing footers are added as gaps.
        directory: directory of the segments, for messages.
        extent: segments that must exist; None: unknown.
    """
    end = LogPosition(0, 0) if extent is None else extent.end
    verdict = LogVerdict(max([end, *(s.proven for s in scans)]))
    while scans and scans[-1].blank and _may_be_blank(scans[-1], end):
        verdict.blank.append(scans.pop())
    if scans:
        _expect_footers(scans, verdict.proven)
        _expect_end(scans[-1], end)
        verdict.torn = _cut(scans[-1], verdict.proven)
    verdict.found = _attribute(scans)
    if extent is not None and not extent.empty:
        _note_missing(verdict, scans, directory, extent)
    return verdict


def _may_be_blank(one: SegmentScan, end: LogPosition) -> bool:
    """Return whether at most the header of a segment was durable."""
    begins = LogPosition(one.sequence, SEGMENT_HEADER_BYTES if one.server_uuid is not None else 0)
    return end <= begins


def _note_missing(
    verdict: LogVerdict, scans: list[SegmentScan], directory: str, extent: Extent
) -> None:
    """Add missing first or last segments as damage."""
    first, last = extent.first, extent.end.sequence - (extent.end.offset == 0)
    found = [s.sequence for s in (*scans, *reversed(verdict.blank))]
    head = not found or found[0] > first
    tail = not found or found[-1] < last or extent.missing
    if not head and not tail:
        return
    there = f"{found[0]} to {found[-1]}" if found else "none"
    text = (
        f"{directory}: segments {first} to {last} of the log must exist; found: {there}; replicas whose "
        "records were in the missing segments must be replaced"
    )
    error = LogGap(text, {"path": directory, "offset": "0"})
    verdict.missing = Damage(error, _present(scans), certain=False)
    if head and scans:
        verdict.found[scans[0].sequence].insert(0, (0, verdict.missing))
    if tail and scans:
        verdict.found[scans[-1].sequence].append((scans[-1].end, verdict.missing))


def _expect_end(last: SegmentScan, end: LogPosition) -> None:
    """Add a gap if the last segment ends before a position in it that was durable."""
    if last.sequence == end.sequence and last.end < end.offset:
        last.gaps.append(Gap(last.end, end.offset))
        last.end, last.footer = end.offset, None


def _expect_footers(scans: list[SegmentScan], proven: LogPosition) -> None:
    """Add missing footers as gaps: a segment is sealed before the next one begins."""
    for one in scans:
        sealed = one.footer is not None or any(g.footer for g in one.gaps)
        if one.sequence < proven.sequence and not sealed:
            one.gaps.append(Gap(one.end, one.size))
            one.end = one.size


def _cut(last: SegmentScan, proven: LogPosition) -> TornTail | None:
    """Find the torn tail in the last segment and drop the records after it."""
    for gap in last.gaps:
        if gap.footer:  # the records are valid; the footer is rewritten
            end = last.end
        elif LogPosition(last.sequence, gap.start) >= proven:
            end = gap.start
        else:
            continue
        last.records = [r for r in last.records if r.offset < end]
        last.gaps = [g for g in last.gaps if g.start < end]
        last.end, last.footer = end, None
        return TornTail(last.path, gap.start, last.size - gap.start)
    return None


def _attribute(scans: list[SegmentScan]) -> dict[int, list[tuple[int, Damage]]]:
    """Return the damage of each segment as (offset, damage), with the affected groups."""
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
            error = _damaged(one.path, 0, "the segment header")
            own.append((0, Damage(error, groups or everyone, certain=bool(groups))))
        for gap in one.gaps:
            error = _damaged(
                one.path, gap.start, "the footer" if gap.footer else "a durable record"
            )
            certain = gap.footer or gap.record is not None or one.rows is not None
            own.append((gap.start, Damage(error, groups_of(one, gap, everyone), certain)))
        expected = one.sequence + 1
    return found


def _present(scans: list[SegmentScan]) -> tuple[TabletId, ...]:
    """Return the groups with a record in these segments."""
    raw = dict.fromkeys(
        r.group for s in scans for r in s.records if r.kind is not RecordKind.MARKER
    )
    return tuple(map(to_group, raw))


def _damaged(path: str, offset: int, what: str) -> BadChecksum:
    return BadChecksum(
        f"{path}: {what} at offset {offset} is damaged; replicas with records there must be replaced",
        {"path": path, "offset": str(offset)},
    )


def groups_of(one: SegmentScan, gap: Gap, everyone: tuple[TabletId, ...]) -> tuple[TabletId, ...]:
    """Return the groups whose records a damaged gap may have held.

    Args:
        one: the segment.
        gap: the damaged range.
        everyone: all groups of the log, for a gap without a valid record header or index.
    """
    if gap.footer:
        return ()
    if gap.record is not None:
        return () if gap.record.kind is RecordKind.MARKER else (to_group(gap.record.group),)
    if one.rows is None:
        return everyone
    hit = [r for r in one.rows if r.offset < gap.end and r.offset + r.length > gap.start]
    return tuple(dict.fromkeys(to_group(r.group) for r in hit))
