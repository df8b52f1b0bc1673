"""`nyala user grant|revoke|grants`: roles of users on tables, journals, prefixes of names, and columns."""

from typing import Annotated, Any

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, listed, say, show, stays, verb
from nyala.cli.security.times import utc

app = typer.Typer(no_args_is_help=True)
COLUMNS = ("user", "role", "object", "columns", "granted", "by")
GRANTS = "the grant may have been made or revoked: nyala user grants"

User = Annotated[str, typer.Argument(help="Name in the user's certificate.")]
Table = Annotated[str, typer.Option("--table", help="Name of a table or journal.")]
Prefix = Annotated[
    str,
    typer.Option("--prefix", help="Beginning of names: sales. stands for sales.orders and others."),
]
All = Annotated[bool, typer.Option("--all", help="Every table and journal.")]
Columns = Annotated[
    str,
    typer.Option("--columns", help="Columns of the table that may be read, separated by commas."),
]


@app.command("grant")
@verb
@stays(GRANTS)
def grant(
    user: User,
    role: Annotated[str, typer.Argument(help="reader, writer or owner.")],
    table: Table = "",
    prefix: Prefix = "",
    all: All = False,
    columns: Columns = "",
    masters: MastersOption = "",
) -> None:
    """Grant a role on a table or journal, on names that begin alike, or on all; in force within 2 s."""
    from nyala.operate.run import change_at_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    request = pb.GrantRequest(
        user=user, role=role, table=table, prefix=prefix, all=all, columns=listed(columns)
    )
    made = change_at_leader(masters, methods.GRANT, request).grant
    say(f"{user} is {made.role} of {_object(made)}{_of_columns(made)}")


@app.command("revoke")
@verb
@stays(GRANTS)
def revoke(
    user: User,
    role: Annotated[
        str, typer.Argument(help="reader, writer or owner; all of them if not given.")
    ] = "",
    table: Table = "",
    prefix: Prefix = "",
    all: All = False,
    columns: Columns = "",
    masters: MastersOption = "",
) -> None:
    """Revoke grants on a table, a prefix, or all; in force within 2 s. Others of the user stay."""
    from nyala.operate.run import change_at_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    request = pb.RevokeGrantRequest(
        user=user, role=role, table=table, prefix=prefix, all=all, columns=listed(columns)
    )
    left = change_at_leader(masters, methods.REVOKE_GRANT, request).left
    say("the grant is revoked")
    for one in left:
        say(f"{user} is still {one.role} of {_object(one)}{_of_columns(one)}")


@app.command("grants")
@verb
def grants(
    user: Annotated[
        str, typer.Argument(help="Name of a user; all that you may see if not given.")
    ] = "",
    masters: MastersOption = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """List grants: an administrator sees all, others their own and those on tables that they own."""
    from nyala.operate.run import ask_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    answer = ask_leader(masters, methods.LIST_GRANTS, pb.ListGrantsRequest(user=user))
    rows = [
        (g.user, g.role, _object(g), ", ".join(g.columns), utc(g.granted_us), g.granted_by)
        for g in answer.grants
    ]
    show(COLUMNS, rows, format)


def _object(grant: Any) -> str:
    if grant.table_id:
        return f"table {grant.table or grant.table_id + ' (dropped)'}"
    return f"names {grant.prefix}*" if grant.prefix else "all tables and journals"


def _of_columns(grant: Any) -> str:
    return f", columns {', '.join(grant.columns)}" if grant.columns else ""
