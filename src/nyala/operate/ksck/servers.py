"""Checks of masters and tablet servers, each of which is asked for its own state."""

import asyncio
from typing import Any

from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError, TimedOut, Unavailable
from nyala.operate.ksck.health import ClusterHealth
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 5_000
ENDED = ("DONE", "FAILED", "CANCELLED")
"""Stages of copies that are over."""


async def _call(core: ClientCore, address: str, method: Any, request: Any) -> Any:
    try:
        return await core.env.rpc.call(address, method, request, timeout_ms=ASK_MS)
    except NyalaError as err:
        return err


async def check_masters(
    core: ClientCore, masters: list[pb.ServerEntry], health: ClusterHealth
) -> None:
    """Check the masters of a cluster.

    Args:
        core: sends the requests.
        masters: as the leader master lists them.
        health: takes the findings.
    """
    answers = await asyncio.gather(
        *(_call(core, m.address, methods.MASTER_STATUS, pb.MasterStatusRequest()) for m in masters)
    )
    leaders = 0
    for master, answer in zip(masters, answers, strict=True):
        if isinstance(answer, NyalaError):
            state = "UNREACHABLE"
            health.problems.append(f"master {master.address} is unreachable: {answer.message}")
        else:
            state, leaders = _state_of(answer), leaders + answer.leader
            if answer.error:
                health.problems.append(f"master {master.address} is FAILED: {answer.error}")
        running = "" if isinstance(answer, NyalaError) else answer.server.version
        health.masters.append((master.uuid, master.address, running, state))
    listings = await asyncio.gather(
        *(_call(core, m.address, methods.LIST_TABLETS, pb.ListTabletsRequest()) for m in masters)
    )
    for master, answer in zip(masters, listings, strict=True):
        if not isinstance(answer, NyalaError):
            health.problems += [
                f"master {master.address}: {problem}" for problem in answer.problems
            ]
    if leaders != 1:
        health.problems.append(f"{leaders} masters say that they lead; there should be one")


def _state_of(answer: pb.MasterStatusResponse) -> str:
    if answer.error:
        return "FAILED"
    return "LEADER" if answer.leader else "FOLLOWER"


async def check_tservers(
    core: ClientCore, tservers: list[pb.ServerEntry], health: ClusterHealth
) -> dict[str, dict[str, pb.TabletStatus]]:
    """Check the tablet servers of a cluster.

    Args:
        core: asks them.
        tservers: as the leader master lists them.
        health: takes the findings.

    Returns:
        The replicas of each reachable server, by tablet.
    """
    answers = await asyncio.gather(
        *(_call(core, t.address, methods.LIST_TABLETS, pb.ListTabletsRequest()) for t in tservers)
    )
    copies = await asyncio.gather(
        *(_call(core, t.address, methods.COPY_STATUS, pb.CopyStatusRequest()) for t in tservers)
    )
    found: dict[str, dict[str, pb.TabletStatus]] = {}
    for server, answer, copying in zip(tservers, answers, copies, strict=True):
        if isinstance(answer, NyalaError):
            state = "DECOMMISSIONED" if is_retired(server) else "UNREACHABLE"
            if state == "UNREACHABLE":
                health.problems.append(
                    f"tablet server {server.address} is unreachable: {answer.message}"
                )
            health.tservers.append((server.uuid, server.address, "", 0, state))
            continue
        unanswered = _stream_port_problems(copying)
        under_way = {} if isinstance(copying, NyalaError) else _copies(copying)
        found[server.uuid] = under_way | {t.report.tablet_id: t for t in answer.tablets}
        whole = [t.report for t in answer.tablets if t.report.state not in ("FAILED", "TOMBSTONED")]
        errors = dict.fromkeys(
            r.error for r in whole if r.error
        )  # errors of the server, which each of its replicas reports
        errors |= dict.fromkeys([*answer.problems, *unanswered])
        health.problems += [f"tablet server {server.address}: {error}" for error in errors]
        warnings = dict.fromkeys(r.warning for r in whole if r.warning)
        health.problems += [f"tablet server {server.address}: {warning}" for warning in warnings]
        state = "UNHEALTHY" if errors or warnings else "HEALTHY"
        health.tservers.append(
            (server.uuid, server.address, server.version, len(answer.tablets), state)
        )
    return found


def is_retired(server: pb.ServerEntry) -> bool:
    """Return whether a tablet server was decommissioned, and stopped when all replicas had been moved."""
    return server.decommission and not server.alive and not server.replicas


def _stream_port_problems(copying: pb.CopyStatusResponse | NyalaError) -> list[str]:
    """Return the problem of a server that answers at its public port only.

    Args:
        copying: its answer to CopyStatus, which is called over the stream port, or the error.
    """
    if not isinstance(copying, Unavailable | TimedOut):
        return []  # one that refuses the caller answers
    return [
        f"it answers at its public port, and not at its stream port ({copying.message}); no client can read "
        "or write there: let clients and servers reach both ports, and until then transfer its leaders "
        "(nyala tablet leader_step_down) or stop it"
    ]


def _copies(answer: pb.CopyStatusResponse) -> dict[str, pb.TabletStatus]:
    """Return the copies under way as replicas that are COPYING."""
    return {
        c.tablet_id: pb.TabletStatus(
            report=pb.TabletReport(
                tablet_id=c.tablet_id,
                state="COPYING",
                error=f"from {c.source_address}: {c.stage}, {c.bytes_done} of {c.bytes_total} bytes",
            )
        )
        for c in answer.copies
        if c.stage not in ENDED
    }
