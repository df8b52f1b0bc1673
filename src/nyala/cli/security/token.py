"""`nyala token`: tokens with which new servers join the cluster."""

import re
from typing import Annotated, Any

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, print_json, say, show, stays, verb
from nyala.cli.security.times import utc
from nyala.common.errors import InvalidArgument

app = typer.Typer(no_args_is_help=True, help="Tokens with which new servers join.")
COLUMNS = ("id", "role", "state", "uses", "used", "expires", "made by")
TOKENS = "the token may have been made or revoked: nyala token list"
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@app.callback()
def _group() -> None:
    """Tokens with which new servers join."""


@app.command("create")
@verb
@stays(TOKENS)
def create(
    role: Annotated[str, typer.Option("--role", help="tserver or master.")] = "tserver",
    ttl: Annotated[
        str, typer.Option("--ttl", help="Time for which it is valid: 30m, 1h, 7d.")
    ] = "1h",
    uses: Annotated[
        int, typer.Option("--uses", help="Number of servers that may join with it.")
    ] = 1,
    masters: MastersOption = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a token, and print it: it is shown once, and its holder can add a server."""
    from nyala.operate.run import change_at_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    request = pb.CreateTokenRequest(role=role, ttl_s=_seconds(ttl), uses=uses)
    made = change_at_leader(masters, methods.CREATE_TOKEN, request)
    if format is Format.JSON:
        fields = {"token": made.token, "expires": utc(made.expires_us)}
        print_json(fields | {"join_address": made.join_address})
        return
    print(made.token)
    say(f"valid until {utc(made.expires_us)}, for {uses} {role}{'' if uses == 1 else 's'}; on it:")
    where = made.join_address or "JOIN-ADDRESSES"
    say(f"  nyala {role} join TOKEN --masters {where} --dir DIR --address HOST:PORT ...")
    if not made.join_address:
        say("the leader master has no join address: start masters with --join-address")


@app.command("list")
@verb
def list_(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """List the tokens, without their secrets; those that have expired for a day."""
    import time

    from nyala.operate.run import ask_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    answer = ask_leader(masters, methods.LIST_TOKENS, pb.ListTokensRequest())
    now_us = int(time.time() * 1_000_000)
    rows = [
        (t.id, t.role, _state(t, now_us), t.uses, len(t.used), utc(t.expires_us), t.created_by)
        for t in answer.tokens
    ]
    show(COLUMNS, rows, format)


@app.command("revoke")
@verb
@stays(TOKENS)
def revoke(
    id: Annotated[str, typer.Argument(help="Id of the token, as nyala token list shows it.")],
    masters: MastersOption = "",
) -> None:
    """Revoke a token: no more servers join with it. Those that did stay; see nyala cert revoke."""
    from nyala.operate.run import change_at_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    change_at_leader(masters, methods.REVOKE_TOKEN, pb.RevokeTokenRequest(id=id))
    say(f"join token {id} is revoked")


def _seconds(text: str) -> int:
    """Return a time in seconds.

    Raises:
        InvalidArgument: it is not a number with a unit.
    """
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if found is None:
        raise InvalidArgument(f"--ttl {text!r}: write a number and s, m, h or d, as in 30m or 1h")
    return int(found[1]) * _UNITS[found[2]]


def _state(token: Any, now_us: int) -> str:
    if token.revoked:
        return "revoked"
    if token.expires_us <= now_us:
        return "expired"
    return "used up" if len(token.used) >= token.uses else "valid"
