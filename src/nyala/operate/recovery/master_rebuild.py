"""Rebuild of a catalog that was lost with all masters, from the answers of the tablet servers."""

import asyncio
from collections.abc import Sequence

from nyala.common.errors import Forbidden, InvalidArgument, NyalaError, Unavailable
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.master.rebuild import write
from nyala.master.rebuild.evidence import ServerAnswer
from nyala.master.rebuild.plan import RebuildPlan
from nyala.offline.copy import StoppedServer
from nyala.raft.membership import Configuration, Member
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as access
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 10_000
MASTER_MS = 2_000
"""Time in which a master that still runs has to answer, in milliseconds."""
TABLETS = 50
"""Number of tablets whose definitions one answer has."""


async def ask_servers(env: Env, addresses: Sequence[str]) -> list[ServerAnswer]:
    """Return the answers of tablet servers, with all that they know of their tables.

    Args:
        env: the environment: clock, tasks, files, calls.
        addresses: public addresses of the servers.

    Raises:
        InvalidArgument: none or one is given twice, or is not that of a tablet server.
        Unavailable: one does not answer; leave it out only if it is lost.
    """
    if not addresses or len(set(addresses)) < len(addresses):
        raise InvalidArgument(
            "name the public address of every tablet server of the cluster, each once"
        )
    found = await asyncio.gather(*(_ask(env, address) for address in addresses))
    uuids = [answer.info.uuid for answer in found]
    for number, uuid in enumerate(uuids):
        if uuid in uuids[:number]:
            raise InvalidArgument(
                f"{addresses[uuids.index(uuid)]} and {addresses[number]} are one server, {uuid}; name it once"
            )
    return found


async def _ask(env: Env, address: str) -> ServerAnswer:
    try:
        info: pb.ServerInfoResponse = await env.rpc.call(
            address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=ASK_MS
        )
        if info.role != "tserver":
            raise InvalidArgument(
                f"at {address} there is a {info.role}, not a tablet server; name tablet servers only"
            )
        tablets: list[pb.TabletStatus] = []
        listed: pb.ListTabletsResponse = await env.rpc.call(
            address, methods.LIST_TABLETS, pb.ListTabletsRequest(), timeout_ms=ASK_MS
        )
        ids = [t.report.tablet_id for t in listed.tablets]
        for first in range(0, len(ids), TABLETS):
            request = pb.ListTabletsRequest(
                tablet_ids=ids[first : first + TABLETS], definitions=True
            )
            some: pb.ListTabletsResponse = await env.rpc.call(
                address, methods.LIST_TABLETS, request, timeout_ms=ASK_MS
            )
            tablets += some.tablets
        revoked: access.RevocationsResponse = await env.rpc.call(
            address, methods.REVOCATIONS, access.RevocationsRequest(), timeout_ms=ASK_MS
        )
        # Asked after the tablets, so that it is above the times of all that they have.
        info = await env.rpc.call(
            address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=ASK_MS
        )
    except (InvalidArgument, Forbidden):
        raise
    except NyalaError as err:
        raise Unavailable(
            f"the tablet server at {address} did not answer: {err.message}. Start it, and repeat the "
            "command; if it is lost for good, leave its address out, which may lose what only it knows"
        ) from err
    return ServerAnswer(info, tablets, revoked.revocations)


async def living_masters(env: Env, answers: Sequence[ServerAnswer], own: str) -> list[str]:
    """Return the addresses of masters of the cluster that still answer.

    Args:
        env: the environment: clock, tasks, files, calls.
        answers: of the tablet servers, which know the masters.
        own: address of the new master.
    """
    known = dict.fromkeys([own, *(m for a in answers for m in a.info.master_addresses)])

    async def answers_at(address: str) -> bool:
        try:
            info: pb.ServerInfoResponse = await env.rpc.call(
                address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=MASTER_MS
            )
        except NyalaError:
            return False
        return info.role == "master"

    found = await asyncio.gather(*(answers_at(address) for address in known))
    return [address for address, alive in zip(known, found, strict=True) if alive]


async def write_master(
    server: StoppedServer,
    plan: RebuildPlan,
    address: str,
    peer_address: str,
    masters: Sequence[str],
) -> Configuration:
    """Write a rebuilt catalog into an empty directory; durable on return.

    Args:
        server: the directory of the new master.
        plan: the catalog.
        address: public address of the new master.
        peer_address: address of its peer port.
        masters: further list of addresses with which it may be started; empty: none.

    Returns:
        The configuration of the new group, with this master only.

    Raises:
        InvalidArgument: the directory has content. NyalaError, OSError: as `write.write`.
    """
    files = SystemFiles()
    try:
        uuid = write.prepare(files, server.directory, server.env.random, plan.time)
    finally:
        files.close()
    accepted = [tuple(masters)] if masters else []
    return await write.write(server, plan, Member(uuid, peer_address, address), accepted)
