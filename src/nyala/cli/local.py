"""`nyala up`, `status`, `down`: a local cluster of real processes in one directory."""

import shutil
from typing import TYPE_CHECKING, Annotated

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
from nyala.cli.servers import SetOption, option_flags

if TYPE_CHECKING:
    from nyala.testing.layout import Layout


@verb
@stays("servers that were started continue to run: nyala status shows them, nyala down stops them")
def up(
    dir: DirOption = DEFAULT_DIR,
    masters: Annotated[int, typer.Option(help="Number of masters; odd.")] = 3,
    tservers: Annotated[int, typer.Option(help="Number of tablet servers.")] = 3,
    base_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the first tablet server; the other ports follow from it. [default: 7050]"
        ),
    ] = None,
    set: SetOption = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Without certificates: open to everyone on this machine."),
    ] = False,
) -> None:
    """Start a local cluster in the background and wait until it is healthy."""
    from nyala.common.options import Options
    from nyala.testing import layout, local_cluster
    from nyala.testing.forkserver import ForkServer
    from nyala.testing.warm import warm_kernels

    flags = option_flags(set)
    Options.load(flags=flags)  # fails here and not in six logs
    found = layout.load(dir)
    if found is not None:
        _check_unchanged(found, dir, base_port, flags, insecure)
        found = _secured(found, dir, insecure)
    if found is not None and _shape(found) != (masters, tservers):
        say(
            "{} holds a cluster of {} masters and {} tablet servers: starting that".format(
                dir, *_shape(found)
            )
        )
    port = layout.DEFAULT_BASE if base_port is None else base_port
    planned = found or layout.plan(
        dir, masters, tservers, base_port=port, options=flags, secure=not insecure
    )
    warm_kernels(say)
    with ForkServer() as parent:
        seconds = local_cluster.start(planned, parent, lambda text: say(f"waiting for {text}"))
    if not planned.secure:
        _warn_insecure(dir)
    print(f"nyala is up: {len(planned.servers)} processes, healthy in {seconds:.1f} s")
    print(f"  masters   {planned.masters}")
    print(f"  web       {_link(planned)}")
    print(f"  data      {planned.dir}")
    print(f"next:       export NYALA_MASTERS={planned.masters}")
    print(
        "            nyala cluster ksck        nyala table list        nyala down" + dir_hint(dir)
    )


def _check_unchanged(
    found: "Layout", dir: str, base_port: int | None, flags: dict[str, str], insecure: bool
) -> None:
    """Reject a port or options that an existing cluster does not have: it would start without them.

    Args:
        found: the cluster.
        dir: its folder, as given.
        base_port: as given; None: not given.
        flags: options, as given.
        insecure: as given.

    Raises:
        typer.Exit: they differ.
    """
    port = found.base_port
    changes = [] if base_port in (None, port) else [f"--base-port {base_port} (it has {port})"]
    if insecure and found.secure:
        changes.append("--insecure (it has certificates)")
    for name, value in flags.items():
        if found.options.get(name) != value:
            has = found.options.get(name, "the default")
            changes.append(f"--set {name}={value} (it has {has})")
    if changes:
        raise fail(
            f"{dir} holds a cluster, which keeps its ports and options, so this cannot be applied: "
            f"{', '.join(changes)}. Start it as it is with: nyala up{dir_hint(dir)}; or create another one "
            f"with --dir; or delete it first, with all its data: nyala down{dir_hint(dir)} --delete-data. "
            f"Options of an existing cluster are changed in {dir}/cluster.json",
            2,
        )


def _secured(found: "Layout", dir: str, insecure: bool) -> "Layout":
    """Return an existing cluster as it is to be started: with certificates, unless some of it runs without.

    Args:
        found: the cluster.
        dir: its folder, as given.
        insecure: it is to go on without, if it has none.
    """
    from nyala.testing import layout, processes

    if found.secure or insecure or any(processes.running_pid(s) for s in found.servers):
        return found
    say(
        f"{dir} holds a cluster without certificates, which gets them now; to start it without, use "
        f"--insecure"
    )
    return layout.secured(found)


def _warn_insecure(dir: str) -> None:
    say(
        "WARNING: this cluster has no certificates and no encryption: every user and program of this machine "
        f"may read and change all its data. To secure it: nyala down{dir_hint(dir)}, then "
        f"nyala up{dir_hint(dir)}"
    )


def _link(planned: "Layout") -> str:
    """Return a link to the pages of the first master, and what it is good for."""
    from nyala.cli.security.web import link
    from nyala.client.credentials import credentials_for
    from nyala.common.errors import NyalaError

    address = next(s.web_address for s in planned.servers if s.role == "master")
    if not planned.secure:
        return link(address, None)
    try:
        return f"{link(address, credentials_for(planned.masters))}   (one login; others: nyala web)"
    except NyalaError as err:  # the cluster is up all the same
        return f"https://{address}/   ({err.message})"


def _shape(found: "Layout") -> tuple[int, int]:
    roles = [s.role for s in found.servers]
    return roles.count("master"), roles.count("tserver")


@verb
def status(dir: DirOption = DEFAULT_DIR, format: FormatOption = Format.TABLE) -> None:
    """Show the processes of a local cluster; exit status 1 unless all run and are healthy."""
    from nyala.client import connect
    from nyala.common.errors import NyalaError
    from nyala.testing import layout, local_cluster, processes

    found = layout.load(dir)
    if found is None:
        raise fail(f"no local cluster in {dir}; start one with: nyala up{dir_hint(dir)}", 5)
    alive: dict[str, str] = {}
    problem = ""
    local_cluster.use_credentials(found)
    try:
        with connect(found.masters, timeout_ms=5_000) as client:
            for server in client.servers():
                alive[server.address] = (
                    ("leader" if server.leader else "alive") if server.alive else "dead"
                )
    except NyalaError as err:
        problem = err.message
    rows = [
        (
            s.name,
            processes.running_pid(s) or "-",
            s.address,
            s.web_address,
            alive.get(s.address, "unknown"),
        )
        for s in found.servers
    ]
    show(("server", "pid", "address", "web", "state"), rows, format)
    if problem and all(row[1] == "-" for row in rows):
        raise fail(f"no server runs; start them with: nyala up{dir_hint(dir)}", 3)
    if problem:
        raise fail(problem, 3)
    if any(row[4] not in ("alive", "leader") for row in rows):
        raise fail(
            f"not every server is alive; start those that are down with: nyala up{dir_hint(dir)}",
            1,
        )


@verb
@stays("servers that were told to stop still do: nyala status shows the others")
def down(
    dir: DirOption = DEFAULT_DIR,
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Also remove the folder.")
    ] = False,
) -> None:
    """Stop a local cluster; its data are kept unless requested otherwise."""
    from nyala.security import known
    from nyala.testing import layout, processes

    found = layout.load(dir)
    if found is None:
        raise fail(f"no local cluster in {dir}; name its folder: nyala down --dir DIR", 5)
    stopped = processes.stop(found)
    print(
        f"stopped {len(stopped)} processes"
        + (f": {', '.join(stopped)}" if stopped else " (none ran)")
    )
    if delete_data:
        known.forget(found.public_addresses, found.client_files)
        shutil.rmtree(found.dir)
        print(f"removed {found.dir}")
