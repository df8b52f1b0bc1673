"""What a person sees: what will happen, progress, answers, and a summary with every check."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights_demo.checks import Checks
from examples.flights_demo.kills import Kill
from examples.flights_demo.questions import Question

console = Console(highlight=False)


def welcome(folder: Path) -> None:
    """Say what will happen, how long it takes and what it needs."""
    console.print(
        Panel(
            "Three masters and three tablet servers, on this machine. A year of flights out of New York "
            "becomes the 1,001,615 changes that it once was and goes through Spark into a table, while a "
            "tablet server that leads, the driver of the pipeline and the leader master are killed with kill "
            "-9. Statistics follow the changes, and a chain of backups is taken. Everything is compared with "
            "the raw data, row for row.\n\n"
            f"[dim]Takes 3 to 5 minutes on two cores; needs about 3 GB of memory and 1.5 GB of disk in "
            f"{folder}. Ctrl-C stops it and leaves no process behind.[/dim]",
            title="nyala: the main job",
            title_align="left",
            border_style="cyan",
        )
    )


def progress() -> Progress:
    """Return the bars of the load."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
    )


def answer(question: Question, rows: pa.Table, picture: Path) -> None:
    """Print the answer to one question."""
    table = Table(title=f"{question.title}  [dim]({picture})[/dim]", title_justify="left")
    table.add_column(question.axis)
    table.add_column("flights", justify="right")
    table.add_column("minutes", justify="right")
    for row in rows.to_pylist()[:8]:
        table.add_row(row["label"], f"{row['flights']:,}", f"{row['minutes']:.1f}")
    if rows.num_rows > 8:
        table.add_row("[dim]...[/dim]", "", "")
    console.print(table)


def summary(checks: Checks, figures: Sequence[tuple[str, str]], kills: Sequence[Kill]) -> None:
    """Print every check and the figures of this run."""
    for good, what, detail in checks.lines:
        mark = "[green]✓[/green]" if good else "[bold red]✗[/bold red]"
        console.print(
            f" {mark} {what}" + (f"\n     [red]{detail}[/red]" if detail and not good else "")
        )
    table = Table.grid(padding=(0, 3))
    for name, value in figures:
        table.add_row(name, f"[bold]{value}[/bold]")
    for kill in kills:
        table.add_row(
            f"longest write gap, {kill.name} killed",
            f"[bold]{kill.gap_s:.1f} s[/bold]  (it led {kill.led})",
        )
    failed = sum(not good for good, _, _ in checks.lines)
    title = "all checks held" if checks.good else f"{failed} of {len(checks.lines)} checks FAILED"
    console.print(
        Panel(
            table, title=title, title_align="left", border_style="green" if checks.good else "red"
        )
    )
