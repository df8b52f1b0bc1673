"""`nyala master run`, `nyala tserver run`, `nyala config list`."""

import os
import sys
from importlib.abc import MetaPathFinder
from typing import Annotated

import typer

from nyala.cli.output import Format, FormatOption, fail, listed, show, verb
from nyala.cli.security.network import Ca, Cert, Key, Network
from nyala.common.addresses import to_bind
from nyala.common.errors import InvalidArgument
from nyala.wire.tls.versions import require_tls13

master = typer.Typer(no_args_is_help=True, help="Master processes.")
tserver = typer.Typer(no_args_is_help=True, help="Tablet server processes.")
config = typer.Typer(no_args_is_help=True, help="Options of servers.")

Dir = Annotated[str, typer.Option("--dir", help="Data directory; formatted when empty.")]
Address = Annotated[
    str, typer.Option("--address", help="Public host:port; loopback only without certificates.")
]
PeerAddress = Annotated[
    str, typer.Option("--peer-address", help="host:port for Raft between servers.")
]
WebAddress = Annotated[
    str, typer.Option("--web-address", help="host:port of /metrics and /healthz; '' for none.")
]
Masters = Annotated[
    str, typer.Option("--master-addresses", help="Public addresses of all masters.")
]
Bind = Annotated[
    str,
    typer.Option(
        "--bind",
        help="Host to listen on, if not that of the addresses: 0.0.0.0 for every interface.",
    ),
]
JoinAddress = Annotated[
    str,
    typer.Option(
        "--join-address",
        help="host:port at which servers join with a token; '' for none. Needs certificates.",
    ),
]
Location = Annotated[
    str,
    typer.Option(
        "--location", help="Location; the replicas of a tablet are placed in different ones."
    ),
]
File = Annotated[str | None, typer.Option("--config", help="TOML file of options.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="An option of servers, name=value; may be repeated."),
]


def option_flags(given: list[str] | None) -> dict[str, str]:
    """Return the options that `--set` gives, by name; a usage error for one without a value."""
    flags = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise fail(f"--set {text!r}: write --set name=value", 2)
        flags[name.strip().replace("-", "_")] = value.strip()
    return flags


def _check(role: str, network: "Network", *own: str) -> None:
    """Reject an invalid listen address, before anything is loaded or changed.

    Args:
        role: "master" or "tserver".
        network: credentials, and the host to listen on.
        own: addresses of the server.

    Raises:
        Forbidden: an address that other machines could reach.
        InvalidArgument: an invalid address.
    """
    if not __debug__:
        raise InvalidArgument(
            f"a {role} does not run with python -O, because assertions protect the data; run it without -O"
        )
    for address in own:
        if address:
            to_bind(network.listen_on(address), secured=network.credentials is not None)


class _NoPandas(MetaPathFinder):
    """Import finder that reports pandas as not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise ImportError for pandas; None for all else."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a nyala server does not use pandas", name=fullname)


def prepare_imports() -> None:
    """Set what the imports of a server depend on: gRPC's versions of TLS, and that Arrow imports no pandas.

    Arrow imports pandas at its first conversion: 1.3 s at each start, and it fails when two threads do it at
    the same time. This makes Arrow look for pandas once, find none, and remember that.
    """
    require_tls13(os.environ)
    sys.meta_path.insert(0, _NoPandas())
    import pyarrow as pa

    pa.array([0])


@master.command("run")
@verb
def master_run(
    dir: Dir,
    address: Address = "127.0.0.1:7051",
    peer_address: PeerAddress = "127.0.0.1:9051",
    web_address: WebAddress = "127.0.0.1:8051",
    master_addresses: Masters = "",
    config: File = None,
    set: SetOption = None,
    ca: Ca = "",
    cert: Cert = "",
    key: Key = "",
    bind: Bind = "",
    join_address: JoinAddress = "",
) -> None:
    """Run a master until SIGTERM."""
    network = Network.of(ca, cert, key, bind, dir)
    if join_address and network.credentials is None:
        raise InvalidArgument("--join-address needs certificates: give --ca, --cert and --key")
    _check("master", network, address, peer_address, web_address, join_address)
    prepare_imports()
    from nyala.cli.serve import run_master
    from nyala.common.options import Options
    from nyala.master.config import MasterConfig

    options = Options.load(config, os.environ, option_flags(set))
    masters = listed(master_addresses) or (address,)
    made = MasterConfig(
        dir, address, peer_address, web_address, masters, options,
        network.keys(), join_address,
    )  # fmt: skip
    raise typer.Exit(run_master(made, network))


@tserver.command("run")
@verb
def tserver_run(
    dir: Dir,
    master_addresses: Masters,
    address: Address = "127.0.0.1:7050",
    peer_address: PeerAddress = "127.0.0.1:9050",
    web_address: WebAddress = "127.0.0.1:8050",
    location: Location = "",
    config: File = None,
    set: SetOption = None,
    ca: Ca = "",
    cert: Cert = "",
    key: Key = "",
    bind: Bind = "",
) -> None:
    """Run a tablet server until SIGTERM."""
    network = Network.of(ca, cert, key, bind, dir)
    _check("tserver", network, address, peer_address, web_address)
    prepare_imports()
    from nyala.cli.serve import run_tserver
    from nyala.common.options import Options
    from nyala.tserver.config import TabletServerConfig

    options = Options.load(config, os.environ, option_flags(set))
    masters = listed(master_addresses)
    raise typer.Exit(
        run_tserver(
            TabletServerConfig(dir, address, peer_address, web_address, masters, location, options),
            network,
        )
    )


@config.command("list")
@verb
def config_list(format: FormatOption = Format.TABLE) -> None:
    """List every option of a server with its default and limits."""
    from nyala.common.options import describe

    rows = [(d.name, d.default, d.limits, d.description) for d in describe()]
    show(("name", "default", "limits", "what it is for"), rows, format)
