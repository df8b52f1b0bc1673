"""Runs one server process: sockets, signals and web port of a `Master` or a `TabletServer`."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import uvloop

from nyala.admin import log_level
from nyala.admin.anchors_page import anchors_page
from nyala.admin.auditing import Auditor
from nyala.admin.authorities import ReportingServer
from nyala.admin.certificates import (
    CertificateUpkeep,
    join_port,
    known_revocations,
    upkeep_of,
    with_problems,
)
from nyala.admin.web_logins import password_login
from nyala.cli.output import describe_os_error
from nyala.cli.security.network import PRIVATE, Network
from nyala.common.errors import InvalidArgument, NyalaError
from nyala.common.ids import ServerUuid
from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.env.allocator import bound_free_memory
from nyala.env.env import Env, system_env
from nyala.env.rpc import Handlers
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.replica.host import ReplicaHost
from nyala.security.authorities.keyring import Keyring
from nyala.security.credentials import Credentials
from nyala.security.tables.grants import TableRef
from nyala.tserver.config import TabletServerConfig
from nyala.tserver.server import TabletServer
from nyala.web.access import CheckPassword
from nyala.web.log_lines import FORMAT, LastLines
from nyala.web.options_page import options_page
from nyala.web.pages import Listing
from nyala.web.rpcz import rpcz_page
from nyala.web.server import Facts, WebServer
from nyala.web.targets import service_discovery
from nyala.web.threads import threads_page
from nyala.wire.channels import GrpcRpc
from nyala.wire.limits import RpcLimits
from nyala.wire.peers import PeerTransport
from nyala.wire.rpc_metrics import RpcMetrics
from nyala.wire.server import GrpcServer
from nyala.wire.tls.tables_of import How

log = logging.getLogger("nyala")
LINES = LastLines()
"""Last lines of the log of this process."""

SWITCH_INTERVAL_S = 0.0005
"""Interpreter switch interval, in seconds; lowers the event loop's p99 lag from 9.7 to 1.7 ms (design 3)."""
CHECK_INTERVAL_S = 0.5
"""Interval, in seconds, of the check for a failure of a running server."""
FREE_MEMORY_DIVISOR = 4
"""Freed memory kept by the allocator is at most the memory budget divided by this,"""
MIN_FREE_BYTES = 64 << 20
"""or this, in bytes, if it is more."""
GC_THRESHOLD = 50_000
"""Allocations between collections: batches create few cycles, and a collection visits every object."""


class ServerProcess(Protocol):
    """Interface of the server that a process runs."""

    @property
    def uuid(self) -> ServerUuid:
        """Uuid of the server; permanent."""
        ...

    @property
    def cluster_id(self) -> str:
        """Id of its cluster; empty while unknown."""
        ...

    @property
    def host(self) -> ReplicaHost | None:
        """Host of its replicas; None, or Unavailable is raised, until its data are open."""
        ...

    @property
    def failure(self) -> NyalaError | None:
        """Reason for which it does not serve; None while it serves."""
        ...

    def master_addresses(self) -> Sequence[str]:
        """Return the public addresses of the masters that it knows."""
        ...

    def handlers(self) -> Handlers:
        """Return the handlers of its public port."""
        ...

    def find_table(self, how: How, name: str) -> TableRef | None:
        """Return a table of this server that a request names; see `wire.tls.requests.Find`."""
        ...

    async def start(self) -> None:
        """Open the data and start to serve."""
        ...

    async def close(self) -> None:
        """Stop serving and close the data."""
        ...


@dataclass(frozen=True, slots=True)
class ListenAddresses:
    """Listen addresses of one process; empty: none."""

    public: str
    peer: str
    web: str
    join: str = ""


MakeServer = Callable[[Env, PeerTransport, Metrics], ServerProcess]


def run_master(config: MasterConfig, network: Network) -> int:
    """Run a master until SIGTERM or SIGINT; return the exit status."""

    def make(env: Env, transport: PeerTransport, metrics: Metrics) -> ServerProcess:
        return Master(env, config, transport, metrics)

    return _run(
        "master",
        make,
        ListenAddresses(
            config.address, config.peer_address, config.web_address, config.join_address
        ),
        config.options,
        network,
        config.dir,
        config.keys,
    )


