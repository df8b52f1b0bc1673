"""Metrics of each tablet, for `/metrics` and the web page."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.common.metrics import Family, Metrics
from nyala.replica.status import MaintenanceStats
from nyala.tablet.maintain.maintenance import Figures
from nyala.tablet.tablet import Tablet
from nyala.tserver.maintenance import Compactor
from nyala.tserver.memory import MemoryBudget
from nyala.tserver.tablets import Tablets
from nyala.web.pages import Listing

LABELS = ("table", "tablet")


@dataclass(frozen=True, slots=True)
class TabletSample:
    """Measurements of one tablet.

    Attributes:
        table: name of its table.
        tablet: its id.
        files: statistics of its files and memory.
        work: statistics of its maintenance.
        flush_score: see `MemoryBudget.score`.
        compaction_score: see `compaction.score`; 0: no compaction is worth it.
    """

    table: str
    tablet: TabletId
    files: Figures
    work: MaintenanceStats
    flush_score: float
    compaction_score: float


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric.

    Attributes:
        metric: name in `/metrics`; a counter if it ends with `_total`.
        heading: heading of the column on the page.
        description: its description.
        read: returns its value for a tablet.
    """

    metric: str
    heading: str
    description: str
    read: Callable[[TabletSample], float]


COLUMNS = (
    MetricColumn("tablet_rowset_count", "rowsets", "Rowsets on disk.", lambda t: t.files.rowsets),
    MetricColumn("tablet_depth_rowsets", "rowsets of a key", "Most live rowsets that one key may be in.",
           lambda t: t.files.depth),
    MetricColumn("tablet_live_versions", "live versions", "On disk.",
           lambda t: t.files.versions - t.files.ended),
    MetricColumn("tablet_ended_versions", "ended versions", "On disk: history.", lambda t: t.files.ended),
    MetricColumn("tablet_file_bytes", "bytes on disk", "Of all rowsets.", lambda t: t.files.file_bytes),
    MetricColumn("tablet_memory_bytes", "bytes in memory", "Bytes of memory that a flush would free.",
           lambda t: t.files.memory_bytes),
    MetricColumn("tablet_log_bytes", "bytes of log", "Payload in the log of rows that are not flushed.",
           lambda t: t.work.log_bytes),
    MetricColumn("tablet_history_seconds", "history, s", "Since the oldest version that is kept ended.",
           lambda t: t.files.history_s),
    MetricColumn("tablet_amplification_ratio", "times written", "Versions written, merges included, by "
           "versions flushed.", lambda t: t.files.amplification),
    MetricColumn("tablet_flushes_total", "flushes", "Done since the tablet was opened.",
           lambda t: t.work.flushes),
    MetricColumn("tablet_flush_seconds_total", "flushes, s", "That flushes took.",
           lambda t: t.work.flush_us / 1e6),
    MetricColumn("tablet_flushed_versions_total", "versions flushed", "Written by flushes.",
           lambda t: t.files.flushed),
    MetricColumn("tablet_compactions_total", "compactions", "Done since the tablet was opened.",
           lambda t: t.work.compactions),
    MetricColumn("tablet_compaction_seconds_total", "compactions, s", "That compactions took.",
           lambda t: t.work.compaction_us / 1e6),
    MetricColumn("tablet_compacted_versions_total", "versions compacted", "Written by compactions.",
           lambda t: t.files.merged),
    MetricColumn("tablet_flush_score_ratio", "flush score",
           "Score of a flush: shares of memory and log.",
           lambda t: t.flush_score),
    MetricColumn("tablet_compaction_score_ratio", "compaction score",
           "Score of the best compaction; 0: none.",
           lambda t: t.compaction_score),
)  # fmt: skip


class TabletMetrics:
    """Metrics of all tablets of this server.

    Args:
        tablets: tablets of this server.
        memory: scores flushes.
        compactor: has the scores of compactions, as of its last check.
    """

    def __init__(self, tablets: Tablets, memory: MemoryBudget, compactor: Compactor) -> None:
        self._tablets = tablets
        self._memory = memory
        self._compactor = compactor

    def expose(self, metrics: Metrics) -> None:
        """Expose the metrics in `/metrics`."""
        metrics.families(self._families)

    def page(self) -> Listing:
        """Return the page of all tablets."""
        rows = [
            (t.table, t.tablet, *(f"{c.read(t):,.10g}" for c in COLUMNS)) for t in self._figures()
        ]
        return Listing("tablets", (*LABELS, *(c.heading for c in COLUMNS)), sorted(rows))

    def _families(self) -> Iterator[Family]:
        shown = list(self._figures())
        for column in COLUMNS:
            samples = [((t.table, t.tablet), column.read(t)) for t in shown]
            yield Family(column.metric, column.description, LABELS, samples)

    def _figures(self) -> Iterator[TabletSample]:
        scores = self._compactor.scores
        for replica in self._tablets.host.all():
            try:
                tablet, work = replica.machine, replica.maintenance_stats()
            except NyalaError:  # FAILED, opening, or deleted
                continue
            if not isinstance(tablet, Tablet):
                continue  # a witness
            info, files = tablet.info, tablet.figures()
            flush = self._memory.score(files.memory_bytes, work.log_bytes)
            merge = scores.get(replica.group, 0.0)
            yield TabletSample(info.table_name, replica.group, files, work, flush, merge)
