"""Metrics of each tablet, for `/metrics` and the web page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import to_micros
from nyala.common.ids import TabletId
from nyala.common.metrics import Family, Metrics
from nyala.env.clock import Clock
from nyala.machines import registry
from nyala.replica.status import MaintenanceStats
from nyala.tserver.compaction_scheduler import CompactionScheduler
from nyala.tserver.flush_scheduler import FlushScheduler
from nyala.tserver.history_holds import HistoryHolds
from nyala.tserver.tablets import Tablets
from nyala.web.pages import Listing

LABELS = ("table", "tablet")


@dataclass(frozen=True, slots=True)
class TabletSample:
    """Measurements of one tablet.

    Attributes:
        table: name of its table or journal.
        tablet: its id.
        files: measurements of its files and memory, by metric (`MachineKind.figures`).
        work: statistics of its maintenance.
        flush_score: see `FlushScheduler.score`.
        compaction_score: see `compaction.score`; 0: no compaction is worth it.
        holds: number of holds of its history.
        held_s: seconds from the earliest time that a hold keeps readable to the present.
        prepared: number of prepared transactions.
        prepared_s: seconds since the earliest prepare time.
    """

    table: str
    tablet: TabletId
    files: Mapping[str, float]
    work: MaintenanceStats
    flush_score: float
    compaction_score: float
    holds: int
    held_s: float
    prepared: int
    prepared_s: float


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric.

    Attributes:
        metric: name in `/metrics`; a counter if it ends with `_total`.
        heading: heading of the column on the page.
        description: its description.
        read: returns its value for a tablet; None: it is one of `TabletSample.files`, if the tablet's kind
            has it.
    """

    metric: str
    heading: str
    description: str
    read: Callable[[TabletSample], float] | None = None

    def value(self, tablet: TabletSample) -> float | None:
        """Return its value for a tablet; None: tablets of its kind have none."""
        return tablet.files.get(self.metric) if self.read is None else self.read(tablet)


COLUMNS = (
    MetricColumn("tablet_rowset_count", "rowsets", "Rowsets on disk."),
    MetricColumn("tablet_depth_rowsets", "rowsets of a key", "Most live rowsets that one key may be in."),
    MetricColumn("tablet_live_versions", "live versions", "On disk."),
    MetricColumn("tablet_ended_versions", "ended versions", "On disk: history."),
    MetricColumn("tablet_file_bytes", "bytes on disk", "Of all files with data."),
    MetricColumn("tablet_memory_bytes", "bytes in memory", "Bytes of memory that a flush would free."),
    MetricColumn("tablet_log_bytes", "bytes of log", "Payload in the log of changes that are not flushed.",
           lambda t: t.work.log_bytes),
    MetricColumn("tablet_history_seconds", "history, s", "Since the oldest version that is kept ended."),
    MetricColumn("tablet_amplification_ratio", "times written", "Versions written, merges included, by "
           "versions flushed."),
    MetricColumn("tablet_flushes_total", "flushes", "Done since the tablet was opened.",
           lambda t: t.work.flushes),
    MetricColumn("tablet_flush_seconds_total", "flushes, s", "That flushes took.",
           lambda t: t.work.flush_us / 1e6),
    MetricColumn("tablet_flushed_versions_total", "versions flushed", "Written by flushes."),
    MetricColumn("tablet_compactions_total", "compactions", "Done since the tablet was opened.",
           lambda t: t.work.compactions),
    MetricColumn("tablet_compaction_seconds_total", "compactions, s", "That compactions took.",
           lambda t: t.work.compaction_us / 1e6),
    MetricColumn("tablet_compacted_versions_total", "versions compacted", "Written by compactions."),
    MetricColumn("tablet_journal_items", "entries and keys", "Valid ones, of a journal."),
    MetricColumn("tablet_journal_bytes", "bytes of journal", "Of valid entries and keys, "
           "which `journal_bytes` limits."),
    MetricColumn("tablet_flush_score_ratio", "flush score",
           "Score of a flush: shares of memory and log.",
           lambda t: t.flush_score),
    MetricColumn("tablet_compaction_score_ratio", "compaction score",
           "Score of the best compaction; 0: none.",
           lambda t: t.compaction_score),
    MetricColumn("tablet_hold_count", "holds", "Holds of its history by readers and followed feeds.",
           lambda t: t.holds),
    MetricColumn("tablet_held_seconds", "held, s", "From the earliest time that a hold keeps readable to "
           "the present; 0: no hold.", lambda t: t.held_s),
    MetricColumn("tablet_staged_transactions", "staged", "Transactions with staged batches."),
    MetricColumn("tablet_staged_bytes", "bytes staged", "Of the batches of all of them; limited by "
           "txn_stage_bytes."),
    MetricColumn("tablet_prepared_count", "prepared", "Transactions whose outcome is not known: writes and "
           "reads of the latest rows wait.", lambda t: t.prepared),
    MetricColumn("tablet_prepared_seconds", "prepared, s", "Since the earliest prepare time; 0: none is.",
           lambda t: t.prepared_s),
)  # fmt: skip


