"""What every benchmark prints: machine facts, a table, and the same as JSON."""

import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass
class Report:
    """Figures of one run.

    Attributes:
        name: of the benchmark.
        about: what ran, in a sentence: rows, schema, replicas, sync.
        rows: (work, figure, unit, ratio in words).
    """

    name: str
    about: str
    rows: list[tuple[str, float, str, str]] = field(default_factory=list)

    def add(self, work: str, figure: float, unit: str, ratio: str = "") -> None:
        """Add one line."""
        self.rows.append((work, figure, unit, ratio))

    def show(self) -> None:
        """Print the table and one line of JSON."""
        table = Table(title=f"{self.name}: {self.about}", title_justify="left")
        for column in ("work", "figure", "unit", "ratio in this run"):
            table.add_column(column, justify="right" if column == "figure" else "left")
        for work, figure, unit, ratio in self.rows:
            table.add_row(work, f"{figure:,.2f}" if figure < 100 else f"{figure:,.0f}", unit, ratio)
        Console(width=120).print(table)
        facts = {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        print(
            json.dumps(
                {"name": self.name, "about": self.about, "machine": facts, "rows": self.rows}
            )
        )


def disk_bytes(folder: str) -> int:
    """Return the bytes of all files below a folder."""
    return sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
