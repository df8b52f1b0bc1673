"""Check for a master whose uuid was given to a replacement while it was considered dead (S2.5). Pure."""

from nyala.common.errors import InvalidArgument
from nyala.common.ids import ServerUuid
from nyala.raft.membership import Configuration
from nyala.wire.proto import nyala_pb2 as pb


def check(
    own: pb.ServerInfoResponse, known: Configuration | None, reported: Configuration | None
) -> None:
    """Check that no other server has this master's uuid.

    A replacement at the old address keeps the old server from binding it. A replacement at another address is
    in the configuration of the remaining masters.

    Args:
        own: this master.
        known: committed configuration in its own directory; None: it has no catalog.
        reported: newest configuration that another master reports; None: none.

    Raises:
        InvalidArgument: the others have its uuid at another address.
    """
    if known is None or reported is None or reported.id < known.id:
        return
    other = reported.get(ServerUuid(own.uuid))
    if other is None or (other.address, other.peer_address) == (own.address, own.peer_address):
        return
    raise InvalidArgument(
        f"the other masters have {own.uuid}, the uuid of this master, at {other.address}, and this one is at "
        f"{own.address}: it was replaced, and its data are out of date. Remove its data directory. "
        "If no other server has this uuid and this one has only moved, change its address at the other "
        "masters first: nyala local_replica cmeta rewrite_raft_config catalog"
    )
