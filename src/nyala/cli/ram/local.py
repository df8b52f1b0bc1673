"""`nyala ram up|status|down`: an ensemble of local processes, beside a local cluster."""

from typing import Annotated

import typer

from nyala.cli.output import (
    DEFAULT_DIR,
    DirOption,
    Format,
    FormatOption,
    dir_hint,
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
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds until all must be up.")
    ] = 120,
) -> None:
    """Start an ensemble beside the local cluster, which has its journal."""
    from nyala.testing import layout, ram_ensemble
    from nyala.testing.forkserver import ForkServer

    cluster = layout.load(dir)
    if cluster is None:
        raise fail(f"no local cluster in {dir}; start one with: nyala up{dir_hint(dir)}", 5)
    found = ram_ensemble.load(dir)
    planned = found or ram_ensemble.plan(cluster, coordinators, servers)
    shape = ram_ensemble.shape(planned)
    if shape != (coordinators, servers):
        say(
            "{} holds an ensemble of {} coordinators and {} servers: starting that".format(
                dir, *shape
            )
        )
    with ForkServer() as parent:
        ram_ensemble.start(
            planned, parent, lambda text: say(f"waiting for {text}"), timeout_s=timeout
        )
    print(f"the ensemble is up: {len(planned.servers)} processes")
    print(f"next:       export NYALA_MASTERS={cluster.masters}")
    down = f"nyala ram down{dir_hint(dir)}"
    print(f"            nyala ram servers        nyala ram create t --span 6        {down}")


@app.command("status")
@verb
def status(dir: DirOption = DEFAULT_DIR, format: FormatOption = Format.TABLE) -> None:
    """Show the processes of the local ensemble, and which leads; exit status 1 unless all run and one leads.

    The column behind has the number of entries of the log that a coordinator does not have yet.
    """
    from nyala.testing import ram_ensemble, ram_status

    planned = ram_ensemble.load(dir)
    if planned is None:
        raise fail(f"no ensemble in {dir}; start one with: nyala ram up{dir_hint(dir)}", 5)
    found = ram_status.read_state(planned)
    rows = [(p.name, p.pid or "-", p.address, p.state, p.epoch, p.behind) for p in found.processes]
    show(("process", "pid", "address", "state", "epoch", "behind"), rows, format)
    if found.journal_error:
        say(f"the column behind is empty, since the journal cannot be read: {found.journal_error}")
    problems = []
    if found.leader is None:
        states = ", ".join(f"{p.address} {p.state}" for p in found.coordinators)
        problems.append(f"no coordinator leads ({states})")
    if any(p.pid is None for p in found.processes):
        again = f"nyala ram up{dir_hint(dir)}"
        problems.append(f"not every process runs; start those that do not with: {again}")
    elif problems:
        problems.append(
            f"another one is established within seconds; if not, see the logs in {planned.dir}"
        )
    if problems:
        raise fail("; ".join(problems), 1)


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
