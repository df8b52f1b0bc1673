"""EnsembleMember: what a server of the ensemble keeps: id, tablets, and its copy of the list. No I/O."""

import hashlib
import struct
from collections.abc import Iterable

from nyala.common.errors import InvalidArgument, NotFound
from nyala.ram.ids import HashRange, ServerId
from nyala.recipes.broadcast import BroadcastCopy, ListMessage, Update
from nyala.recipes.guard import EpochGuard
from nyala.wire.proto import ram_pb2 as pb


def owned_digest(tablets: Iterable[HashRange]) -> int:
    """Return a digest of a set of tablets, in any order."""
    found = 0
    for t in tablets:
        packed = struct.pack("<QQQ", *t)
        found ^= int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
    return found


class EnsembleMember:
    """See above. A server that enlists again makes a new one.

    Args:
        server: its id.
        ensemble: id of the ensemble.
        epoch: of the leader that it enlisted with.

    Attributes:
        ensemble: id of the ensemble.
        owned: the tablets that it owns.
        servers: its copy of the list.
        guard: refuses leaders that were replaced.
    """

    def __init__(self, server: ServerId, ensemble: str, epoch: int) -> None:
        self.id = server
        self.ensemble = ensemble
        self.guard = EpochGuard(epoch)
        self.owned: set[HashRange] = set()
        self.servers = BroadcastCopy()

    def check(self, fence: pb.Fence) -> None:
        """Refuse requests of other ensembles, to another server, and of replaced leaders.

        The epoch comes last: no request to others changes the highest one that is known.

        Raises:
            InvalidArgument, NotFound, StaleEpoch: as said.
        """
        if fence.ensemble != self.ensemble:
            raise InvalidArgument(
                f"this server belongs to ensemble {self.ensemble!r}, not to {fence.ensemble[:80]!r}; give "
                "each ensemble addresses of its own"
            )
        if ServerId.of(fence.server) != self.id:
            raise NotFound(f"this is server {self.id}, not {ServerId.of(fence.server)}")
        self.guard.check(fence.epoch)

    def take(self, tablets: Iterable[HashRange]) -> None:
        """Own tablets, in place of any that overlap with them."""
        for tablet in tablets:
            if not tablet.first <= tablet.last:
                raise InvalidArgument(f"{tablet} has no hashes")
            self.owned -= {t for t in self.owned if _overlap(t, tablet)}
            self.owned.add(tablet)

    def drop(self, table_id: int) -> None:
        """Own nothing of a table."""
        self.owned = {t for t in self.owned if t.table_id != table_id}

    def set_all(self, tablets: Iterable[HashRange]) -> None:
        """Own these tablets, and no others."""
        wanted = set(tablets)
        self.owned &= wanted
        self.take(sorted(wanted - self.owned))

    def split(self, table_id: int, split_hash: int) -> None:
        """Split the tablet that has this hash; nothing if one begins with it, or it owns none."""
        for t in list(self.owned):
            if t.table_id == table_id and t.first < split_hash <= t.last:
                self.take([t._replace(last=split_hash - 1), t._replace(first=split_hash)])

    def update(self, request: pb.UpdateServerListRequest) -> int:
        """Take changes of the list, in order and without gaps; return its version."""
        data = [
            (u.version, u.name, u.server.SerializeToString() if u.HasField("server") else None)
            for u in request.updates
        ]
        if request.full:
            items = {name: value for _, name, value in data if value is not None}
            return self.servers.take(ListMessage(request.version, items=items))
        updates = tuple(Update(*one) for one in data)
        return self.servers.take(ListMessage(request.version, updates))

    def listed(self) -> list[pb.ServerState]:
        """Return its copy of the list."""
        return [pb.ServerState.FromString(v) for _, v in sorted(self.servers.items.items())]


def _overlap(one: HashRange, other: HashRange) -> bool:
    return one.table_id == other.table_id and one.first <= other.last and other.first <= one.last
