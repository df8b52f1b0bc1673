"""`nyala ram coordinator run`, `nyala ram server run`: processes of an ensemble."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from nyala.cli.output import MastersOption, verb
from nyala.cli.security.network import Ca, Cert, Key, Network

if TYPE_CHECKING:
    from nyala.admin.certificates import CertificateUpkeep
    from nyala.client.journal.coroutines import JournalCoroutines
    from nyala.common.errors import NyalaError
    from nyala.env.env import Env
    from nyala.env.rpc import Handlers

coordinator = typer.Typer(no_args_is_help=True, help="Coordinators of an ensemble.")
server = typer.Typer(no_args_is_help=True, help="Servers of an ensemble.")

Address = Annotated[
    str, typer.Option("--address", help="Public host:port; loopback only without certificates.")
]
Dir = Annotated[
    str,
    typer.Option(
        "--dir",
        help="Folder of this process, with certificates: its list of revoked ones; its own in certs.",
    ),
]
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


@dataclass(frozen=True, slots=True)
class RamSettings:
    """Settings of a process of an ensemble.

    Attributes:
        role: for messages.
        address: at which it serves.
        masters: addresses of the masters.
        journal: name of the journal.
        network: its credentials.
        directory: its folder; empty: none, which needs a cluster without certificates.
    """

    role: str
    address: str
    masters: tuple[str, ...]
    journal: str
    network: Network
    directory: str


def _run(settings: RamSettings, make: Make) -> int:
    """Run a process until SIGTERM or SIGINT; return the exit status."""
    import uvloop

    from nyala.cli.servers import prepare_imports
    from nyala.common.errors import NyalaError
    from nyala.web.log_lines import FORMAT

    prepare_imports()
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    try:
        uvloop.run(_serve(settings, make))
    except NyalaError as err:
        print(f"nyala ram {settings.role}: {err.message}", file=sys.stderr)
        return err.exit_status
    return 0


async def _serve(settings: RamSettings, make: Make) -> None:
    """Serve until a stop signal.

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
    credentials = settings.network.credentials
    rpc = GrpcRpc(limits, credentials)
    env = system_env(rpc)
    closing: list[Callable[[], Awaitable[object]]] = [rpc.close, env.tasks.close]
    stop, errors = asyncio.Event(), list[NyalaError]()

    def end(error: NyalaError) -> None:
        errors.append(error)
        stop.set()

    try:
        upkeep = _upkeep(env, settings)
        opened = await open_journal(env, list(settings.masters), settings.journal)
        process = make(env, opened, end)
        grpc_server = GrpcServer(
            process.handlers(), settings.address, limits, credentials=credentials
        )
        await grpc_server.start()
        closing += [grpc_server.stop, process.close]
        await process.start()
        if upkeep is not None:
            upkeep.start()
        logging.getLogger("nyala").info("%s serves on %s", settings.role, settings.address)
        for what in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(what, stop.set)
        await stop.wait()
    finally:
        for close in reversed(closing):
            await close()
    if errors:
        raise errors[0]


def _upkeep(env: "Env", settings: RamSettings) -> "CertificateUpkeep | None":
    """Return the upkeep of the certificates of a process, with the list of revoked ones in force.

    Raises:
        InvalidArgument: it has certificates, and no folder.
        Forbidden: another process uses the folder.
        Corrupt: the list of revoked certificates cannot be read.
    """
    from nyala.admin.authorities import ReportingServer
    from nyala.admin.certificates import upkeep_of
    from nyala.common.errors import Forbidden, InvalidArgument

    credentials, directory = settings.network.credentials, settings.directory
    if credentials is None:
        return None
    if not directory:
        raise InvalidArgument(
            "a process with certificates keeps the list of revoked ones in a folder of its own: give --dir"
        )
    env.files.make_dir(directory)
    if not env.files.lock(f"{directory}/lock"):
        raise Forbidden(
            f"the folder {directory} is in use by a running process; give each process one of its own"
        )
    uuid = credentials.principal.server_uuid or settings.address
    me = ReportingServer("member", uuid, settings.address)
    upkeep = upkeep_of(env, credentials, directory, lambda: settings.masters, lambda: me)
    upkeep.load()
    return upkeep


@coordinator.command("run")
@verb
def coordinator_run(
    address: Address,
    masters: MastersOption = "",
    ca: Ca = "",
    cert: Cert = "",
    key: Key = "",
    dir: Dir = "",
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

    network = Network.of(ca, cert, key, "", dir)
    settings = RamSettings("coordinator", address, tuple(masters.split(",")), journal, network, dir)
    raise typer.Exit(_run(settings, make))


@server.command("run")
@verb
def server_run(
    address: Address,
    masters: MastersOption = "",
    ca: Ca = "",
    cert: Cert = "",
    key: Key = "",
    dir: Dir = "",
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

    network = Network.of(ca, cert, key, "", dir)
    settings = RamSettings("server", address, tuple(masters.split(",")), journal, network, dir)
    raise typer.Exit(_run(settings, make))
