"""Joining a cluster with a token: a new server gets its certificate from the masters."""

import asyncio
from collections.abc import Sequence

from nyala.common.errors import AlreadyPresent, InvalidArgument, Retryable, TimedOut
from nyala.datadir import instance
from nyala.env.env import Env
from nyala.security import joined
from nyala.security.files import CredentialFiles, joined_files
from nyala.security.join_token import JoinToken
from nyala.security.signing_request import request_for
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.tls import join_client

PAUSE_MS = 500


async def join(
    env: Env,
    directory: str,
    token: JoinToken,
    masters: Sequence[str],
    role: str,
    hosts: Sequence[str],
    timeout_s: float,
) -> tuple[CredentialFiles, tuple[str, ...]]:
    """Get the certificate of a new server; return its files and the masters' public addresses.

    Interrupted at any point it may be repeated: the same server uses the token once.

    Args:
        env: files, tasks.
        directory: data directory of the server; formatted when it is empty.
        token: the token.
        masters: join addresses of masters.
        role: "tserver" or "master".
        hosts: names and addresses under which others reach the server.
        timeout_s: time in which a master has to answer, in seconds.

    Raises:
        AlreadyPresent: the server has joined already.
        InvalidArgument: no master is named; or the directory belongs to a server of another role.
        Unauthenticated: the cluster is not that of the token, or the token is not valid.
        TimedOut: no master answered in time.
    """
    if joined_files(directory) is not None:
        raise AlreadyPresent(
            f"the server in {directory} has joined its cluster already; start it with: nyala {role} run "
            f"--dir {directory}"
        )
    if not masters:
        raise InvalidArgument("name the join addresses of the masters: --masters HOST:PORT,...")
    uuid = instance.open_instance(env.files, directory, role, env.random).uuid
    request = pb.JoinRequest(
        token_id=token.id, secret=token.secret, uuid=uuid, role=role, hosts=hosts,
        csr=request_for(joined.waiting_key(directory)),
    )  # fmt: skip
    answer = await _ask(env, masters, token, request, timeout_s)
    files = joined.keep(directory, answer.ca, answer.certificate)
    return files, tuple(answer.master_addresses)


async def _ask(
    env: Env, masters: Sequence[str], token: JoinToken, request: pb.JoinRequest, timeout_s: float
) -> pb.JoinResponse:
    errors: dict[str, str] = {}
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                for address in masters:
                    try:
                        sent = await join_client.fetch_authority(address)
                        ca = joined.pinned(sent, token, address)
                        return await join_client.join(address, ca, request)
                    except Retryable as err:
                        errors[address] = err.message
                await env.tasks.sleep_ms(PAUSE_MS)
    except TimeoutError:
        tried = "; ".join(f"{a}: {why}" for a, why in errors.items()) or ", ".join(masters)
        raise TimedOut(
            f"no master let this server join within {timeout_s:g} s ({tried}); run the command again"
        ) from None
