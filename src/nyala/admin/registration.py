"""Registration of a master or tablet server, in heartbeats and responses."""

from typing import Protocol

from nyala.common.version import PROTOCOL_VERSION, VERSION
from nyala.datadir import instance
from nyala.datadir.identity import Identity
from nyala.wire.proto import nyala_pb2 as pb


class ServerAddresses(Protocol):
    """Addresses of a server, each host:port."""

    @property
    def address(self) -> str:
        """Of the public port."""

    @property
    def peer_address(self) -> str:
        """Of the peer port."""

    @property
    def web_address(self) -> str:
        """Of the web port; empty: none."""


def registration(
    identity: Identity, role: str, at: ServerAddresses, location: str = ""
) -> pb.ServerInfoResponse:
    """Return a server's registration with its hybrid time. Raises Unavailable before its start.

    Args:
        identity: identity of the server.
        role: `master` or `tserver`.
        at: its addresses.
        location: its failure domain; empty: none.
    """
    return pb.ServerInfoResponse(
        uuid=identity.uuid,
        role=role,
        cluster_id=identity.instance.cluster_id,
        address=at.address,
        peer_address=at.peer_address,
        web_address=at.web_address,
        version=VERSION,
        protocol_version=PROTOCOL_VERSION,
        format_version=instance.FORMAT_VERSION,
        hybrid_time=identity.clock.peek(),
        location=location,
        incarnation=identity.incarnation,
    )
