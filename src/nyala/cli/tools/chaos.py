"""`nyala chaos list` and `run`: the simulator, its checkers, the scenarios of the design documents."""

from enum import StrEnum
from typing import Annotated

import typer

from nyala.cli.output import Format, FormatOption, fail, show, verb

app = typer.Typer(
    no_args_is_help=True,
    help="Verify this build: simulated clusters under faults, scenarios of the design documents.",
)


class Level(StrEnum):
    """Real part of the servers of a simulated cluster."""

    CORE = "core"
    WAL = "wal"
    HOST = "host"
    MOVING = "moving"
    CLUSTER = "cluster"
    ENSEMBLES = "ensembles"


Names = Annotated[
    list[str] | None,
    typer.Argument(help="Names of scenarios, or beginnings of names; none: all of them."),
]


@app.callback()
def _group() -> None:
    """Verification of this build by simulation; no cluster is needed or touched."""


@app.command("list")
@verb
def list_(format: FormatOption = Format.TABLE) -> None:
    """List the named scenarios, with the design document that describes each."""
    from nyala.testing import chaos

    show(("scenario", "document", "content"), chaos.listing(), format)


@app.command("run")
@verb
def run(
    scenarios: Names = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="First seed of simulated clusters under random faults."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0, help="Go on with further seeds for so long; 0: one seed.")
    ] = 0,
    level: Annotated[
        Level | None,
        typer.Option(help="Real part of a seed's servers; not given: drawn by the seed."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Number of processes for seeds.")
    ] = 1,
) -> None:
    """Run named scenarios, or seeds with --seed; exit status 1 if one fails, which a line repeats.

    A seed determines all delays, faults and operations of clients: on the same build it fails again.
    """
    from nyala.testing import chaos

    if seed is None and (minutes or level or workers > 1):
        raise fail("--minutes, --level and --workers are options of seeds; give --seed N too", 2)
    if seed is None:
        words = ["run", *(scenarios or ())]
    elif scenarios:
        raise fail("give names of scenarios, or --seed, not both", 2)
    else:
        words = ["ensembles" if level is Level.ENSEMBLES else "seeds", "--seed", str(seed)]
        words += ["--minutes", str(minutes), "--workers", str(workers)]
        words += ["--level", level.value] if level not in (None, Level.ENSEMBLES) else []
    if status := chaos.run(words):
        raise typer.Exit(status)