def run_tserver(config: TabletServerConfig, network: Network) -> int:
    """Run a tablet server until SIGTERM or SIGINT; return the exit status."""

    def make(env: Env, transport: PeerTransport, metrics: Metrics) -> ServerProcess:
        return TabletServer(env, config, transport, metrics, transport.note_foreign)

    return _run(
        "tserver",
        make,
        ListenAddresses(config.address, config.peer_address, config.web_address),
        config.options,
        network,
        config.dir,
    )


def _run(
    role: str,
    make: MakeServer,
    addresses: ListenAddresses,
    options: Options,
    network: Network,
    directory: str,
    keys: Keyring | None = None,
) -> int:
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    logging.getLogger().addHandler(LINES)
    os.umask(PRIVATE)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    try:
        uvloop.run(_serve(role, make, addresses, options, network, directory, keys))
    except NyalaError as err:
        log.error("%s", err)
        print(f"nyala {role}: {err.message}", file=sys.stderr)
        return err.exit_status
    except OSError as err:
        log.error("%s", err)
        print(f"nyala {role}: {describe_os_error(err)}", file=sys.stderr)
        return 1
    return 0


async def _serve(
    role: str,
    make: MakeServer,
    addresses: ListenAddresses,
    options: Options,
    network: Network,
    directory: str,
    keys: Keyring | None,
) -> None:
    credentials = network.credentials
    limits = _limits(options)
    rpc = GrpcRpc(limits, credentials)
    env = system_env(rpc, options.compute_threads)
    metrics = Metrics()
    made: list[ServerProcess] = []
    free_bytes = max(MIN_FREE_BYTES, options.memory_budget_bytes // FREE_MEMORY_DIVISOR)
    env.tasks.spawn(bound_free_memory(env, free_bytes), "bound free memory")
    audit = None if credentials is None else Auditor(env, directory)
    transport = PeerTransport(
        env, lambda: made[0].cluster_id, metrics=metrics, credentials=credentials, audit=audit
    )
    made.append(server := make(env, transport, metrics))
    upkeep, check = None, None
    if credentials is not None:
        upkeep = _upkeep(env, credentials, role, server, addresses.public, directory, keys)
        check = password_login(env, credentials, server.master_addresses)
    calls = RpcMetrics(env.clock, metrics.registry)
    grpc_server = _public_port(server, upkeep, network, addresses.public, limits, calls, audit)
    facts = server_facts(
        role, server, addresses, metrics, options, calls, secure=credentials is not None
    )
    web = _web(facts, network, addresses.web, check)
    closing: list[Callable[[], Coroutine[Any, Any, object]]] = [rpc.close, env.tasks.close]
    try:
        if audit is not None:
            closing.append(audit.close)
        if upkeep is not None:
            upkeep.load()
        await grpc_server.start()
        closing.append(grpc_server.stop)
        if web is not None:
            await web.start()
            closing.append(web.stop)
        closing += [server.close, transport.close]
        await server.start()
        await transport.listen(network.listen_on(addresses.peer), server.uuid)
        if upkeep is not None:
            upkeep.start()
            if addresses.join and credentials is not None:
                port = join_port(env, credentials, server.master_addresses)
                await port.listen(network.listen_on(addresses.join))
                closing.append(port.close)
        log.info("%s %s serves on %s", role, server.uuid, addresses.public)
        if credentials is None:
            log.info("without certificates: all users of this machine may read and change the data")
        await _wait_for_stop(server)
        log.info("stopping")
    finally:
        for close in reversed(closing):
            await close()


def _public_port(
    server: ServerProcess, upkeep: CertificateUpkeep | None, network: Network, address: str,
    limits: RpcLimits, calls: RpcMetrics, audit: Auditor | None,
) -> GrpcServer:  # fmt: skip
    common = {**known_revocations(network.credentials), **log_level.handlers()}
    return GrpcServer(
        {**common, **with_problems(server.handlers(), upkeep)}, network.listen_on(address), limits,
        calls, network.credentials, audit, server.find_table,
    )  # fmt: skip


def _web(
    facts: Facts, network: Network, address: str, check: CheckPassword | None
) -> WebServer | None:
    if not address:
        return None
    return WebServer(facts, network.listen_on(address), network.credentials, check)


def _upkeep(
    env: Env, credentials: Credentials, role: str, server: ServerProcess, address: str, directory: str,
    keys: Keyring | None,
) -> CertificateUpkeep:  # fmt: skip
    def reporting() -> ReportingServer:
        return ReportingServer(role, str(server.uuid), address)

    return upkeep_of(env, credentials, directory, server.master_addresses, reporting, keys)


def _limits(options: Options) -> RpcLimits:
    """Return the limits of the public port."""
    return RpcLimits(
        unread_ms=options.reader_silent_ms,
        user_calls_max=options.user_calls_max,
        user_streams_max=options.user_streams_max,
    )


async def _wait_for_stop(server: ServerProcess) -> None:
    """Wait for a stop signal, or until the server finds that it belongs to another cluster.

    Raises:
        InvalidArgument: it belongs to another cluster; other failures are shown on its pages and do not stop
            it.
    """
    gc.collect()
    gc.freeze()  # collections do not visit what lives as long as the process
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for what in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(what, stop.set)
    while not stop.is_set():
        if isinstance(server.failure, InvalidArgument):
            raise server.failure
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_INTERVAL_S):
                await stop.wait()


