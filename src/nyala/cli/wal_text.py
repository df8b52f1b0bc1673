"""Text output of `nyala wal dump`: a line for each record, problems at their positions."""

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from nyala.common.hybrid_time import LOGICAL_MASK, to_micros
from nyala.common.texts.counted import counted
from nyala.raft.messages import EntryKind
from nyala.wal.dump import ExtentStatus, Finding, LogDump, Problem, SegmentDump, last_of
from nyala.wal.segments.format import ENTRIES, RECORD_HEADER_BYTES, Record, RecordKind
from nyala.wal.segments.segment import segment_name

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RED, _YELLOW, _PLAIN = "\033[31m", "\033[33m", "\033[0m"
_COLUMNS = (
    f"{'offset':>10} {'bytes':>9}  {'what':<10} {'group':<32} {'term.index':>13}  what it says"
)
_WIDTH = 16


def fields_of(record: Record, *, payloads: bool) -> dict[str, Any]:
    """Return a record as JSON values."""
    shown: dict[str, Any] = {
        "offset": record.offset, "bytes": record.length, "kind": _kind(record),
        "group": record.group.hex(), "term": record.term, "index": record.index,
        "stamp": record.stamp,
        "durable_to": {"segment": record.synced.sequence, "offset": record.synced.offset},
    }  # fmt: skip
    payload = record.payload or b""
    if record.kind is RecordKind.HARD_STATE:
        shown["vote"] = payload.decode() or None
    elif payloads and record.kind in ENTRIES:
        shown["payload"] = payload.hex()
    return shown


def print_log(log: LogDump, group: str, *, payloads: bool) -> None:
    """Print every segment.

    Args:
        log: the dump.
        group: id of the tablet to print; empty: all.
        payloads: True to print the payloads of records.
    """
    count = sum(len(s.records) for s in log.segments)
    groups = {r.group for s in log.segments for r in s.records if r.kind is not RecordKind.MARKER}
    print(
        f"{counted(len(log.segments), 'segment')}, {counted(count, 'record')} of "
        f"{counted(len(groups), 'group')}; it was durable up to segment "
        f"{log.proven.sequence}, offset {log.proven.offset:,}"
    )
    if log.extent_file is not None:
        _print_extent(log.extent_file, log.missing)
    for name in log.placeholders:
        print(f"{name} is being prepared and is not part of the log yet")
    for segment in log.segments:
        _print_segment(segment, group, payloads=payloads)


def _print_extent(extent_file: ExtentStatus, missing: str) -> None:
    must = extent_file.extent
    if must is None:
        what = (
            "is damaged: the expected segments are unknown"
            if extent_file.exists
            else "does not exist: the expected segments are unknown"
        )
    elif last_of(must) < must.first:
        what = "no segment is expected yet"
    else:
        first, last = segment_name(must.first), segment_name(last_of(must))
        which = f"{first} has" if first == last else f"{first} to {last} have"
        end = f", up to offset {must.end.offset:,} of the last one" if must.end.offset else ""
        what = f"{which} to exist{end}"
    print(f"{extent_file.path}: {what}")
    if missing:
        print(_coloured(f"DAMAGE: {missing}; every group of this log counts as corrupt", _RED))


def _coloured(text: str, colour: str) -> str:
    return f"{colour}{text}{_PLAIN}" if sys.stdout.isatty() else text


def _print_segment(segment: SegmentDump, group: str, *, payloads: bool) -> None:
    owner = f"of server {segment.server_uuid}" if segment.server_uuid else "of an unknown server"
    print(f"\n{segment.path}: segment {segment.sequence} {owner}, {_segment_state(segment)}")
    if segment.records:
        print(_COLUMNS)
    shown = [r for r in segment.records if group in ("", r.group.hex())]
    lines: list[Problem | Record] = sorted([*segment.problems, *shown], key=lambda one: one.offset)
    for one in lines:
        if isinstance(one, Problem):
            _print_problem(one)
        else:
            print(_line(one))
            if payloads and _kind(one) == EntryKind.OPERATION.name:
                for line in _payload(one):
                    print(line)


