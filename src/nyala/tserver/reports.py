"""Changes that a master has not acknowledged yet (S0.24-S0.27, S0.36).

Bookkeeping without I/O. One `ChangeLog` per server, one `MasterView` per master.
"""

from dataclasses import dataclass
from itertools import takewhile

from nyala.common.ids import TabletId

CHANGES = 10_000
"""Number of tablets whose last change is remembered; a master that needs others gets a full report."""


class ChangeLog:
    """Numbers every change of a replica's configuration, leader or state.

    Attributes:
        reports: number of reports started. One count for all masters: a master that is removed and added
            again remembers earlier numbers, and accepts only higher ones.
    """

    def __init__(self) -> None:
        self.reports = 0
        self.forgotten = 0
        self._version = 0
        self._changed: dict[TabletId, int] = {}  # by their last change

    @property
    def version(self) -> int:
        """Number of the last change."""
        return self._version

    def note(self, tablet: TabletId) -> None:
        """Record that this tablet's replica changed."""
        self._version += 1
        self._changed.pop(tablet, None)
        self._changed[tablet] = self._version
        if len(self._changed) > CHANGES:
            self.forgotten = self._changed.pop(next(iter(self._changed)))

    def changed_since(self, version: int) -> list[TabletId]:
        """Return the tablets that changed after a version, in a stable order."""
        newest = reversed(self._changed.items())
        return sorted(t for t, _ in takewhile(lambda change: change[1] > version, newest))


@dataclass(slots=True)
class MasterView:
    """Acknowledged state of one master.

    Attributes:
        acknowledged: version up to which the master has acknowledged all changes.
        needs_full: the next report has every replica: at start, on request, and when the master becomes
            leader.
        leader: it leads, according to its last response.
        catalog: incarnation of its catalog, according to its last response; empty: it has none yet.
        sequence: number of the last report sent to it.
    """

    acknowledged: int = 0
    needs_full: bool = True
    leader: bool = False
    catalog: str = ""
    sequence: int = 0
    _sent_version: int = 0
    _sent_full: bool = False

    def begin(self, changes: ChangeLog) -> tuple[bool, list[TabletId]]:
        """Start the next report; return (full, the changed tablets of an incremental one).

        It is full, too, if this master has not acknowledged a change that is not remembered any more.
        """
        self.needs_full |= self.acknowledged < changes.forgotten
        changes.reports += 1
        self.sequence = changes.reports
        self._sent_version = changes.version
        self._sent_full = self.needs_full
        return self.needs_full, [] if self.needs_full else changes.changed_since(self.acknowledged)

    def request_full(self) -> None:
        """Make the next report a full one, whatever report is in flight."""
        self.needs_full, self._sent_full = True, False

    def on_response(self, *, leader: bool, needs_full: bool, acknowledged_sequence: int) -> None:
        """Process the response to the last report; without a response its changes stay unacknowledged.

        Args:
            leader: the master leads.
            needs_full: it requests a full report.
            acknowledged_sequence: number of the last report that it has processed.
        """
        became_leader = leader and not self.leader
        self.leader = leader
        if acknowledged_sequence == self.sequence:
            self.acknowledged = self._sent_version
            if self._sent_full:
                self.needs_full = False
        if needs_full or (became_leader and not self._sent_full):
            self.needs_full = True
