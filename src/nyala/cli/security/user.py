"""`nyala user`: accounts with which users log in."""

from typing import Annotated, Any

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, say, show, stays, verb
from nyala.cli.security.secrets import PasswordStdin, new_password
from nyala.cli.security.times import utc

app = typer.Typer(no_args_is_help=True, help="Accounts with which users log in.")
COLUMNS = ("name", "role", "state", "created", "made by", "last login", "issuer")
CHANGED = "the account may have been changed: nyala user list"
Name = Annotated[str, typer.Argument(help="Name of the user.")]
ROLES = "user (what is granted), reader, writer, owner or admin; each includes those before."


@app.callback()
def _group() -> None:
    """Accounts with which users log in."""


@app.command("add")
@verb
@stays(CHANGED)
def add(
    name: Name,
    role: Annotated[str, typer.Option("--role", help=ROLES)] = "reader",
    password_stdin: PasswordStdin = False,
    without_password: Annotated[
        bool,
        typer.Option("--without-password", help="The user logs in with tokens of issuers only."),
    ] = False,
    issuer: Annotated[
        str,
        typer.Option("--issuer", help="Issuer (iss) whose tokens name the account; of no other."),
    ] = "",
    masters: MastersOption = "",
) -> None:
    """Add a user, and read the password, twice, from the terminal; at least 12 characters."""
    from nyala.security.principal import check_name, parse_role
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    check_name(name)
    parse_role(role)
    password = "" if without_password else _checked(name, stdin=password_stdin)
    request = pb.AddUserRequest(
        name=name, role=role, password=password, without_password=without_password,
        issuer=issuer,
    )  # fmt: skip
    _change(masters, methods.ADD_USER, request)
    say(f"user {name} is added, with the role {role.lower()}; {name} logs in with:")
    say(
        f"  nyala login --masters {masters} "
        + ("--jwt FILE" if without_password else f"--user {name}")
    )


@app.command("list")
@verb
def list_(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """List the users."""
    from nyala.operate.run import ask_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    answer = ask_leader(masters, methods.LIST_USERS, pb.ListUsersRequest())
    rows = [
        (
            u.id,
            u.role,
            "disabled" if u.disabled else "enabled",
            utc(u.created_us),
            u.created_by,
            utc(u.issued_us) if u.issued_us else None,
            u.issuer or None,
        )
        for u in answer.users
    ]
    show(COLUMNS, rows, format)


@app.command("passwd")
@verb
@stays(CHANGED)
def passwd(name: Name, password_stdin: PasswordStdin = False, masters: MastersOption = "") -> None:
    """Set the password of a user, as an administrator; users change theirs with nyala login."""
    _set(masters, name, password=_checked(name, stdin=password_stdin))
    say(f"the password of {name} is set; certificates from earlier logins are revoked")


@app.command("role")
@verb
@stays(CHANGED)
def role(
    name: Name,
    role: Annotated[str, typer.Argument(help=ROLES)],
    masters: MastersOption = "",
) -> None:
    """Set the role of a user, who then has to log in again."""
    _set(masters, name, role=role)
    say(f"user {name} has the role {role.lower()} from the next login on; earlier ones have ended")


@app.command("issuer")
@verb
@stays(CHANGED)
def issuer(
    name: Name,
    issuer: Annotated[
        str, typer.Argument(help="Issuer (iss) whose tokens name the account; '': none yet.")
    ],
    masters: MastersOption = "",
) -> None:
    """Bind the account of a user to an issuer of tokens, and end present logins within seconds."""
    _set(masters, name, issuer=issuer)
    say(
        f"user {name} logs in with tokens of: {issuer or 'no issuer yet'}; earlier logins have ended"
    )


@app.command("disable")
@verb
@stays(CHANGED)
def disable(name: Name, masters: MastersOption = "") -> None:
    """Let a user log in no more, and end present logins within seconds."""
    _set(masters, name, disabled=True)
    say(f"user {name} is disabled; certificates from earlier logins are revoked")


@app.command("enable")
@verb
@stays(CHANGED)
def enable(name: Name, masters: MastersOption = "") -> None:
    """Let a user log in again who was disabled."""
    _set(masters, name, disabled=False)
    say(f"user {name} is enabled")


@app.command("remove")
@verb
@stays(CHANGED)
def remove(name: Name, masters: MastersOption = "") -> None:
    """Remove a user, and end present logins within seconds."""
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    _change(masters, methods.REMOVE_USER, pb.RemoveUserRequest(name=name))
    say(f"user {name} is removed; certificates from earlier logins are revoked")


def _checked(name: str, *, stdin: bool) -> str:
    """Return a new password, which is checked here before it is sent.

    Raises:
        InvalidArgument: it is too weak, or there is none.
    """
    from nyala.security.accounts.passwords import check_new

    password = new_password(name, stdin=stdin)
    check_new(name, password)
    return password


def _set(masters: str, name: str, **wanted: Any) -> None:
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    _change(masters, methods.SET_USER, pb.SetUserRequest(name=name, **wanted))


def _change(masters: str, method: Any, request: Any) -> None:
    from nyala.operate.run import change_at_leader

    change_at_leader(masters, method, request)
