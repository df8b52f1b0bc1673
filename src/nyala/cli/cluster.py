"""`nyala cluster ksck`: check the health of all servers and replicas."""

from dataclasses import astuple
from typing import TYPE_CHECKING, Annotated

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, print_json, show, verb

if TYPE_CHECKING:
    from nyala.client.core import ClientCore
    from nyala.operate.ksck import ClusterHealth
    from nyala.operate.ksck_checksum import Sum

app = typer.Typer(no_args_is_help=True, help="The cluster as a whole.")


@app.callback()
def _group() -> None:
    """Commands for the whole cluster."""


@app.command("ksck")
@verb
def ksck(
    masters: MastersOption = "",
    checksum: Annotated[
        bool, typer.Option("--checksum", help="Read all rows of all replicas and compare them.")
    ] = False,
    checksum_timeout_s: Annotated[
        int, typer.Option(min=1, max=86_400, help="Deadline of all checksums together, in seconds.")
    ] = 3600,
    format: FormatOption = Format.TABLE,
) -> None:
    """Check the cluster; exit status 0 and OK, or 1 and a message for every problem."""
    from nyala.operate.ksck import HELD, check
    from nyala.operate.ksck_checksum import COLUMNS, as_dicts, compare
    from nyala.operate.run import connected

    async def work(core: "ClientCore") -> "tuple[ClusterHealth, list[Sum]]":
        health, sums = await check(core), list["Sum"]()
        if checksum:
            sums, different = await compare(core, checksum_timeout_s * 1000)
            health.problems += different
        return health, sums

    health, sums = connected(masters, work)
    if format is Format.JSON:
        shown = health.as_dict() | ({"checksums": as_dicts(sums)} if checksum else {})
        print_json(shown)
    else:
        show(("uuid", "address", "state"), health.masters, format, "Master Summary")
        show(
            ("uuid", "address", "replicas", "state"),
            health.tservers,
            format,
            "Tablet Server Summary",
        )
        show(
            ("table", "replicas", "tablets", "healthy", "problems"),
            health.tables,
            format,
            "Summary by table",
        )
        show(("state", "role", "replicas"), health.states(), format, "Replica Summary")
        if health.holds:
            show(HELD, health.holds, format, "History Kept for Readers")
        if checksum:
            show(COLUMNS, [astuple(s) for s in sums], format, "Checksum Summary")
        for problem in health.problems:
            print(f"Error: {problem}")
        print("FAILED" if health.problems else "OK")
    if health.problems:
        raise typer.Exit(1)
