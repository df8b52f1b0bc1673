"""Bytes that Kudu needs for the rows of `store_tables.py` according to its statistics, its log included.

`--kudu FOLDER` names Kudu (`kudu_cluster.py`); without it, recorded figures are used.
"""

import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks import kudu_cluster
from benchmarks.report import Report

ROWS = 1_000_000
"""Number of rows; with fewer, the retained segments of its log dominate."""
_SETTLED_S, _WAIT_S = 15, 60
_FLUSH_SOON = "--flush_threshold_secs=10"
"""Flag of an earlier flush in the same format; by default Kudu flushes small memrowsets after two minutes."""


@dataclass(frozen=True)
class Bytes:
    """Kudu's bytes a row of one replica.

    Attributes:
        fresh: table whose rows were inserted once.
        upserted: after 0.6 upserts a row at random.
    """

    fresh: float
    upserted: float


RECORDED = Bytes(150, 310)
"""Figures of Kudu 1.18.0 with 1,000,000 rows."""


def measure(report: Report) -> Bytes:
    """Add Kudu's lines; return them."""
    figures, label = RECORDED, "RECORDED elsewhere, not in this run"
    found = kudu_cluster.programs()
    if found is not None:
        try:
            figures, label = _in_this_run(found), f"{ROWS:,} rows, as its statistics count"
        except (RuntimeError, OSError, subprocess.SubprocessError) as err:
            print(f"Kudu is left out: {err}", flush=True)
    report.add("Kudu: disk, fresh rows", figures.fresh, "bytes/row", label)
    report.add("Kudu: disk, 0.6 upserts a row more", figures.upserted, "bytes/row", label)
    return figures


def _in_this_run(found: kudu_cluster.Programs) -> Bytes:
    with kudu_cluster.Kudu(found, _FLUSH_SOON) as kudu:
        kudu.order("create", "t", 1)
        kudu.order("same", "t", ROWS, 0, 0)
        fresh = _settled(kudu)
        kudu.order("same", "t", ROWS * 6 // 10, ROWS, 8)
        return Bytes(fresh / ROWS, _settled(kudu) / ROWS)


def _settled(kudu: kudu_cluster.Kudu) -> int:
    """Return the table's bytes once they are constant: everything is flushed and compacted."""
    began = changed = time.monotonic()
    size = kudu.disk_bytes("t")
    while time.monotonic() - changed < _SETTLED_S and time.monotonic() - began < _WAIT_S:
        time.sleep(1)
        now = kudu.disk_bytes("t")
        if now != size:
            size, changed = now, time.monotonic()
            print(f"Kudu: {size / ROWS:.0f} bytes a row", file=sys.stderr, flush=True)
    return size
