"""Starts a local cluster of real processes and waits until it is healthy."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from nyala.client.connection import Connection
from nyala.client.core import ClientCore, ClientOptions
from nyala.common.errors import InvalidArgument, NyalaError, TimedOut
from nyala.env.rpc import Method
from nyala.testing import processes
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import Layout, ServerSpec, ports_in_use
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

HEALTHY_TIMEOUT_S = 120.0
ANSWER_MS = 5_000
_READY_REQUESTS: Mapping[str, tuple[Method, Any]] = {
    "master": (methods.MASTER_STATUS, pb.MasterStatusRequest()),
    "tserver": (methods.LIST_TABLETS, pb.ListTabletsRequest()),
}
"""Question that a server of a role answers once its data are open."""


def start(
    layout: Layout, forkserver: ForkServer, on_wait: Callable[[str], None] = lambda text: None
) -> float:
    """Start every server that does not run, and wait until the cluster is healthy.

    Args:
        layout: what to start; saved, so that `status` and `down` find it.
        forkserver: the parent of the servers.
        on_wait: told what is being waited for, when that changes.

    Returns:
        Seconds that it took.

    Raises:
        InvalidArgument: a port is taken; all taken ones are named before anything starts.
        Unavailable: a server ended; with the end of its log.
        TimedOut: not healthy in time; with what is missing.
    """
    began = time.monotonic()
    os.makedirs(layout.dir, exist_ok=True)
    stopped = [s for s in layout.servers if processes.running_pid(s) is None]
    taken = ports_in_use(a for s in stopped for a in s.addresses)
    if taken:
        raise InvalidArgument(
            f"these addresses are in use by another process: {', '.join(taken)}; stop it, or choose "
            "other ports with --base-port"
        )
    layout.save()
    if stopped:
        forkserver.start(layout, stopped)
    wait_healthy(layout, on_wait)
    return time.monotonic() - began


def wait_healthy(
    layout: Layout, on_wait: Callable[[str], None] = lambda text: None,
    timeout_s: float = HEALTHY_TIMEOUT_S,
) -> None:  # fmt: skip
    """Wait until a master leads, all servers that run answer, and it knows them as alive.

    Args:
        layout: directories and addresses of the servers.
        on_wait: called with the reason while it waits.
        timeout_s: deadline, in seconds.

    Raises:
        Unavailable: a server ended.
        TimedOut: not healthy in time.
    """
    deadline = time.monotonic() + timeout_s
    running = [s.name for s in layout.servers if processes.running_pid(s) is not None]
    said = ""
    while True:
        processes.require_running(layout, running)
        missing = _missing(layout, running)
        if not missing:
            return
        if missing != said:
            on_wait(missing)
            said = missing
        if time.monotonic() > deadline:
            raise TimedOut(
                f"the cluster is not healthy after {timeout_s:.0f} s: waiting for {missing}"
            )
        time.sleep(0.05)


def _missing(layout: Layout, running: list[str]) -> str:
    """Return what is not there yet, or nothing."""
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
    """Return the servers that do not answer themselves, or that the leader master does not know as alive.

    Its word alone is not enough: for some seconds it counts a server that was killed as alive.
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
