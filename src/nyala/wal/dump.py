"""Content of a log or of one segment as values: each record, each problem and the groups it affects.

Read-only, without locks: a server may be writing meanwhile. The verdict is the one of opening the log
(recovery/verdict.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from nyala.common.errors import BadChecksum, InvalidArgument, LogGap
from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.wal.recovery.verdict import LogVerdict, judge
from nyala.wal.segments import extent
from nyala.wal.segments.extent import Extent
from nyala.wal.segments.format import (
    ENTRIES,
    RECORD_HEADER_BYTES,
    LogPosition,
    Record,
    RecordKind,
    inspect_record,
    unpack_footer,
    unpack_segment_header,
)
from nyala.wal.segments.scan import Gap, SegmentScan, scan
from nyala.wal.segments.segment import PLACEHOLDER_SUFFIX, segment_name, segment_path, sequence_of

READS = 5
"""Maximum number of reads of a segment with a gap, which may be in the process of being written."""


class Finding(StrEnum):
    """Classification of bytes that are not a valid record of the log."""

    DAMAGE = "damage"
    TORN = "torn tail"
    IGNORED = "not part of the log"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a segment.

    Attributes:
        offset: where it begins.
        length: in bytes.
        finding: its classification.
        check: the failed check, as text.
        groups: ids of the groups that may have lost records.
        certain: False: the affected groups cannot be determined.
    """

    offset: int
    length: int
    finding: Finding
    check: str
    groups: tuple[TabletId, ...] = ()
    certain: bool = True


