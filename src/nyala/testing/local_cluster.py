"""Starts a local cluster of real processes and waits until it is healthy."""

import os
import time
from collections.abc import Callable

from nyala.client import connect
from nyala.common.errors import InvalidArgument, NyalaError, TimedOut
from nyala.testing import processes
from nyala.testing.layout import Layout, ports_in_use

HEALTHY_TIMEOUT_S = 60.0


def start(layout: Layout, on_wait: Callable[[str], None] = lambda text: None) -> float:
    """Start every server that does not run, and wait until the cluster is healthy.

    Args:
        layout: what to start; saved, so that `status` and `down` find it.
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
    asleep = [s for s in layout.servers if processes.running_pid(s) is None]
    taken = ports_in_use(a for s in asleep for a in (s.address, s.peer_address, s.web_address))
    if taken:
        raise InvalidArgument(
            f"these addresses are in use by another process: {', '.join(taken)}; stop it, or choose "
            "other ports with --base-port"
        )
    layout.save()
    for server in asleep:
        processes.start(layout, server)
    wait_healthy(layout, on_wait)
    return time.monotonic() - began


def wait_healthy(
    layout: Layout, on_wait: Callable[[str], None] = lambda text: None,
    timeout_s: float = HEALTHY_TIMEOUT_S,
) -> None:  # fmt: skip
    """Wait until a master leads and all servers that run are known to it as alive.

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
    try:
        with connect(layout.masters, timeout_ms=2_000) as client:
            known = {s.address for s in client.servers() if s.alive}
    except NyalaError as err:
        return f"the masters ({err.message.split(chr(10))[0][:120]})"
    names = [n for n in running if layout.server(n).address not in known]
    return ", ".join(names)
