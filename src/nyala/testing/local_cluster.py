"""Starts a local cluster of real processes and waits until it is healthy."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import SystemRandom
from typing import Any

from nyala.client.connection import Connection
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.credentials import remember
from nyala.common import addresses
from nyala.common.errors import InvalidArgument, NyalaError, TimedOut
from nyala.datadir.instance import open_instance
from nyala.env.files import SystemFiles
from nyala.env.rpc import Method
from nyala.security import known
from nyala.security.files import CA_KEY, CERTS, joined_files
from nyala.security.principal import server_name
from nyala.testing import processes
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import Layout, ServerSpec, ports_in_use
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

HEALTHY_TIMEOUT_S = 120.0
ANSWER_MS = 5_000
_READY_REQUESTS: Mapping[str, tuple[Method, Any]] = {
    "master": (methods.MASTER_STATUS, pb.MasterStatusRequest()),
    "tserver": (methods.LIST_TABLETS, pb.ListTabletsRequest()),
}
"""Request by role that a server answers once its data are open."""


def start(
    layout: Layout, forkserver: ForkServer, on_wait: Callable[[str], None] = lambda text: None
) -> float:
    """Start every stopped server, and wait until the cluster is healthy.

    Args:
        layout: layout of the cluster; saved for `status` and `down`.
        forkserver: parent process of the servers.
        on_wait: called with the missing condition, when it changes.

    Returns:
        Duration, in seconds.

    Raises:
        InvalidArgument: ports are in use; the error names them all, and nothing was started.
        Unavailable: a server exited; with the end of its log.
        TimedOut: not healthy in time; the error names the missing condition.
    """
    began = time.monotonic()
    Path(layout.dir).mkdir(mode=0o700, parents=True, exist_ok=True)
    stopped = [s for s in layout.servers if processes.running_pid(s) is None]
    taken = ports_in_use(a for s in stopped for a in s.addresses)
    if taken:
        raise InvalidArgument(
            f"these addresses are in use by another process: {', '.join(taken)}; stop it, or choose "
            "other ports with --base-port"
        )
    use_credentials(layout)
    for server in stopped:
        _certify(layout, server)
    _note_credentials(layout)
    layout.save()
    if stopped:
        forkserver.start(layout, stopped)
    wait_healthy(layout, on_wait)
    return time.monotonic() - began


def use_credentials(layout: Layout) -> None:
    """Make the certificates of a secure cluster, if missing, and use them for clients of this process."""
    files = layout.client_files
    if files is None:
        return
    from nyala.security import issue  # slow to import, and most clusters are not secure

    issue.local_cluster(os.path.join(layout.dir, CERTS), _hosts(layout))
    remember(layout.masters, files)


def _hosts(layout: Layout) -> list[str]:
    """Return the names and addresses of the machine in certificates of its servers."""
    own = (addresses.parse(a)[0] for s in layout.servers for a in s.addresses)
    return list(dict.fromkeys([*own, "localhost"]))


def _certify(layout: Layout, server: ServerSpec) -> None:
    """Make the certificate of a stopped server, if it has none; a new data directory is formatted."""
    if not layout.secure or joined_files(server.dir) is not None:
        return
    files = SystemFiles()
    try:
        uuid = open_instance(files, server.dir, server.role, SystemRandom()).uuid
    finally:
        files.close()
    certify(layout, server.dir, server_name(server.role, uuid), signs=server.role == "master")


def certify(layout: Layout, directory: str, name: str, *, signs: bool = False) -> None:
    """Make the certificate of a process on the machine of a secure cluster.

    Args:
        layout: layout of the cluster.
        directory: data directory of the process, whose folder `certs` gets it.
        name: `tserver-<uuid>`, `master-<uuid>` or `member-<uuid>`.
        signs: for a master, which gets the key of the authority too.
    """
    from nyala.security import issue  # slow to import

    own = os.path.join(directory, CERTS)
    issue.local_server(_authority(layout), own, name, _hosts(layout), signs=signs)


def _authority(layout: Layout) -> str:
    """Return the folder of the authority: a master's if there is one, since it may have been replaced."""
    masters = (os.path.join(s.dir, CERTS) for s in layout.servers if s.role == "master")
    kept = (folder for folder in masters if os.path.exists(os.path.join(folder, CA_KEY)))
    return next(kept, os.path.join(layout.dir, CERTS))


def _note_credentials(layout: Layout) -> None:
    """Note the credentials for later processes of this user; those of an earlier cluster are forgotten."""
    files = layout.client_files
    if files is None:
        known.forget(layout.public_addresses)
    elif known.record(layout.public_addresses, files, layout.join_addresses) is None:
        log.warning(
            "the certificate of this cluster cannot be noted for other processes of this user, because no "
            "folder can be written to; set XDG_DATA_HOME to a folder of this user, or set %s for them",
            ", ".join(files.variables),
        )


def wait_healthy(
    layout: Layout, on_wait: Callable[[str], None] = lambda text: None,
    timeout_s: float = HEALTHY_TIMEOUT_S,
) -> None:  # fmt: skip
    """Wait until a master leads, and all running servers answer and are alive for it.

    Args:
        layout: directories and addresses of the servers.
        on_wait: called with the missing condition.
        timeout_s: deadline, in seconds.

    Raises:
        Unavailable: a server exited.
        TimedOut: not healthy in time.
    """
    deadline = time.monotonic() + timeout_s
    running = [s.name for s in layout.servers if processes.running_pid(s) is not None]
    reported = ""
    while True:
        processes.require_running(layout, running)
        missing = _missing(layout, running)
        if not missing:
            return
        if missing != reported:
            on_wait(missing)
            reported = missing
        if time.monotonic() > deadline:
            raise TimedOut(
                f"the cluster is not healthy after {timeout_s:.0f} s: waiting for {missing}"
            )
        time.sleep(0.05)


def _missing(layout: Layout, running: list[str]) -> str:
    """Return the missing condition; empty: none."""
    servers = [layout.server(name) for name in running]
    try:
        connection = Connection(layout.masters, ClientOptions(timeout_ms=ANSWER_MS))
        try:
            return ", ".join(connection.run(_silent(connection.core, servers)))
        finally:
            connection.close()
    except NyalaError as err:
        return f"the masters ({err.message.split(chr(10))[0][:120]})"


async def _silent(core: ClientCore, servers: list[ServerSpec]) -> list[str]:
    """Return the servers that do not answer, or that are not alive for the leader master.

    The leader's state is not sufficient: for some seconds it shows a killed server as alive.
    """
    alive = {s.address for s in (await core.servers()).servers if s.alive}

    async def answers(server: ServerSpec) -> bool:
        method, request = _READY_REQUESTS[server.role]
        try:
            await core.env.rpc.call(server.address, method, request, timeout_ms=ANSWER_MS)
        except NyalaError:
            return False
        return server.address in alive

    answered = await asyncio.gather(*(answers(s) for s in servers))
    return [s.name for s, good in zip(servers, answered, strict=True) if not good]
