"""`nyala pipeline flights`: data pipelines on Spark."""

from pathlib import Path
from typing import Annotated

import typer

from nyala.cli.output import MastersOption, fail, stays, verb

app = typer.Typer(
    no_args_is_help=True, help="Data pipelines on Spark; they need the extra `spark`."
)


@app.callback()
def _group() -> None:
    """Data pipelines on Spark; require the extra `spark`."""


@app.command("flights")
@verb
@stays("rows that were written stay: run the command again, which writes all of them again")
def flights(
    masters: MastersOption = "",
    slices: Annotated[int, typer.Option(help="Number of slices in which the year is loaded.")] = 8,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of raw CSV files; the year that ships with nyala if not given."),
    ] = None,
    tablets: Annotated[int, typer.Option(help="Hash buckets of the flights table.")] = 4,
    replicas: Annotated[int, typer.Option(help="Replicas of each tablet; odd.")] = 3,
) -> None:
    """Load a year of flights as a stream of changes."""
    try:
        from nyala.spark.flights.pipeline import run_pipeline
    except ImportError as err:
        raise fail(f"pipelines need PySpark ({err}); install nyala[spark]", 2) from None
    run_pipeline(masters, slices=slices, tablets=tablets, replicas=replicas, folder=data)