def _segment_state(segment: SegmentDump) -> str:
    if segment.footer is None:
        return f"open: {segment.used:,} of {segment.size:,} bytes used"
    closed_us, rows = segment.footer
    when = f" at {time_text(closed_us)} UTC" if closed_us else ""
    return f"sealed{when}: {segment.size:,} bytes, index of {counted(rows, 'row')}"


def _line(record: Record) -> str:
    place = f"{record.offset:>10} {record.length:>9}  {_kind(record):<10}"
    if record.kind is RecordKind.MARKER:
        text = f"all was durable up to {record.synced.sequence}+{record.synced.offset}"
        return f"{place} {'':<32} {'':>13}  {text}"
    at = f"{record.term}.{record.index}" if record.kind in ENTRIES else str(record.term or "")
    return f"{place} {record.group.hex()} {at:>13}  {_content(record)}".rstrip()


def _kind(record: Record) -> str:
    return (
        EntryKind(record.entry_kind).name if record.kind is RecordKind.ENTRY else record.kind.name
    )


def _content(record: Record) -> str:
    payload = record.payload or b""
    if record.kind is RecordKind.HARD_STATE:
        return f"vote for {payload.decode()}" if payload else "no vote"
    if record.kind is RecordKind.FORGET:
        return "all earlier records of the group are void"
    stamp = f"{time_text(to_micros(record.stamp))}+{record.stamp & LOGICAL_MASK}"
    if record.entry_kind == EntryKind.CONFIG:
        return f"{stamp}  {_members(payload)}"
    return f"{stamp}  {counted(record.length - RECORD_HEADER_BYTES, 'byte')}"


def _members(payload: bytes) -> str:
    try:
        return ", ".join(_member(m) for m in json.loads(payload)) or "no members"
    except (ValueError, TypeError, AttributeError):
        return repr(payload)


def _member(member: Mapping[str, Any]) -> str:
    kind = "voter" if member.get("voter", True) else "non-voter"
    marks = [m for m in ("promote", "replace") if member.get(m)]
    marks += [] if member.get("electable", True) else ["witness"]
    return " ".join((str(member.get("uuid")), kind, *marks))


def _payload(record: Record) -> Iterator[str]:
    """Yield the payload in hex and as text, 16 bytes per line."""
    payload = record.payload or b""
    for start in range(0, len(payload), _WIDTH):
        part = payload[start : start + _WIDTH]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        yield f"{'':>20}  {start:>6}  {part.hex(' '):<{3 * _WIDTH}} {text}"


def _print_problem(problem: Problem) -> None:
    finding = str(problem.finding).upper()
    text = f"{problem.offset:>10} {problem.length:>9}  {finding}: {problem.check}"
    if problem.finding is Finding.DAMAGE:
        text += f"; {_affected(problem)}"
    elif problem.finding is Finding.TORN:
        text += (
            "; the log ends here, nothing after it was acknowledged (or it is being written now)"
        )
    print(_coloured(text, _RED if problem.finding is Finding.DAMAGE else _YELLOW))


def _affected(problem: Problem) -> str:
    if not problem.certain:
        return "the affected groups are unknown: every group of this log counts as corrupt"
    if not problem.groups:
        return "no group's record is lost"
    return "lost for " + ", ".join(problem.groups)


def print_cmeta(files: Mapping[str, Mapping[str, Any] | str]) -> None:
    """Print consensus metadata."""
    for path, one in files.items():
        if isinstance(one, str):
            print(f"\n{one}")
            continue
        vote = f"vote for {one['vote']}" if one["vote"] else "no vote"
        print(f"\n{path}: group {one['group']}, term {one['term']}, {vote}")
        print(f"  committed configuration {one['config']}:")
        for member in one["members"]:
            print(f"  {_member(member)}, peers at {member['peer_address']}, {member['address']}")


def time_text(micros: int) -> str:
    """Return microseconds since the epoch as a UTC time."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%d %H:%M:%S.%f")
    except OverflowError:
        return str(micros)