class TabletMetrics:
    """Metrics of all tablets of this server.

    Args:
        tablets: tablets of this server.
        flushes: scores flushes.
        compactions: has the scores of compactions, as of its last check.
        holds: history holds.
        clock: wall time.
    """

    def __init__(
        self,
        tablets: Tablets,
        flushes: FlushScheduler,
        compactions: CompactionScheduler,
        holds: HistoryHolds,
        clock: Clock,
    ) -> None:
        self._tablets = tablets
        self._holds = holds
        self._clock = clock
        self._flushes = flushes
        self._compactions = compactions

    def expose(self, metrics: Metrics) -> None:
        """Expose the metrics in `/metrics`."""
        metrics.families(self._families)

    def page(self) -> Listing:
        """Return the page of all tablets."""
        rows = [
            (t.table, t.tablet, *(_shown(c.value(t)) for c in COLUMNS)) for t in self._figures()
        ]
        return Listing("tablets", (*LABELS, *(c.heading for c in COLUMNS)), sorted(rows))

    def maintenance_page(self) -> Listing:
        """Return the page of flushes and compactions: those under way, then those that wait, the next first.

        A flush waits for memory or log to run short, or for its tablet's own limits; a compaction for the
        others, one at a time.
        """
        rows: list[tuple[int, float, tuple[str, ...]]] = []
        for t in self._figures():
            passed_over = self._compactions.waited.get(t.tablet, 0)
            kinds = (("flush", t.flush_score, 0), ("compaction", t.compaction_score, passed_over))
            for place, (kind, score, passed) in enumerate(kinds, start=1):
                if t.work.running == kind:
                    running_s = f"{t.work.running_us / 1e6:.1f}"
                    rows.append((0, 0.0, _operation(t, kind, running_s, score, 0)))
                elif score:
                    what = _operation(t, kind, "", score, passed)
                    rows.append((place, -score * (1 + passed), what))
        return Listing("maintenance", OPERATION, [row for *_, row in sorted(rows)])

    def _families(self) -> Iterator[Family]:
        shown = list(self._figures())
        for column in COLUMNS:
            values = [((t.table, t.tablet), column.value(t)) for t in shown]
            samples = [(labels, value) for labels, value in values if value is not None]
            yield Family(column.metric, column.description, LABELS, samples)

    def _figures(self) -> Iterator[TabletSample]:
        scores = self._compactions.scores
        for replica in self._tablets.host.all():
            try:
                machine, work = replica.machine, replica.maintenance_stats()
            except NyalaError:  # FAILED, opening, or deleted
                continue
            info = registry.describe(machine)
            if info is None:
                continue  # a witness
            files = registry.kind_of(info.kind).figures(machine)
            flush = self._flushes.score(machine.unflushed_bytes(), work.log_bytes)
            merge = scores.get(replica.group, 0.0)
            held = [hold.at for _, hold, _ in self._holds.of(replica.group)]
            prepared = [p.at for p in replica.transactions.prepared.values()]
            yield TabletSample(
                info.name, replica.group, files, work, flush, merge,
                len(held), self._age_s(held), len(prepared), self._age_s(prepared),
            )  # fmt: skip

    def _age_s(self, times: Sequence[int]) -> float:
        """Return the seconds since the earliest of some hybrid times; 0: there are none."""
        return max(0, self._clock.wall_us() - to_micros(min(times))) / 1e6 if times else 0.0


OPERATION = (
    *LABELS, "operation", "state", "running s", "score", "choices passed over",
    "bytes in memory", "bytes of log",
)  # fmt: skip
"""Headings of the page of maintenance."""


def _operation(
    tablet: TabletSample, kind: str, running_s: str, score: float, passed: int
) -> tuple[str, ...]:
    """Return a row of the page of maintenance.

    Args:
        tablet: whose operation it is.
        kind: flush or compaction.
        running_s: seconds since it began; empty: it waits.
        score: of the operation.
        passed: number of choices in which it was not chosen.
    """
    state = "under way" if running_s else "waits"
    flushed = kind == "flush"
    return (
        tablet.table, tablet.tablet, kind, state, running_s, _shown(round(score, 6)),
        "" if flushed else str(passed),
        _shown(tablet.files.get("tablet_memory_bytes")) if flushed else "",
        _shown(tablet.work.log_bytes) if flushed else "",
    )  # fmt: skip


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.10g}"
