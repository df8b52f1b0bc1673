"""Report of a benchmark: each line when it is measured, then a table, and the same as JSON."""

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Line:
    """One line of a report.

    Attributes:
        work: name of the measurement.
        figure: measured value.
        unit: unit of the figure.
        ratio: ratio to another measurement of the same run, as text.
        target: value that the figure has to reach, as text; "" without a target.
        met: whether the target is reached; None without a target.
    """

    work: str
    figure: float
    unit: str
    ratio: str = ""
    target: str = ""
    met: bool | None = None


@dataclass
class Report:
    """Figures of one run.

    Attributes:
        name: name of the benchmark.
        about: setup in one sentence: rows, schema, replicas, sync.
        rows: lines of the report.
    """

    name: str
    about: str
    rows: list[Line] = field(default_factory=list)
    _began: float = field(default_factory=time.perf_counter)

    def add(
        self,
        work: str,
        figure: float,
        unit: str,
        ratio: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Add one line and print it; a target is in the figure's unit."""
        target, met = "", None
        if at_least is not None:
            target, met = f">= {_number(at_least)}", figure >= at_least
        elif at_most is not None:
            target, met = f"<= {_number(at_most)}", figure <= at_most
        self.rows.append(Line(work, figure, unit, ratio, target, met))
        words = f"{work}: {_number(figure)} {unit}" + (f" ({ratio})" if ratio else "")
        words += f", {target}: {_verdict(met)}" if target else ""
        print(f"{time.perf_counter() - self._began:4.0f} s  {words}", flush=True)

    def show(self) -> None:
        """Print the table and one line of JSON."""
        title = f"{self.name} at {commit()}: {self.about}"
        table = Table(title=title, title_justify="left")
        targets = any(line.target for line in self.rows)
        columns = ["work", "figure", "unit", "ratio in this run"]
        for column in columns + (["target", ""] if targets else []):
            table.add_column(column, justify="right" if column == "figure" else "left")
        for line in self.rows:
            cells = [line.work, _number(line.figure), line.unit, line.ratio]
            table.add_row(*cells, *([line.target, _verdict(line.met)] if targets else []))
        Console(width=140 if targets else 120).print(table)
        facts = {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "commit": commit(),
        }
        rows = [asdict(line) for line in self.rows]
        print(json.dumps({"name": self.name, "about": self.about, "machine": facts, "rows": rows}))


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "MISSED"


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def commit() -> str:
    """Return the short name of the commit that is checked out, "?" without a repository."""
    found = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip() or "?"


def disk_bytes(folder: str) -> int:
    """Return the bytes of all files below a folder."""
    return sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
