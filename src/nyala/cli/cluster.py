"""`nyala cluster ksck`, `rebalance`: health of all servers and replicas, and their distribution."""

from dataclasses import astuple
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from nyala.client.core import ClientCore
    from nyala.operate.ksck.checksum import Sum
    from nyala.operate.ksck.health import ClusterHealth
    from nyala.operate.rebalance.moves import RebalanceResult

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
    from nyala.operate.ksck.check import check
    from nyala.operate.ksck.checksum import COLUMNS, as_dicts, compare
    from nyala.operate.ksck.health import HELD, MASTER, QUOTAS, TSERVER
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
        show(MASTER, health.masters, format, "Master Summary")
        show(TSERVER, health.tservers, format, "Tablet Server Summary")
        show(
            ("table", "replicas", "tablets", "healthy", "problems"),
            health.tables,
            format,
            "Summary by table",
        )
        show(("state", "role", "replicas"), health.states(), format, "Replica Summary")
        if health.holds:
            show(HELD, health.holds, format, "History Kept for Readers")
        if health.quotas:
            show(QUOTAS, health.quotas, format, "Tables at Their Quotas")
        if checksum:
            show(COLUMNS, [astuple(s) for s in sums], format, "Checksum Summary")
        for problem in health.problems:
            print(f"Error: {problem}")
        print("FAILED" if health.problems else "OK")
    if health.problems:
        raise typer.Exit(1)


@app.command("rebalance")
@verb
@stays(STEPS)
def rebalance(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="Move replicas of these tables only; not given: of all."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the moves, and make none.")
    ] = False,
    leaders: Annotated[
        bool, typer.Option(help="Spread the leaders too, after the replicas.")
    ] = True,
    moves_per_server: Annotated[
        int, typer.Option(min=1, max=100, help="Moves at a time from or to a server.")
    ] = 2,
    timeout: Annotated[
        float, typer.Option(help="Seconds without progress after which a move fails.")
    ] = 600,
    masters: MastersOption = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Spread replicas evenly over the running tablet servers: of each table first, then of all."""
    from nyala.operate.rebalance.moves import Rebalance, planned
    from nyala.operate.run import connected

    async def work(core: "ClientCore") -> "RebalanceResult":
        if not dry_run:
            run = Rebalance(core, tables or (), leaders, moves_per_server, int(timeout * 1000), say)
            return await run.run()
        return await planned(core, tables or (), leaders=leaders)

    outcome = connected(masters, work)
    moves, failed = outcome.moves, outcome.failed
    rows = [astuple(row) for row in outcome.servers]
    columns = ("uuid", "address", "location", "replicas", "leaders")
    if format is Format.JSON:
        servers = [dict(zip(columns, row, strict=True)) for row in rows]
        said = {"planned" if dry_run else "moves": moves, "failed": failed}
        print_json({**said, "waiting": outcome.waiting, "servers": servers})
    else:
        if dry_run:
            show(("move",), [(words,) for words in moves], format, "Moves")
        show(columns, rows, format, "Tablet Servers")
        for text in outcome.waiting:
            say(text)
        if not moves and not failed:
            say("nothing to do: replicas and leaders are spread evenly")
    if failed:
        raise typer.Exit(1)
