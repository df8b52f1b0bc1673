"""The callers' end of the join port: it verifies the cluster before it sends a secret."""

import asyncio
import contextlib
import ssl

from nyala.common import addresses
from nyala.common.errors import Unauthenticated, Unavailable
from nyala.security.identity import identity_of_peer
from nyala.wire import status
from nyala.wire.connection import connect
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.tls import join_frames


async def fetch_authority(address: str) -> bytes:
    """Return what the server at an address says is the certificate of its authority, as PEM.

    Nothing is verified: compare its hash with that of a token.

    Raises:
        InvalidArgument: not an address.
        Unavailable: the server cannot be reached, or does not answer.
    """
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return (await _exchange(address, pb.JoinRequest(), context)).ca


async def join(address: str, ca: bytes, request: pb.JoinRequest) -> pb.JoinResponse:
    """Send a token or a login, and a request for a certificate, to a master; return the answer.

    Args:
        address: host:port of its join port.
        ca: certificate of the cluster's authority, whose hash was compared with a known one.
        request: token or login, and request.

    Raises:
        Unauthenticated: the certificate of the server is not of this authority, not for this host, or that
            of no master; the token or the password is not valid.
        Unavailable: the master cannot be reached, or does not answer.
        NyalaError: the masters refused the request.
    """
    context = _context()
    context.load_verify_locations(cadata=ca.decode())
    answer = await _exchange(address, request, context)
    if answer.HasField("error"):
        raise status.from_proto(answer.error)
    return answer


def _require_master(address: str, writer: asyncio.StreamWriter) -> None:
    """Check that the other end of a connection is no tablet server in the place of a master.

    Raises:
        Unauthenticated: it is, or a user.
    """
    found = identity_of_peer(writer.get_extra_info("peercert") or {}).principal
    if not found.may_be_master:
        raise Unauthenticated(
            f"the server at {address} has the certificate of {found}, which is no master; nothing secret was "
            "sent. Check the address; if it is that of a master, find out who answers there"
        )


def _context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    return made


async def _exchange(
    address: str, request: pb.JoinRequest, context: ssl.SSLContext
) -> pb.JoinResponse:
    host, port = addresses.parse(address)
    try:
        async with asyncio.timeout(join_frames.EXCHANGE_S):
            sock = await connect(host, port, int(join_frames.EXCHANGE_S * 1000))
            reader, writer = await asyncio.open_connection(
                sock=sock, ssl=context, server_hostname=host
            )
            try:
                if context.verify_mode is ssl.CERT_REQUIRED:
                    _require_master(address, writer)
                await join_frames.send(writer, request)
                return await join_frames.receive_response(reader)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except ssl.SSLCertVerificationError as err:
        raise Unauthenticated(
            f"the server at {address} does not prove that it is a master of this cluster: "
            f"{err.verify_message}; nothing secret was sent. Check the address, and that the certificate of "
            f"the master names the host {host} (nyala cert show)"
        ) from err
    except (
        OSError,
        UnicodeError,
        asyncio.IncompleteReadError,
    ) as err:  # TimeoutError is an OSError
        raise Unavailable(
            f"no master answers at its join address {address}: {err or 'time-out'}; name the addresses that "
            "the masters have for --join-address"
        ) from err
