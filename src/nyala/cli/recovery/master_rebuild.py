"""`nyala master unsafe_rebuild`: a new catalog after a loss of all masters, from the tablet servers."""

from typing import TYPE_CHECKING, Annotated

import typer

from nyala.cli.output import (
    FILES,
    Format,
    FormatOption,
    fail,
    listed,
    print_json,
    say,
    show,
    stays,
    verb,
)
from nyala.cli.servers import SetOption, option_flags

if TYPE_CHECKING:
    from nyala.common.options import Options
    from nyala.env.env import Env
    from nyala.master.rebuild.plan import RebuildPlan

COLUMNS = ("id", "name", "kind", "version", "replicas", "tablets", "dropped", "empty", "rows")
TServers = Annotated[
    list[str], typer.Argument(help="Public addresses of all tablet servers, which must run.")
]
Directory = Annotated[
    str, typer.Option("--dir", help="Data directory of the new master: missing, or empty.")
]
Address = Annotated[str, typer.Option("--address", help="Public host:port of the new master.")]
PeerAddress = Annotated[
    str, typer.Option("--peer-address", help="host:port for Raft between masters.")
]
Masters = Annotated[
    str,
    typer.Option(
        "--master-addresses",
        help="List of masters in the start scripts, if they are not to be changed yet.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", help="Id of a table or tablet to leave out; may be repeated."),
]
Name = Annotated[
    list[str] | None,
    typer.Option("--name", help="ID=NAME: new name of a table; may be repeated."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Write the catalog although something is missing.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what it would do.")]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]


def register(group: typer.Typer) -> None:
    """Add the command to `nyala master`."""
    group.command("unsafe_rebuild")(unsafe_rebuild)


@verb
@stays(FILES)
def unsafe_rebuild(
    tservers: TServers,
    dir: Directory,
    address: Address,
    peer_address: PeerAddress,
    master_addresses: Masters = "",
    without: Without = None,
    name: Name = None,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    set: SetOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Rebuild the catalog in a new master after a loss of all masters. Unsafe: read the page first.

    Tables, journals, their tablets and revocations of certificates are taken from what the tablet servers
    have. Accounts, grants, comments, owners and keys of transactions are lost.
    """
    import os

    from nyala.common import addresses
    from nyala.common.options import Options
    from nyala.env.files import SystemFiles
    from nyala.master.rebuild import write
    from nyala.offline.copy import StoppedServer
    from nyala.operate.recovery.master_rebuild import write_master
    from nyala.operate.run import run_alone

    masters, names = listed(master_addresses), _names(name or [])
    for one in (*tservers, address, peer_address, *masters):
        addresses.parse(one)
    if masters and address not in masters:
        raise fail(f"--master-addresses does not name the new master, {address}; add it", 2)
    options = Options.load(None, os.environ, option_flags(set))
    write.check_empty(SystemFiles(), dir)

    async def work(env: "Env") -> bool:
        made = await _planned(env, options, tservers, address, frozenset(without or ()), names)
        _show(made, dir, format)
        if made.findings.refused:
            raise fail("nothing was written: decide what is refused above, and repeat the command")
        if dry_run:
            return False
        if made.findings.losses and not force:
            raise fail("nothing was written: --force accepts the losses above")
        question = f"Write a new catalog of cluster {made.cluster_id} into {dir}?"
        if not yes and not typer.confirm(question, err=True):
            raise fail("nothing was written")
        server = StoppedServer(env, options, dir, "master")
        await write_master(server, made, address, peer_address, masters)
        return True

    if not run_alone(work, ",".join(tservers)):
        say("nothing was written: --dry-run")
        return
    say(
        f"{dir} is the data directory of the only master, at {address}: start it with nyala master run, "
        "wait until nyala cluster ksck is OK, and add the other masters with nyala master add"
    )


async def _planned(
    env: "Env",
    options: "Options",
    tservers: list[str],
    address: str,
    without: frozenset[str],
    names: dict[str, str],
) -> "RebuildPlan":
    """Ask the tablet servers, and return the plan."""
    from nyala.master.rebuild.evidence import RebuildChoices
    from nyala.master.rebuild.plan import plan
    from nyala.operate.recovery.master_rebuild import ask_servers, living_masters

    answers = await ask_servers(env, tservers)
    ahead_us = options.clock_max_ahead_ms * 1000
    choices = RebuildChoices(
        env.clock.wall_us(), env.random, options.history_max_age_s, ahead_us, without, names
    )
    made = plan(answers, choices)
    made.findings.refused += [
        f"a master runs at {alive}: if it has its data, the catalog is not lost; else stop it first"
        for alive in await living_masters(env, answers, address)
    ]
    return made


def _names(given: list[str]) -> dict[str, str]:
    """Return the new names by id. Raises typer.Exit: not of the form ID=NAME."""
    found = dict(text.partition("=")[::2] for text in given)
    if any(not table or not name for table, name in found.items()) or len(found) < len(given):
        raise fail("--name: write ID=NAME, once for each table", 2)
    return found


def _show(made: "RebuildPlan", dir: str, format: Format) -> None:
    """Print the tables of a plan, and on standard error what an operator has to know."""
    found = made.findings
    rows = [
        (t.id, t.spec.name, t.kind.name, t.spec.schema.version, t.spec.replicas, len(t.tablets),
         len(t.dropped), len(t.missing), sum(f.rows for f in t.tablets))
        for t in made.tables
    ]  # fmt: skip
    if format is Format.JSON:
        tables = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        print_json({
            "cluster_id": made.cluster_id, "dir": dir, "time": made.time, "tables": tables,
            "decisions": len(made.catalog.decisions), "refused": found.refused,
            "losses": found.losses, "notes": found.notes,
        })  # fmt: skip
    else:
        show(COLUMNS, rows, format, f"catalog of cluster {made.cluster_id}")
    for kind, texts in (("note", found.notes), ("loss", found.losses), ("refused", found.refused)):
        for text in texts:
            say(f"{kind}: {text}")
