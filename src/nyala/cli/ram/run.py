"""`nyala ram coordinator run`, `nyala ram server run`: processes of an ensemble."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from nyala.cli.output import MastersOption, verb
from nyala.cli.security.network import Ca, Cert, Key, Network

if TYPE_CHECKING:
    from nyala.client.journal.coroutines import JournalCoroutines
    from nyala.common.errors import NyalaError
    from nyala.env.env import Env
    from nyala.env.rpc import Handlers

coordinator = typer.Typer(no_args_is_help=True, help="Coordinators of an ensemble.")
server = typer.Typer(no_args_is_help=True, help="Servers of an ensemble.")

Address = Annotated[str, typer.Option("--address", help="Public host:port; loopback only.")]
JournalName = Annotated[str, typer.Option("--journal", help="Journal of the ensemble.")]
EnsembleName = Annotated[
    str, typer.Option("--ensemble", help="Name of the ensemble, and of its log in the journal.")
]
DEFAULT_JOURNAL = "ram"
DEFAULT_ENSEMBLE = "coordinator"


class RamProcess(Protocol):
    """A coordinator or a server."""

    def handlers(self) -> "Handlers":
        """Return what it answers."""
        ...

    async def start(self) -> None:
        """Begin."""
        ...

    async def close(self) -> None:
        """End."""
        ...


OnEnd = Callable[["NyalaError"], object]
"""Ends the process with an error."""
Make = Callable[["Env", "JournalCoroutines", OnEnd], RamProcess]


def _run(
    role: str, address: str, masters: str, journal: str, network: Network, make: Make
) -> int:  # fmt: skip
    """Run a process until SIGTERM or SIGINT; return the exit status.

    Args:
        role: for messages.
        address: at which it serves.
        masters: addresses of the masters.
        journal: name of the journal.
        network: its credentials.
        make: makes what it runs.
    """
    import uvloop

    from nyala.cli.servers import prepare_imports
    from nyala.common.errors import NyalaError

    prepare_imports()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s"
    )
    try:
        uvloop.run(_serve(role, address, masters.split(","), journal, network, make))
    except NyalaError as err:
        print(f"nyala ram {role}: {err.message}", file=sys.stderr)
        return err.exit_status
    return 0


async def _serve(
    role: str, address: str, masters: list[str], journal: str, network: Network, make: Make
) -> None:
    """Serve until a stop signal.

    Args:
        role: for messages.
        address: at which it serves.
        masters: addresses of the masters.
        journal: name of the journal.
        network: its credentials.
        make: makes what it runs.

    Raises:
        NyalaError: it cannot go on.
    """
    from nyala.common.errors import NyalaError
    from nyala.env.env import system_env
    from nyala.ram.coordinator import open_journal
    from nyala.wire.channels import GrpcRpc
    from nyala.wire.limits import RpcLimits
    from nyala.wire.server import GrpcServer

    limits = RpcLimits()
    credentials = network.credentials
    rpc = GrpcRpc(limits, credentials)
    env = system_env(rpc)
    closing: list[Callable[[], Awaitable[object]]] = [rpc.close, env.tasks.close]
    stop, errors = asyncio.Event(), list[NyalaError]()

    def end(error: NyalaError) -> None:
        errors.append(error)
        stop.set()

    try:
        process = make(env, await open_journal(env, masters, journal), end)
        grpc_server = GrpcServer(process.handlers(), address, limits, credentials=credentials)
        await grpc_server.start()
        closing += [grpc_server.stop, process.close]
        await process.start()
        logging.getLogger("nyala").info("%s serves on %s", role, address)
        for what in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(what, stop.set)
        await stop.wait()
    finally:
        for close in reversed(closing):
            await close()
    if errors:
        raise errors[0]


@coordinator.command("run")
@verb
def coordinator_run(
    address: Address,
    masters: MastersOption = "",
    ca: Ca = "",
    cert: Cert = "",
    key: Key = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    timeout_ms: Annotated[
        int, typer.Option(min=300, help="Silence after which a leader may be replaced.")
    ] = 3_000,
    ping_ms: Annotated[int, typer.Option(min=10, help="Interval of the pings of servers.")] = 500,
) -> None:
    """Run a coordinator until SIGTERM; one of an ensemble leads, the others follow."""
    from nyala.ram.checks import check_ensemble
    from nyala.ram.coordinator import Coordinator, CoordinatorConfig

    check_ensemble(ensemble, address)
    config = CoordinatorConfig(address, ensemble, timeout_ms, timeout_ms * 3 // 2, ping_ms)

    def make(env: "Env", opened: "JournalCoroutines", on_end: OnEnd) -> RamProcess:
        return Coordinator(env, config, opened, on_end=on_end)

    raise typer.Exit(
        _run("coordinator", address, masters, journal, Network.of(ca, cert, key, ""), make)
    )


@server.command("run")
@verb
def server_run(
    address: Address,
    masters: MastersOption = "",
    ca: Ca = "",
    cert: Cert = "",
    key: Key = "",
    journal: JournalName = DEFAULT_JOURNAL,
    ensemble: EnsembleName = DEFAULT_ENSEMBLE,
    roles: Annotated[str, typer.Option(help="master, backup, or both.")] = "master,backup",
    silent_ms: Annotated[
        int, typer.Option(min=100, help="Time without pings after which it asks for the list.")
    ] = 2_000,
) -> None:
    """Run a server of an ensemble until SIGTERM. It keeps no rows yet."""
    from nyala.ram.calls import EnsembleClient
    from nyala.ram.checks import check_enlist
    from nyala.ram.coordinator import leader_address, note_alive
    from nyala.ram.storage_server import StorageConfig, StorageServer
    from nyala.wire.proto import ram_pb2 as pb

    config = StorageConfig(address, tuple(roles.split(",")), silent_ms=silent_ms)
    check_enlist(pb.EnlistRequest(roles=config.roles, address=address))

    def make(env: "Env", opened: "JournalCoroutines", on_end: OnEnd) -> RamProcess:
        calls = EnsembleClient(env, lambda: leader_address(opened, ensemble))
        alive = partial(note_alive, opened, ensemble, address)
        return StorageServer(env, config, calls, alive, on_end=on_end)

    raise typer.Exit(_run("server", address, masters, journal, Network.of(ca, cert, key, ""), make))
