"""`nyala master add`, `migrate`, `remove`, `list`, `status`: online changes of the set of masters."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

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
from nyala.cli.tablet import COLUMNS, Timeout, rows_of
from nyala.operate.run import connected

if TYPE_CHECKING:
    from nyala.operate.group_view import GroupView
    from nyala.operate.master_group import MasterGroup

Address = Annotated[
    str, typer.Argument(help="Public address of the new master, which must be running.")
]
Name = Annotated[str, typer.Argument(help="Master: its uuid, or its address host:port.")]
LISTED = ("uuid", "address", "peer_address", "member", "role")


def register(group: typer.Typer) -> None:
    """Add the commands to `nyala master`."""
    group.command("add")(add)
    group.command("remove")(remove)
    group.command("migrate")(migrate)
    group.command("list")(list_masters)
    group.command("status")(status)


def _change(
    masters: str,
    timeout_s: float,
    format: Format,
    work: "Callable[[MasterGroup], Coroutine[Any, Any, GroupView]]",
) -> None:
    from nyala.operate.master_group import MasterGroup

    async def run(core: Any) -> "tuple[MasterGroup, GroupView]":
        made = MasterGroup(core, say, int(timeout_s * 1000))
        return made, await work(made)

    made, group = connected(masters, run)
    if not made.done:
        say("nothing to do: the members are already as requested")
    config = group.config
    count = 0 if config is None else len(config.voters)
    if count % 2 == 0:
        say(f"there are now {count} masters; one less tolerates as many failures")
    rows = [row for row in rows_of(group) if row[3]]
    if format is Format.JSON:
        shown = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        print_json({"steps": made.done, "masters": shown})
    else:
        show(COLUMNS, rows, format, "masters")


@verb
@stays(STEPS)
def add(
    address: Address,
    masters: MastersOption = "",
    timeout: Timeout = 60,
    format: FormatOption = Format.TABLE,
) -> None:
    """Add a new master: it gets a copy of the catalog, then a vote."""
    _change(masters, timeout, format, lambda m: m.add(address))


@verb
@stays(STEPS)
def migrate(
    addresses: Annotated[
        list[str],
        typer.Argument(help="Public addresses of the new masters, which must be running."),
    ],
    masters: MastersOption = "",
    timeout: Timeout = 60,
    format: FormatOption = Format.TABLE,
) -> None:
    """Migrate from one master to 2N + 1: check all new masters, then add them. Resumes if run again."""
    from nyala.operate import migration

    _change(masters, timeout, format, lambda m: migration.migrate(m, addresses))


@verb
@stays(STEPS)
def remove(
    master: Name,
    masters: MastersOption = "",
    timeout: Timeout = 60,
    format: FormatOption = Format.TABLE,
) -> None:
    """Remove a master; a leader transfers leadership first. Its process can be stopped afterwards."""
    _change(masters, timeout, format, lambda m: m.remove(master))


@verb
def list_masters(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """List the masters of the committed configuration."""
    from nyala.operate.master_group import MasterGroup
    from nyala.operate.member_steps import kind_of

    group = connected(masters, lambda core: MasterGroup(core).view())
    config, leader = group.config, group.leader
    rows = [
        (m.uuid, m.address, m.peer_address, kind_of(m).value,
         "LEADER" if leader and leader.uuid == m.uuid else "FOLLOWER")
        for m in (() if config is None else config.members)
    ]  # fmt: skip
    show(LISTED, rows, format)


@verb
def status(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """Show the status of each master and its lag; exit status 1 if a master is not healthy."""
    from nyala.operate.master_group import MasterGroup

    group = connected(masters, lambda core: MasterGroup(core).view())
    rows = rows_of(group)
    show(COLUMNS, rows, format)
    if any(row[3] != "RUNNING" for row in rows):
        raise typer.Exit(1)
