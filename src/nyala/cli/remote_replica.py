"""`nyala remote_replica list|check|copy|delete`: the replicas of a running server."""

from typing import Annotated

import typer

from nyala.cli.output import (
    STEPS,
    Format,
    FormatOption,
    MastersOption,
    print_json,
    say,
    show,
    stays,
    verb,
)
from nyala.common.texts.counted import counted
from nyala.operate.run import connected

app = typer.Typer(no_args_is_help=True, help="Replicas of a running tablet server.")
Server = Annotated[str, typer.Argument(help="Tablet server: its uuid, or its address host:port.")]
Tablet = Annotated[str, typer.Argument(help="Id of the tablet.")]
Force = Annotated[bool, typer.Option("--force", help="Proceed although data may be lost.")]


@app.command("list")
@verb
def list_replicas(
    server: Server, masters: MastersOption = "", format: FormatOption = Format.TABLE
) -> None:
    """List the replicas of a server, with tombstones and copies in progress."""
    from nyala.operate.remote_replicas import COLUMNS, cells, replicas_of_server

    _, rows = connected(masters, lambda core: replicas_of_server(core, server))
    show(COLUMNS, [cells(r) for r in rows], format)


@app.command("check")
@verb
def check(server: Server, masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """Check that every replica of a server runs; exit status 1 and a message for each that does not."""
    from nyala.operate.remote_replicas import replicas_of_server

    found, rows = connected(masters, lambda core: replicas_of_server(core, server))
    problems = [r.problem for r in rows if r.problem]
    if format is Format.JSON:
        print_json({"server": found.uuid, "replicas": len(rows), "problems": problems})
    else:
        for problem in problems:
            print(f"Error: {problem}")
        print("FAILED" if problems else f"OK: {counted(len(rows), 'replica')} on {found}")
    if problems:
        raise typer.Exit(1)


@app.command("copy")
@verb
@stays("the copy continues on its target: run the command again, which waits for it")
def copy(
    tablet: Tablet,
    source: Annotated[str, typer.Argument(help="Tablet server with the replica: uuid or address.")],
    target: Annotated[str, typer.Argument(help="Tablet server that receives the copy.")],
    masters: MastersOption = "",
    force: Force = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Copy a replica to another server without making it a member; wait until it is complete."""
    from nyala.operate.remote_replicas import copy_replica

    made = connected(
        masters, lambda core: copy_replica(core, tablet, source, target, force=force, notify=say)
    )
    names = ("tablet", "stage", "bytes", "last", "may_lose", "ms")
    row = (tablet, made.stage, made.bytes_done, f"{made.last_term}.{made.last_index}", made.may_lose,
           made.elapsed_ms)  # fmt: skip
    show(names, [row], format)


@app.command("delete")
@verb
@stays(STEPS)
def delete(
    server: Server,
    tablet: Tablet,
    masters: MastersOption = "",
    force: Force = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Delete a replica that is not a member of its group; its vote is kept in a tombstone."""
    from nyala.operate.remote_replicas import delete_replica

    did = connected(
        masters, lambda core: delete_replica(core, server, tablet, force=force, notify=say)
    )
    show(("tablet", "server", "deleted"), [(tablet, server, did)], format)
