"""Result of opening a log: entries and hard states by group, damage, torn tail.

Without I/O; opening.py reads the files and passes the records in.
"""

from dataclasses import dataclass, field

from nyala.common.errors import Corrupt, LogGap
from nyala.common.ids import NO_OP, OpId, TabletId
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.wal.index import EntryLocation, LogIndex
from nyala.wal.recovery.moved import MovedRuns
from nyala.wal.segments.format import Record, RecordKind, to_entry, to_group, to_hard_state
from nyala.wal.segments.segment import PINNED, Segment


@dataclass(slots=True)
class RecoveredGroup:
    """Content of the log for one group; entries are read when needed (`Wal.read`).

    Attributes:
        first: index of the first entry.
        last: op id of the last entry; NO_OP: there is none.
        starts: op ids of the first entry and of the first one of each later term.
        configs: the CONFIG entries, in the order of their indexes.
        hard_state: the last term and vote; None: none in the log.
        corrupt: error for which the replica must not continue from this log; None: its log is intact.
    """

    first: int = 1
    last: OpId = NO_OP
    starts: tuple[OpId, ...] = ()
    configs: list[Entry] = field(default_factory=list)
    hard_state: HardState | None = None
    corrupt: Corrupt | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage to records that were durable.

    Attributes:
        error: the error, with details `path` and `offset`.
        groups: affected groups; all groups of the log if they are unknown.
        certain: False if the affected groups are unknown; they may include groups without any record left.
    """

    error: Corrupt
    groups: tuple[TabletId, ...]
    certain: bool = True


@dataclass(frozen=True, slots=True)
class TornTail:
    """Position at which a crash truncated the log."""

    path: str
    offset: int
    lost_bytes: int


@dataclass(slots=True)
class Recovery:
    """Result of `recover`.

    Attributes:
        groups: by id, without deleted ones.
        segments: all sealed, oldest first.
        index: index of the entries in `groups`.
        hard_state_at: the segment that holds each group's last hard state.
        damage: what is damaged.
        torn: the truncated tail; None: none.
        missing: first or last segments are missing.
        next_sequence: sequence of the segment to append to.
    """

    groups: dict[TabletId, RecoveredGroup] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    index: LogIndex = field(default_factory=LogIndex)
    hard_state_at: dict[TabletId, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    torn: TornTail | None = None
    missing: bool = False
    next_sequence: int = 1
    _runs: MovedRuns = field(init=False)

    def __post_init__(self) -> None:
        self._runs = MovedRuns(self.index)

    @property
    def unattributed(self) -> Damage | None:
        """Damage that may affect groups without any record left in the log; None: none."""
        return next((d for d in self.damage if not d.certain), None)

    def mark(self, damage: Damage) -> None:
        """Mark the groups of a damage as corrupt."""
        for group in damage.groups:
            own = self.groups.setdefault(group, RecoveredGroup())
            own.corrupt = own.corrupt or damage.error

    def pin(self) -> None:
        """Retain all segments for corrupt groups, until their superblocks have the reason (`Wal.release`)."""
        for group, own in self.groups.items():
            if own.corrupt is not None:
                for segment in self.segments:
                    segment.last[group] = PINNED

    def finish(self) -> None:
        """Complete each group from the index, after the replay."""
        for group, own in self.groups.items():
            own.configs = [c for c in own.configs if self.index.holds(group, c.id)]
            own.configs.sort(key=lambda c: c.id.index)  # some may have been moved to the log's end
            fill_bounds(self.index, group, own)

    def replay(self, segment: Segment, record: Record) -> None:
        """Process one valid record, in the order of the log."""
        if record.kind is RecordKind.MARKER:
            return
        group = to_group(record.group)
        segment.note(record.kind, group, record.index)
        if record.kind is RecordKind.FORGET:
            self._forget(group)
            return
        own = self.groups.setdefault(group, RecoveredGroup())
        if record.kind is RecordKind.HARD_STATE:
            own.hard_state = to_hard_state(record)
            self.hard_state_at[group] = segment.sequence
            return
        place = EntryLocation(
            record.index, record.term, segment.sequence, record.offset, record.length
        )
        if record.entry_kind == EntryKind.CONFIG:
            own.configs = [c for c in own.configs if c.id.index != record.index]
            own.configs.append(to_entry(record))
        if record.kind is RecordKind.MOVED:
            self._runs.take(group, record, place)
        elif not self.index.put(group, place) and own.corrupt is None:
            bounds = self.index.bounds(group)
            own.corrupt = LogGap(
                f"{segment.path}: entry {record.index} of {group} follows entry "
                f"{bounds[1] - 1 if bounds else 0}; replace this replica",
                {"path": segment.path, "offset": str(record.offset)},
            )

    def _forget(self, group: TabletId) -> None:
        self.groups.pop(group, None)
        self.hard_state_at.pop(group, None)
        self.index.drop_group(group)
        self._runs.forget(group)
        for segment in self.segments:
            segment.forget(group)


def fill_bounds(index: LogIndex, group: TabletId, own: RecoveredGroup) -> RecoveredGroup:
    """Fill in first and last entry and the starts of terms from an index; return `own`.

    Args:
        index: index of the log.
        group: id of the Raft group.
        own: updated.
    """
    *starts, last = index.starts(group) or [NO_OP]
    own.first, own.starts, own.last = starts[0].index if starts else 1, tuple(starts), last
    return own
