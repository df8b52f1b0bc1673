"""`nyala fs format | dump uuid | check | lower_clock`: the data directory of a stopped server."""

from enum import StrEnum
from typing import Annotated

import typer

from nyala.cli.output import FILES, Format, FormatOption, fail, print_json, say, show, stays, verb
from nyala.cli.servers import SetOption, option_flags

app = typer.Typer(no_args_is_help=True, help="Data directories of stopped servers.")
dump = typer.Typer(no_args_is_help=True, help="Identity of a data directory's server.")
app.add_typer(dump, name="dump")

ServerDir = Annotated[str, typer.Option("--dir", help="Data directory of the server.")]


class ServerRole(StrEnum):
    """Role of a server."""

    MASTER = "master"
    TSERVER = "tserver"


@app.command("format")
@verb
@stays(FILES)
def format_directory(
    dir: ServerDir,
    role: Annotated[ServerRole, typer.Option("--role", help="Role of the server.")],
    uuid: Annotated[
        str,
        typer.Option("--uuid", help="Uuid of a dead server to replace; a new one if not given."),
    ] = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Format an empty directory as the data directory of a new server; any other is rejected."""
    from nyala.common.ids import ServerUuid
    from nyala.datadir.instance import format_instance
    from nyala.env.clock import random_id, system_random
    from nyala.env.files import SystemFiles
    from nyala.wal.segments.format import group_bytes

    if uuid:
        group_bytes(uuid)  # 32 hex digits
    chosen = ServerUuid(uuid or random_id(system_random()))
    made, new = format_instance(SystemFiles(), dir, role.value, chosen, replaces=bool(uuid))
    say(
        f"{dir} {'is now' if new else 'was already'} the data directory of the {made.role} {made.uuid}"
    )
    if format is Format.JSON:
        print_json({"dir": dir, "role": made.role, "uuid": made.uuid, "changed": new}, line=True)
    else:
        print(made.uuid)


@dump.callback()
def _dump() -> None:
    """Return the content of a data directory's instance file."""


@dump.command("uuid")
@verb
def dump_uuid(dir: ServerDir) -> None:
    """Print the server's uuid, and nothing else."""
    from nyala.env.files import SystemFiles
    from nyala.offline import inspection

    print(inspection.owner(SystemFiles(), dir).uuid)


@app.command("check")
@verb
def check(dir: ServerDir, format: FormatOption = Format.TABLE) -> None:
    """Check the files of a data directory; exit status 0 and OK, or 1 and a message for every problem."""
    from nyala.common.ids import TabletId
    from nyala.env.files import SystemFiles
    from nyala.machines import registry
    from nyala.offline import inspection

    files = SystemFiles()
    owner = inspection.lock(files, dir)
    replicas = inspection.replicas(files, dir)

    def read(_: TabletId, path: str) -> None:
        registry.kind_of_directory(files, path).check_files(files, path)

    problems = inspection.problems(files, dir, read)
    if format is Format.JSON:
        facts = {"uuid": owner.uuid, "role": owner.role, "cluster_id": owner.cluster_id}
        print_json({**facts, "replicas": len(replicas), "problems": problems})
    else:
        rows = [(owner.uuid, owner.role, owner.cluster_id, len(replicas))]
        show(("uuid", "role", "cluster", "replicas"), rows, format)
        for problem in problems:
            print(f"Error: {problem}")
        print("FAILED" if problems else "OK")
    if problems:
        raise fail(f"{len(problems)} problems", 1)


@app.command("lower_clock")
@verb
@stays(FILES)
def lower_clock(
    dir: ServerDir,
    set: SetOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Lower a hybrid clock that is far ahead; correct this machine's wall clock first."""
    import os

    from nyala.common.hybrid_time import to_micros
    from nyala.common.options import Options
    from nyala.env.clock import SystemClock
    from nyala.env.files import SystemFiles
    from nyala.env.server_clock import duration
    from nyala.machines import registry
    from nyala.offline import clock_ceiling, inspection

    files, clock = SystemFiles(), SystemClock()
    inspection.lock(files, dir)
    limit_ms = Options.load(None, os.environ, option_flags(set)).clock_max_ahead_ms
    done = clock_ceiling.lower(
        files, dir, clock, limit_ms,
        lambda _, path: registry.kind_of_directory(files, path).flush_point(files, path).stamp,
    )  # fmt: skip
    if format is Format.JSON:
        print_json({"dir": dir, "before": done.before, "after": done.after}, line=True)
    elif done.before == done.after:
        print(f"nothing to do: it is not {duration(limit_ms * 1000)} ahead of the wall clock")
    else:
        ahead_us = to_micros(done.before) - clock.wall_us()
        print(f"lowered: it was {duration(ahead_us)} ahead of the wall clock")
