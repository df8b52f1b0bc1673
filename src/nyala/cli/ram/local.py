"""`nyala ram up|status|down`: an ensemble of local processes, beside a local cluster."""

from typing import Annotated

import typer

from nyala.cli.output import (
    DEFAULT_DIR,
    DirOption,
    Format,
    FormatOption,
    fail,
    say,
    show,
    stays,
    verb,
)
from nyala.cli.ram import run, tables

app = typer.Typer(
    no_args_is_help=True, help="An ensemble: coordinators whose state is in a journal, and servers."
)
app.add_typer(tables.app)
app.add_typer(run.coordinator, name="coordinator")
app.add_typer(run.server, name="server")


@app.command("up")
@verb
@stays("processes that were started continue to run: nyala ram status shows them")
def up(
    dir: DirOption = DEFAULT_DIR,
    coordinators: Annotated[int, typer.Option(min=1, help="Number of coordinators.")] = 3,
    servers: Annotated[int, typer.Option(min=1, help="Number of servers.")] = 3,
) -> None:
    """Start an ensemble beside the local cluster, which has its journal."""
    from nyala.testing import layout, ram_ensemble
    from nyala.testing.forkserver import ForkServer

    cluster = layout.load(dir)
    if cluster is None:
        raise fail(f"no local cluster in {dir}; start one with: nyala up", 5)
    planned = ram_ensemble.load(dir) or ram_ensemble.plan(cluster, coordinators, servers)
    with ForkServer() as parent:
        ram_ensemble.start(planned, parent, lambda text: say(f"waiting for {text}"))
    print(f"the ensemble is up: {len(planned.servers)} processes")
    print("next:       nyala ram servers        nyala ram create t --span 6        nyala ram down")


@app.command("status")
@verb
def status(dir: DirOption = DEFAULT_DIR, format: FormatOption = Format.TABLE) -> None:
    """Show the processes of the local ensemble; exit status 1 unless all run."""
    from nyala.testing import processes, ram_ensemble

    found = ram_ensemble.load(dir)
    if found is None:
        raise fail(f"no ensemble in {dir}; start one with: nyala ram up", 5)
    rows = [(s.name, processes.running_pid(s) or "-", s.address) for s in found.servers]
    show(("process", "pid", "address"), rows, format)
    if any(row[1] == "-" for row in rows):
        raise fail("not every process runs; start those that do not with: nyala ram up", 1)


@app.command("down")
@verb
@stays("processes that were told to stop still do: nyala ram status shows the others")
def down(dir: DirOption = DEFAULT_DIR) -> None:
    """Stop the local ensemble. Its journal is kept."""
    from nyala.testing import ram_ensemble

    found = ram_ensemble.load(dir)
    if found is None:
        raise fail(f"no ensemble in {dir}; name the folder of its cluster: --dir DIR", 5)
    stopped = ram_ensemble.stop(found)
    print(f"stopped {len(stopped)} processes")
