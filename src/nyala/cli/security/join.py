"""`nyala tserver join` and `nyala master join`: a new server gets its certificate with a token, and runs."""

import os
import sys
from typing import Annotated

import typer

from nyala.cli.output import listed, say, stays, verb
from nyala.cli.servers import (
    Address,
    Bind,
    Dir,
    Location,
    PeerAddress,
    SetOption,
    WebAddress,
)
from nyala.common import addresses
from nyala.security.files import VARIABLES

Token = Annotated[
    str,
    typer.Argument(help="Token that nyala token create printed; -: read from standard input."),
]
JoinAddresses = Annotated[
    str, typer.Option("--masters", help="Join addresses of the masters (their --join-address).")
]
Host = Annotated[
    list[str] | None,
    typer.Option("--host", help="Further name or address of this server; may be repeated."),
]
Timeout = Annotated[int, typer.Option("--timeout", help="Time for a master to answer, in seconds.")]
JOINED = "the token may have been used: the same command may be repeated, and continues"


def register(tserver: typer.Typer, master: typer.Typer) -> None:
    """Add the commands to `nyala tserver` and `nyala master`."""
    tserver.command("join")(tserver_join)
    master.command("join")(master_join)


@verb
@stays(JOINED)
def tserver_join(
    token: Token,
    masters: JoinAddresses,
    dir: Dir,
    address: Address = "127.0.0.1:7050",
    peer_address: PeerAddress = "127.0.0.1:9050",
    web_address: WebAddress = "127.0.0.1:8050",
    location: Location = "",
    bind: Bind = "",
    host: Host = None,
    timeout: Timeout = 30,
    set: SetOption = None,
) -> None:
    """Join a cluster as a tablet server, and run until SIGTERM; later: nyala tserver run --dir DIR."""
    own = (address, peer_address, web_address)
    found = _joined("tserver", token, masters, dir, own, host, timeout)
    words = ["tserver", "run", "--master-addresses", ",".join(found), "--location", location]
    _run(words, dir, own, bind, set)


@verb
@stays(JOINED)
def master_join(
    token: Token,
    masters: JoinAddresses,
    dir: Dir,
    address: Address = "127.0.0.1:7051",
    peer_address: PeerAddress = "127.0.0.1:9051",
    web_address: WebAddress = "127.0.0.1:8051",
    bind: Bind = "",
    host: Host = None,
    timeout: Timeout = 30,
    set: SetOption = None,
) -> None:
    """Join a cluster as a master, and run until SIGTERM. It gets its vote with: nyala master add ADDRESS."""
    own = (address, peer_address, web_address)
    found = _joined("master", token, masters, dir, own, host, timeout)
    words = ["master", "run", "--master-addresses", ",".join([*found, address])]
    _run(words, dir, own, bind, set)


def _joined(
    role: str,
    token: str,
    masters: str,
    dir: str,
    own: tuple[str, ...],
    host: list[str] | None,
    timeout: int,
) -> tuple[str, ...]:
    """Get the certificate; return the public addresses of the masters."""
    from nyala.admin.joining import join
    from nyala.operate.run import run_alone
    from nyala.security import join_token

    parsed = join_token.parse(sys.stdin.readline() if token == "-" else token)
    hosts = [addresses.parse(a)[0] for a in own if a] + (host or [])
    unique = list(dict.fromkeys(hosts))
    files, found = run_alone(
        lambda env: join(env, dir, parsed, listed(masters), role, unique, timeout)
    )
    say(f"joined; the certificate is {files.cert}. Later starts:")
    say(f"  nyala {role} run --dir {dir} --master-addresses {','.join(found)} ...")
    return found


def _run(
    words: list[str], dir: str, own: tuple[str, str, str], bind: str, options: list[str] | None
) -> None:
    """Run the server in place of this process, which has the lock of the data directory."""
    address, peer_address, web_address = own
    words += ["--dir", dir, "--address", address, "--peer-address", peer_address]
    words += ["--web-address", web_address, "--bind", bind]
    for option in options or []:
        words += ["--set", option]
    environ = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    os.execve(sys.executable, [sys.executable, "-m", "nyala", *words], environ)
