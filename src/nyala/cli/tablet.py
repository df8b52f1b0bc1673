"""`nyala tablet list`, `change_config ...`, `leader_step_down`: members and leader of a tablet's Raft group.

A command prints each step before it starts. A command that was interrupted can be run again: it continues
from the group's current state.
"""

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
from nyala.operate.run import connected

if TYPE_CHECKING:
    from nyala.operate.group_view import GroupView
    from nyala.operate.membership import Membership

app = typer.Typer(no_args_is_help=True, help="Tablets: replicas and leaders.")
config = typer.Typer(no_args_is_help=True, help="Members of a tablet's group.")
app.add_typer(config, name="change_config")
Tablet = Annotated[str, typer.Argument(help="Id of the tablet.")]
Server = Annotated[str, typer.Argument(help="Tablet server: its uuid, or its address host:port.")]
KINDS = "VOTER, NON_VOTER, or WITNESS: a voter with a log and no data, which never leads."
Timeout = Annotated[
    float, typer.Option("--timeout", help="Seconds without progress after which the command fails.")
]
NONE = "none"
"""Member kind of a server that is not a member."""
COLUMNS = ("uuid", "address", "member", "state", "role", "last", "behind")


def _run(
    tablet: str,
    masters: str,
    timeout_s: float,
    format: Format,
    work: "Callable[[Membership], Coroutine[Any, Any, GroupView]]",
) -> None:
    from nyala.operate.membership import Membership

    async def run(core: Any) -> "tuple[Membership, GroupView]":
        membership = Membership(core, tablet, say, int(timeout_s * 1000))
        await work(membership)
        return membership, await membership.view()

    membership, group = connected(masters, run)
    if not membership.done:
        say("nothing to do: the members are already as requested")
    rows = [row for row in rows_of(group) if row[2] != NONE or row[3]]
    if format is Format.JSON:
        replicas = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        print_json({"tablet": tablet, "steps": membership.done, "replicas": replicas})
    else:
        show(COLUMNS, rows, format, f"tablet {tablet}")


def rows_of(group: "GroupView") -> list[tuple[object, ...]]:
    """Return a row for each server: its state in the group; see `COLUMNS`."""
    from nyala.operate.member_steps import kind_of

    rows: list[tuple[object, ...]] = []
    commit = 0 if group.status is None else group.status.commit_index
    for server in group.servers.values():
        member, replica = group.member(server), group.of(server)
        if member is None and not replica.exists:
            continue
        status = replica.status
        kind = "no member" if member is None else kind_of(member).value
        if status is None:
            rows.append(
                (server.uuid, server.address, kind, "", "", replica.silent or "no replica", None)
            )
            continue
        last = f"{status.last_term}.{status.last_index}"
        lag = max(0, commit - status.last_index)
        rows.append(
            (server.uuid, server.address, kind, replica.state, status.report.role, last, lag)
        )
    return rows


def _kind(text: str) -> Any:
    from nyala.common.errors import InvalidArgument
    from nyala.operate.member_steps import MemberKind

    try:
        return MemberKind(text.upper())
    except ValueError:
        raise InvalidArgument(f"unknown member type {text!r}; use {KINDS}") from None


@app.command("list")
@verb
def list_all(
    table: Annotated[str, typer.Option("--table", help="Only the tablets of this table.")] = "",
    masters: MastersOption = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """List the tablets of all tables and journals: partition, leader, replicas."""
    from dataclasses import astuple

    from nyala.operate.tablets import LISTED, list_tablets

    rows = connected(masters, lambda core: list_tablets(core, table))
    show(LISTED, [astuple(row) for row in rows], format)


@app.command("members")
@verb
def members(
    tablet: Tablet, masters: MastersOption = "", format: FormatOption = Format.TABLE
) -> None:
    """Show every tablet server: its state in the tablet's group, and its lag."""
    from nyala.operate.membership import Membership

    group = connected(masters, lambda core: Membership(core, tablet).view())
    show(COLUMNS, rows_of(group), format)


@config.command("add_replica")
@verb
@stays(STEPS)
def add_replica(
    tablet: Tablet,
    server: Server,
    type: Annotated[str, typer.Option("--type", help=KINDS)] = "VOTER",
    masters: MastersOption = "",
    timeout: Timeout = 60,
    format: FormatOption = Format.TABLE,
) -> None:
    """Add a server as a non-voter, which gets a copy; the leader then promotes it to voter."""
    kind = _kind(type)
    _run(tablet, masters, timeout, format, lambda m: m.add(server, kind))


@config.command("remove_replica")
@verb
@stays(STEPS)
def remove_replica(
    tablet: Tablet,
    server: Server,
    masters: MastersOption = "",
    timeout: Timeout = 60,
    format: FormatOption = Format.TABLE,
) -> None:
    """Remove a member and delete its replica; a leader transfers leadership first."""
    _run(tablet, masters, timeout, format, lambda m: m.remove(server))


@config.command("move_replica")
@verb
@stays(STEPS)
def move_replica(
    tablet: Tablet,
    source: Annotated[str, typer.Argument(help="Tablet server to move from.")],
    target: Annotated[str, typer.Argument(help="Tablet server to move to.")],
    masters: MastersOption = "",
    timeout: Timeout = 60,
    format: FormatOption = Format.TABLE,
) -> None:
    """Move a voter: add the new one, wait until it is a voter, remove the old one, wait."""
    _run(tablet, masters, timeout, format, lambda m: m.move(source, target))


@config.command("change_replica_type")
@verb
@stays(STEPS)
def change_replica_type(
    tablet: Tablet,
    server: Server,
    type: Annotated[str, typer.Argument(help=KINDS)],
    masters: MastersOption = "",
    timeout: Timeout = 60,
    format: FormatOption = Format.TABLE,
) -> None:
    """Change the kind of a member, for example a dead voter to a non-voter."""
    kind = _kind(type)
    _run(tablet, masters, timeout, format, lambda m: m.change_type(server, kind))


@app.command("leader_step_down")
@verb
@stays(STEPS)
def leader_step_down(
    tablet: Tablet,
    new_leader: Annotated[
        str,
        typer.Option(
            "--new-leader", help="Uuid of the new leader; the most up-to-date voter if not given."
        ),
    ] = "",
    masters: MastersOption = "",
    timeout: Timeout = 60,
    format: FormatOption = Format.TABLE,
) -> None:
    """Transfer leadership to another replica."""
    _run(tablet, masters, timeout, format, lambda m: m.step_down(new_leader))
