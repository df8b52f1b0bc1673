"""What an opened log held: by group its entries and hard state; damage and torn tail as values.

Rules: pure; recovery.py reads the files and feeds the records in.
"""

from dataclasses import dataclass, field

from nyala.common.errors import Corrupt, LogGap
from nyala.common.ids import TabletId
from nyala.raft.messages import Entry, HardState
from nyala.wal.format import Kind, Record, to_entry, to_group, to_hard_state
from nyala.wal.index import LogIndex, Place
from nyala.wal.segment import PINNED, Segment


@dataclass(slots=True)
class RecoveredGroup:
    """What the log held of one group.

    Attributes:
        entries: in index order without gaps; for an index written twice, the later one.
        hard_state: the last term and vote; None: none in the log.
        corrupt: why the replica must not go on from this log; None: it is whole.
    """

    entries: list[Entry] = field(default_factory=list)
    hard_state: HardState | None = None
    corrupt: Corrupt | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged stretch that was durable once.

    Attributes:
        error: with details `path` and `offset`.
        groups: affected, as far as the log can tell; every group of the log if it cannot.
        certain: False: it cannot, so that a group unknown to the log may be affected too.
    """

    error: Corrupt
    groups: tuple[TabletId, ...]
    certain: bool = True


@dataclass(frozen=True, slots=True)
class TornTail:
    """Where a crash ended the log."""

    path: str
    offset: int
    lost_bytes: int


@dataclass(slots=True)
class Recovery:
    """What `recover` found and made.

    Attributes:
        groups: by id, without forgotten ones.
        segments: all sealed, oldest first.
        index: of the entries in `groups`.
        hard_state_at: the segment that holds each group's last hard state.
        damage: what is damaged.
        torn: the tail that was cut off, or None.
        missing: first or last segments are gone.
        next_sequence: for the segment to append to.
    """

    groups: dict[TabletId, RecoveredGroup] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    index: LogIndex = field(default_factory=LogIndex)
    hard_state_at: dict[TabletId, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    torn: TornTail | None = None
    missing: bool = False
    next_sequence: int = 1

    @property
    def doubt(self) -> Damage | None:
        """Damage that may have hit groups of which the log holds nothing any more; None: none."""
        return next((d for d in self.damage if not d.certain), None)

    def mark(self, damage: Damage) -> None:
        """Make the groups of a damage corrupt."""
        for group in damage.groups:
            own = self.groups.setdefault(group, RecoveredGroup())
            own.corrupt = own.corrupt or damage.error

    def pin(self) -> None:
        """Keep every file there is for the groups that are corrupt, until they are forgotten."""
        for group, own in self.groups.items():
            if own.corrupt is not None:
                for segment in self.segments:
                    segment.last[group] = PINNED

    def replay(self, segment: Segment, record: Record) -> None:
        """Take one whole record, in the order of the log."""
        if record.kind is Kind.MARKER:
            return
        group = to_group(record.group)
        segment.note(record.kind, group, record.index)
        if record.kind is Kind.FORGET:
            self._forget(group)
            return
        own = self.groups.setdefault(group, RecoveredGroup())
        if record.kind is Kind.HARD_STATE:
            own.hard_state = to_hard_state(record)
            self.hard_state_at[group] = segment.sequence
            return
        place = Place(record.index, record.term, segment.sequence, record.offset, record.length)
        if self.index.put(group, place):
            entries = own.entries
            if entries and record.index <= entries[-1].id.index:
                del entries[max(0, record.index - entries[0].id.index) :]
            entries.append(to_entry(record))
        elif own.corrupt is None:
            own.corrupt = LogGap(
                f"{segment.path}: entry {record.index} of {group} follows entry "
                f"{own.entries[-1].id.index}; the replica has to be replaced",
                {"path": segment.path, "offset": str(record.offset)},
            )

    def _forget(self, group: TabletId) -> None:
        self.groups.pop(group, None)
        self.hard_state_at.pop(group, None)
        self.index.drop_group(group)
        for segment in self.segments:
            segment.forget(group)
