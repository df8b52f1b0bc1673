"""How many bytes Kudu takes for the rows of `store_tables.py`, as its statistics count: its log is in them.

`--kudu FOLDER` names Kudu (`kudu_cluster.py`); without it, what it did once stands in its place.
"""

import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks import kudu_cluster
from benchmarks.report import Report

ROWS = 1_000_000
"""Fewer would mostly show the segments of its log, which it keeps."""
_SETTLED_S, _WAIT_S = 15, 60
_FLUSH_SOON = "--flush_threshold_secs=10"
"""Kudu waits two minutes before it flushes what is not large; how it writes is the same."""


@dataclass(frozen=True)
class Bytes:
    """Kudu's bytes a row of one replica.

    Attributes:
        fresh: rows inserted once.
        upserted: after 0.6 upserts a row at random.
    """

    fresh: float
    upserted: float


RECORDED = Bytes(150, 310)
"""Of Kudu 1.18.0, 1,000,000 rows."""


def measure(report: Report) -> Bytes:
    """Add Kudu's lines; return them."""
    told, label = RECORDED, "RECORDED elsewhere, not in this run"
    found = kudu_cluster.programs()
    if found is not None:
        try:
            told, label = _in_this_run(found), f"{ROWS:,} rows, as its statistics count"
        except (RuntimeError, OSError, subprocess.SubprocessError) as err:
            print(f"Kudu is left out: {err}", flush=True)
    report.add("Kudu: disk, fresh rows", told.fresh, "bytes/row", label)
    report.add("Kudu: disk, 0.6 upserts a row more", told.upserted, "bytes/row", label)
    return told


def _in_this_run(found: kudu_cluster.Programs) -> Bytes:
    with kudu_cluster.Kudu(found, _FLUSH_SOON) as kudu:
        kudu.order("create", "t", 1)
        kudu.order("same", "t", ROWS, 0, 0)
        fresh = _settled(kudu)
        kudu.order("same", "t", ROWS * 6 // 10, ROWS, 8)
        return Bytes(fresh / ROWS, _settled(kudu) / ROWS)


def _settled(kudu: kudu_cluster.Kudu) -> int:
    """Return the table's bytes once they stay the same: all is flushed, and what can be merged is."""
    began = changed = time.monotonic()
    size = kudu.disk_bytes("t")
    while time.monotonic() - changed < _SETTLED_S and time.monotonic() - began < _WAIT_S:
        time.sleep(1)
        now = kudu.disk_bytes("t")
        if now != size:
            size, changed = now, time.monotonic()
            print(f"Kudu: {size / ROWS:.0f} bytes a row", file=sys.stderr, flush=True)
    return size
