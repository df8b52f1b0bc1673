"""Processes of an ensemble on this machine, beside a local cluster, whose journal has the log."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

from nyala.client import connect
from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.client.journal.core import JournalCore
from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import NotFound, NyalaError, TimedOut
from nyala.env.clock import random_id
from nyala.env.rpc import Method
from nyala.ram.calls import EnsembleClient
from nyala.ram.coordinator import leader_address
from nyala.security.files import joined_files
from nyala.security.principal import server_name
from nyala.testing import layout, local_cluster, processes
from nyala.testing.forkserver import ForkServer, Job
from nyala.testing.layout import HOST, Layout, ServerSpec
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb

JOURNAL, ENSEMBLE = "ram", "coordinator"
COORDINATOR, SERVER = "coordinator", "server"
JOURNAL_BYTES = 256 << 20
UP_TIMEOUT_S = 120.0
ASK_MS = 10_000

Ask = Callable[[Method, Any], Any]
"""Sends a request to the leading coordinator until it answers; returns its answer. Any thread may call."""


def load(directory: str) -> Layout | None:
    """Return the ensemble beside the cluster in a directory, or None."""
    return layout.load(str(Path(directory, "ram")))


def plan(cluster: Layout, coordinators: int, servers: int) -> Layout:
    """Return the layout of a new ensemble, on free ports.

    Args:
        cluster: the cluster with its journal.
        coordinators: number of coordinators.
        servers: number of servers.
    """
    root = f"{cluster.dir}/ram"
    names = [(COORDINATOR, i) for i in range(coordinators)] + [(SERVER, i) for i in range(servers)]
    ports = layout.free_ports(len(names))
    found = tuple(
        ServerSpec(f"{role}-{i}", role, f"{root}/{role}-{i}", f"{HOST}:{port}", "", "")
        for (role, i), port in zip(names, ports, strict=True)
    )
    return Layout(root, found, {"masters": cluster.masters})


def shape(ensemble: Layout) -> tuple[int, int]:
    """Return the numbers of coordinators and servers."""
    roles = [s.role for s in ensemble.servers]
    return roles.count(COORDINATOR), roles.count(SERVER)


def job(ensemble: Layout, server: ServerSpec, *, bound: bool = False) -> Job:
    """Return how to start a process.

    Args:
        ensemble: the processes.
        server: one of them.
        bound: it ends with the process that starts it.
    """
    files = joined_files(server.dir)
    words = ["ram", server.role, "run", "--address", server.address,
             "--masters", ensemble.options["masters"], "--dir", server.dir,
             *([] if files is None else files.options)]  # fmt: skip
    return Job(words, ensemble.dir, server.log, processes.pid_file(server), bound)


def _certify(ensemble: Layout) -> None:
    """Make the certificate of each process that has none, if the cluster is secure."""
    cluster = layout.load(str(Path(ensemble.dir).parent))
    if cluster is None or not cluster.secure:
        return
    for server in ensemble.servers:
        if joined_files(server.dir) is None:
            uuid = random_id(SystemRandom())
            local_cluster.certify(cluster, server.dir, server_name("member", uuid))


def start(
    ensemble: Layout,
    parent: ForkServer,
    on_wait: Callable[[str], None] = lambda text: None,
    *,
    bound: bool = False,
    timeout_s: float = UP_TIMEOUT_S,
) -> None:
    """Create the journal if there is none, start the processes that do not run, and wait until all are up.

    Args:
        ensemble: the processes.
        parent: forks them.
        on_wait: called with what is missing.
        bound: they end with this process.
        timeout_s: until all are up.

    Raises:
        Unavailable: one has exited; with the end of its log.
        TimedOut: not all are up in time.
    """
    with connect(ensemble.options["masters"]) as client:
        try:
            client.journal(JOURNAL)
        except NotFound:
            client.create_journal(JOURNAL, 3, JOURNAL_BYTES)
    Path(ensemble.dir).mkdir(parents=True, exist_ok=True)
    ensemble.save()
    _certify(ensemble)
    stopped = [s for s in ensemble.servers if processes.running_pid(s) is None]
    if stopped:
        parent.fork([job(ensemble, s, bound=bound) for s in stopped])
    wait_up(ensemble, on_wait, timeout_s)


def wait_up(
    ensemble: Layout,
    on_wait: Callable[[str], None] = lambda text: None,
    timeout_s: float = UP_TIMEOUT_S,
) -> None:
    """Wait until a coordinator leads, and the servers that run are up in its list.

    Args:
        ensemble: the processes.
        on_wait: called with what is missing.
        timeout_s: until all are up.

    Raises:
        Unavailable: one has exited.
        TimedOut: not in time.
    """
    running = [s for s in ensemble.servers if processes.running_pid(s) is not None]
    deadline, reported = time.monotonic() + timeout_s, ""
    while True:
        processes.require_running(ensemble, [s.name for s in running])
        try:
            left_ms = max(100, min(ASK_MS, int(1000 * (deadline - time.monotonic()))))
            with connected(ensemble, left_ms) as ask:
                found = ask(methods.RAM_SERVER_LIST, pb.ServerListRequest())
            up = {s.address for s in found.servers if s.status == "UP"}
            missing = ", ".join(s.name for s in running if s.role == SERVER and s.address not in up)
        except NyalaError as err:
            missing = f"the coordinators: {err.message}"
        if not missing:
            return
        if missing != reported:
            on_wait(missing)
            reported = missing
        if time.monotonic() > deadline:
            raise TimedOut(f"the ensemble is not up after {timeout_s:g} s; waited for {missing}")
        time.sleep(0.1)


@contextmanager
def connected(ensemble: Layout, timeout_ms: int = ASK_MS) -> Iterator[Ask]:
    """Connect to an ensemble; yield what sends a request to the coordinator that leads.

    Args:
        ensemble: the processes.
        timeout_ms: of each request, for all its tries.
    """
    connection = Connection(ensemble.options["masters"], ClientOptions(timeout_ms=timeout_ms))
    try:
        core = JournalCore(connection.core)
        opened = JournalCoroutines(core, connection.run(core.open(JOURNAL)))
        calls = EnsembleClient(connection.core.env, lambda: leader_address(opened, ENSEMBLE))
        yield lambda method, request: connection.run(calls.call(method, request, timeout_ms))
    finally:
        connection.close()


def stop(ensemble: Layout) -> list[str]:
    """Stop all processes; return the names of those that ran."""
    stopped = []
    for role in (SERVER, COORDINATOR):
        asked = [
            s for s in ensemble.servers if s.role == role and processes.send(s, signal.SIGTERM)
        ]
        for server in asked:
            processes.send(server, signal.SIGCONT)  # a paused process handles no SIGTERM
        for server in asked:
            if not processes.wait_exited(server):
                processes.send(server, signal.SIGKILL)
                processes.wait_exited(server)
            stopped.append(server.name)
    return stopped