def _own_pages(server: ServerProcess) -> dict[str, Callable[[], Listing]]:
    """Return the pages that only servers of this role have."""
    if isinstance(server, TabletServer):
        return {
            "/tablets": server.tablets_page,
            "/scans": server.scans_page,
            "/maintenance": server.maintenance_page,
            "/servers": server.master_responses.page,
        }
    return server.pages() if isinstance(server, Master) else {}


def server_facts(
    role: str,
    server: ServerProcess,
    addresses: ListenAddresses,
    metrics: Metrics,
    options: Options,
    calls: RpcMetrics,
    *,
    secure: bool = False,
) -> Facts:
    """Return the content of the web pages of a server.

    Args:
        role: "master" or "tserver".
        server: the server.
        addresses: where it listens.
        metrics: metrics of the server.
        options: of the process.
        calls: those of its public port.
        secure: the web ports of the cluster serve HTTPS.
    """

    def unavailable_reason() -> str | None:
        if server.failure:
            return server.failure.message
        try:
            return (
                "it is starting" if server.host is None else server.host.unavailable_reason or None
            )
        except NyalaError as err:  # it is starting, or stopping
            return err.message

    def values() -> dict[str, str]:
        identity: dict[str, str] = {}
        with contextlib.suppress(NyalaError):  # it is starting, or stopping
            identity |= {"uuid": str(server.uuid), "cluster": server.cluster_id or "not known yet"}
            if server.host is not None:
                identity["replicas"] = server.host.summary()
        return {
            "role": role,
            **identity,
            "address": addresses.public,
            "peer address": addresses.peer,
        }

    documents: dict[str, Callable[[], object]] = {}
    leader: Callable[[], str] = str
    if isinstance(server, Master):
        leader, master = server.leader_web_address, server
        documents["/prometheus-sd"] = lambda: service_discovery(
            master.cluster_id, master.targets(), secure=secure
        )
    listings = _own_pages(server) | {
        "/threads": threads_page,
        "/anchors": lambda: anchors_page(server.host),
        "/log": LINES.page,
        "/options": lambda: options_page(options),
        "/rpcz": lambda: rpcz_page(calls),
    }
    links = {"health": "/healthz", "metrics": "/metrics"} | {p[1:]: p for p in listings}
    title = f"nyala {role} {addresses.public}"
    return Facts(
        title,
        unavailable_reason,
        values,
        lambda: links,
        metrics.registry,
        listings,
        documents,
        leader,
    )
