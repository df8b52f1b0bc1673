"""Statistics of the log, for metrics and flush decisions."""

from dataclasses import dataclass

from nyala.common.ids import TabletId


@dataclass(slots=True)
class Counts:
    """Counters of the appender since open."""

    slots: int = 0
    records: int = 0
    rounds: int = 0
    syncs: int = 0
    rolls: int = 0
    bytes_written: int = 0

    def round(self, slots: int, records: int, size_bytes: int, *, synced: bool) -> None:
        """Count one round.

        Args:
            slots: number written in it.
            records: number written in it.
            size_bytes: size in bytes of its records.
            synced: it was synced.
        """
        self.rounds += 1
        self.slots += slots
        self.records += records
        self.bytes_written += size_bytes
        self.syncs += synced


@dataclass(frozen=True, slots=True)
class WalStats:
    """Statistics of the log since open.

    Attributes:
        slots: number of acknowledged slots.
        records: number written, of all kinds.
        rounds: number of rounds.
        syncs: number of synced rounds.
        markers: number of markers added.
        rolls: number of segments that were sealed and followed by the next one.
        collected: number of segments removed.
        moved: number of entries rewritten because they retained the oldest segment.
        bytes_written: number of bytes of records, without segment headers and footers.
        pending_bytes: size of the slots that are reserved and not yet durable.
        segments: number of files, the active one included.
        pinned_by: groups that retain the oldest segment.
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