@dataclass(frozen=True, slots=True)
class SegmentDump:
    """One segment.

    Attributes:
        path: path of the file.
        sequence: from the file name, or from the header if the name is another.
        server_uuid: uuid of the server that wrote it; None: the header is damaged.
        size: size of the file, in bytes.
        used: length in bytes up to the end of the last record, footer or problem.
        footer: (close time in microseconds since the epoch, rows); None: it is open.
        records: valid records by offset, also those that are not part of the log (see `problems`).
        problems: by offset.
    """

    path: str
    sequence: int
    server_uuid: str | None
    size: int
    used: int
    footer: tuple[int, int] | None
    records: tuple[Record, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class ExtentStatus:
    """State of the extent file, which lists the expected segments.

    Attributes:
        path: path of the file.
        exists: the file exists.
        extent: its content; None: it does not exist, or is damaged.
    """

    path: str
    exists: bool
    extent: Extent | None

    @property
    def damaged(self) -> bool:
        """True if it exists and cannot be read."""
        return self.exists and self.extent is None


@dataclass(frozen=True, slots=True)
class LogDump:
    """Content of a log, and its problems.

    Attributes:
        segments: oldest first.
        proven: position up to which the log is known to have been durable.
        placeholders: names of segments under preparation.
        extent_file: state of the extent file; None: it was not read.
        missing: text that names the missing segments; empty: none.
    """

    segments: tuple[SegmentDump, ...]
    proven: LogPosition
    placeholders: tuple[str, ...]
    extent_file: ExtentStatus | None = None
    missing: str = ""

    @property
    def damaged(self) -> bool:
        """True if records that were durable are damaged or missing."""
        if self.missing or (self.extent_file is not None and self.extent_file.damaged):
            return True
        problems = (p for s in self.segments for p in s.problems)
        return any(p.finding is Finding.DAMAGE for p in problems)


def dump_log(
    files: Files, directory: str, only: str | None = None, data_dir: str | None = None
) -> LogDump:
    """Read a log.

    Args:
        files: the file system.
        directory: directory of the segments.
        only: name of the segment to return; the others are read too, because they show which part of it was
            durable.
        data_dir: data directory with the extent file; None: unknown.

    Raises:
        BadVersion: a segment has an unknown format version. OSError: a file cannot be read.
    """
    before = None if data_dir is None else read_extent(files, data_dir)
    names = files.list(directory)
    reads = []
    for sequence in filter(None, map(sequence_of, names)):
        path = segment_path(directory, sequence)
        try:
            reads.append(_read_segment(files, path, sequence))
        except FileNotFoundError:
            continue  # removed since it was listed
    placeholders = tuple(n for n in names if n.endswith(PLACEHOLDER_SUFFIX))
    extent_file = None
    if data_dir is not None and before is not None:
        extent_file = _while_read(before, read_extent(files, data_dir))
    return _judged(reads, placeholders, only, extent_file)


def read_extent(files: Files, data_dir: str) -> ExtentStatus:
    """Read the extent file of a data directory."""
    path = f"{data_dir}/{extent.FILE_NAME}"
    exists = files.exists(path)
    return ExtentStatus(path, exists, extent.decode(files.read(path)) if exists else None)


def _while_read(before: ExtentStatus, after: ExtentStatus) -> ExtentStatus:
    """Return the extent that held during the whole read of the segments; the server may be running."""
    old, new = before.extent, after.extent
    if old is None or new is None:
        return after
    end = max(old.end, LogPosition(new.first, 0))
    return ExtentStatus(after.path, after.exists, Extent(new.first, end, new.missing))


def dump_file(files: Files, path: str) -> LogDump:
    """Read one segment file, whatever its name.

    Raises:
        InvalidArgument: it is not a segment. BadVersion: an unknown format version. OSError: it cannot be
            read.
    """
    try:
        sequence = unpack_segment_header(files.read(path), path)[1]
    except BadChecksum:
        raise InvalidArgument(
            f"{path} is not a log segment: neither its name (0000000001.wal) nor its header identifies one"
        ) from None
    return _judged([_read_segment(files, path, sequence)], (), None)


@dataclass(frozen=True, slots=True)
class _SegmentRead:
    """A scan of a segment, with details that need its bytes."""

    scan: SegmentScan
    records: tuple[Record, ...]
    checks: dict[int, str]
    used: int


def _read_segment(files: Files, path: str, sequence: int) -> _SegmentRead:
    """Read a segment until two reads agree on its gaps."""
    found, gaps = _read_once(files, path, sequence), None
    for _ in range(READS):
        if not found.scan.gaps or found.scan.gaps == gaps:
            break
        gaps = found.scan.gaps
        found = _read_once(files, path, sequence)
    return found


def _read_once(files: Files, path: str, sequence: int) -> _SegmentRead:
    data = files.read(path)
    one = scan(data, path, sequence)
    checks = {g.start: _check(data, sequence, g) for g in one.gaps}
    if one.server_uuid is None:
        checks[0] = _header_check(data, path, sequence)
    used = max(len(data.rstrip(b"\0")), min(one.end, len(data)))
    return _SegmentRead(one, tuple(one.records), checks, used)


def _header_check(data: bytes, path: str, sequence: int) -> str:
    try:
        own = unpack_segment_header(data, path)[1]
    except BadChecksum:
        return "the magic or the checksum of the segment header is wrong"
    return f"the header has segment number {own}, the name {sequence}"


def _check(data: bytes, sequence: int, gap: Gap) -> str:
    """Return the failed check of a gap, as text."""
    if gap.record is None:
        if not any(data[gap.start : gap.end]):
            return "zeros instead of a record"
        found = inspect_record(data, gap.start, sequence)
        return found if isinstance(found, str) else "a record that the scan did not accept"
    if gap.start != gap.record.offset:
        return "the trailer after the footer is wrong"
    if gap.record.offset + gap.record.length > len(data):
        return f"the file ends inside the payload of {name_of(gap.record)}"
    return f"the checksum of the payload of {name_of(gap.record)} is wrong"


def _judged(
    reads: list[_SegmentRead],
    placeholders: tuple[str, ...],
    only: str | None,
    extent_file: ExtentStatus | None = None,
) -> LogDump:
    scans = [read.scan for read in reads]
    owners = {s.server_uuid for s in scans if s.server_uuid is not None}
    must = None if extent_file is None else extent_file.extent
    directory = reads[0].scan.path.rpartition("/")[0] if reads else ""
    verdict = judge(scans, directory, must)
    dumps = tuple(
        _dump(read, verdict, must, foreign=len(owners) > 1)
        for read in reads
        if only is None or read.scan.path.endswith("/" + only)
    )
    present = {read.scan.sequence for read in reads}
    missing = "" if must is None or verdict.missing is None else _missing(must, present)
    return LogDump(dumps, verdict.proven, placeholders, extent_file, missing)


def _missing(must: Extent, present: set[int]) -> str:
    """Return a text that names the missing segments."""
    missing = [n for n in range(must.first, last_of(must) + 1) if n not in present]
    if not missing:
        return "an earlier start found that segments of the log were missing"
    runs = (
        [n for n in missing if n - 1 not in missing],
        [n for n in missing if n + 1 not in missing],
    )
    named = [
        segment_name(a) if a == b else f"{segment_name(a)} to {segment_name(b)}"
        for a, b in zip(*runs, strict=True)
    ]
    verb = "is" if len(missing) == 1 else "are"
    return f"{', '.join(named)} {verb} missing from the log"


def last_of(must: Extent) -> int:
    """Return the sequence of the last expected segment; below the first one: none is expected."""
    return must.end.sequence - (must.end.offset == 0)


def _dump(
    read: _SegmentRead, verdict: LogVerdict, must: Extent | None, *, foreign: bool
) -> SegmentDump:
    one = read.scan
    footer = None
    if one.footer is not None and one.footer.payload is not None:
        close_time_us, rows = unpack_footer(one.footer)
        footer = (close_time_us, len(rows))
    found = _problems(read, verdict, must, foreign=foreign)
    problems = sorted(found, key=lambda p: p.offset)
    return SegmentDump(
        one.path, one.sequence, one.server_uuid, one.size, read.used, footer, read.records,
        tuple(problems),
    )  # fmt: skip


def _problems(
    read: _SegmentRead, verdict: LogVerdict, must: Extent | None, *, foreign: bool
) -> Iterator[Problem]:
    one = read.scan
    if any(blank is one for blank in verdict.blank):
        yield Problem(0, one.size, Finding.IGNORED, "no record was ever written to it")
    if foreign:
        text = "the segments of this directory were written by more than one server"
        yield Problem(0, 0, Finding.DAMAGE, text)
    lengths = {g.start: g.end - g.start for g in one.gaps}
    for offset, damage in verdict.found.get(one.sequence, ()):
        if damage is verdict.missing:
            continue  # reported for the log, not for a segment
        check = read.checks.get(
            offset, "the footer is missing, although the log continues after it"
        )
        ends = offset + lengths.get(offset, 0) >= one.size
        if (
            must is not None
            and one.sequence == must.end.sequence
            and one.size < must.end.offset
            and ends
        ):
            check = (
                f"the file was cut short: it has {one.size} bytes, and was durable up to offset "
                f"{must.end.offset} ({extent.FILE_NAME})"
            )
        if isinstance(damage.error, LogGap):
            check = damage.error.message.partition(": ")[2]
        yield Problem(
            offset, lengths.get(offset, 0), Finding.DAMAGE, check, damage.groups, damage.certain
        )
    torn = verdict.torn
    if torn is None or torn.path != one.path:
        return
    lost = max(0, read.used - torn.offset)
    yield Problem(torn.offset, lost, Finding.TORN, read.checks[torn.offset])
    for record in read.records:
        if record.offset >= one.end:
            text = f"{name_of(record)} follows the torn tail, and was never acknowledged"
            yield Problem(record.offset, record.length, Finding.IGNORED, text)


def name_of(record: Record) -> str:
    """Return a description of a record for messages."""
    if record.kind in ENTRIES:
        moved = "moved " if record.kind is RecordKind.MOVED else ""
        return f"{moved}entry {record.term}.{record.index} ({record.length - RECORD_HEADER_BYTES} bytes)"
    return f"the {record.kind.name.replace('_', ' ').lower()}"
