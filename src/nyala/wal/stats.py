"""The log in numbers, for metrics and for whoever decides what to flush."""

from dataclasses import dataclass

from nyala.common.ids import TabletId


@dataclass(slots=True)
class Counts:
    """Counts of the appender since open."""

    slots: int = 0
    records: int = 0
    rounds: int = 0
    syncs: int = 0
    rolls: int = 0
    bytes_written: int = 0

    def round(self, slots: int, records: int, size_bytes: int, *, synced: bool) -> None:
        """Count one round.

        Args:
            slots: written in it.
            records: written in it.
            size_bytes: of its records.
            synced: it was synced.
        """
        self.rounds += 1
        self.slots += slots
        self.records += records
        self.bytes_written += size_bytes
        self.syncs += synced


@dataclass(frozen=True, slots=True)
class WalStats:
    """The log in numbers, since open.

    Attributes:
        slots: acknowledged reservations.
        records: written, all kinds.
        rounds: vectored writes.
        syncs: of rounds.
        markers: written by the timer.
        rolls: segments sealed and followed by the next.
        collected: segments removed.
        moved: entries that were written again, since they pinned the oldest segment.
        bytes_written: without headers of segments and footers.
        pending_bytes: reserved and not yet durable.
        segments: files, the active one included.
        pinned_by: the groups that keep the oldest segment.
        disk_error: why the log cannot grow now (a full disk, or its reserve); None: it can.
    """

    slots: int
    records: int
    rounds: int
    syncs: int
    markers: int
    rolls: int
    collected: int
    moved: int
    bytes_written: int
    pending_bytes: int
    segments: int
    pinned_by: tuple[TabletId, ...]
    disk_error: OSError | None
