"""The list of tablet servers, maintained by the masters and cached by clients and servers.

Every change of an entry increments the version of the list. An update names the version on which it is based;
a copy applies it only if it has that version or if the update is a full list, so that no change is skipped. A
copy requests updates with its own version. Used on the loop only.
"""

from nyala.common.ids import ServerUuid
from nyala.wire.proto import nyala_pb2 as pb


class ServerList:
    """The list, or a copy of it.

    Attributes:
        incarnation: incarnation of the catalog of the list; empty: none yet.
        version: version of the last change applied.
    """

    def __init__(self) -> None:
        self.incarnation = ""
        self.version = 0
        self._servers: dict[ServerUuid, pb.ListedServer] = {}

    def get(self, uuid: ServerUuid) -> pb.ListedServer | None:
        """Return the entry of a server; read only."""
        return self._servers.get(uuid)

    def all(self) -> list[pb.ListedServer]:
        """Return all entries, by id; read only."""
        return [self._servers[uuid] for uuid in sorted(self._servers)]

    def put(self, server: pb.ListedServer) -> None:
        """Apply a changed entry; the version becomes at least the entry's."""
        known = self._servers.get(ServerUuid(server.uuid))
        assert known is None or server.version >= known.version, f"{server} after {known}"
        self._servers[ServerUuid(server.uuid)] = server
        self.version = max(self.version, server.version)

    def update(self, incarnation: str, known: pb.ListVersion) -> pb.ServerListUpdate | None:
        """Return the update for a copy; None: it is up to date.

        Args:
            incarnation: incarnation of this list.
            known: version of the copy. If it is of another incarnation or newer, the update is the full list.
        """
        after = known.version if known.incarnation == incarnation else 0
        if after == self.version and known.incarnation == incarnation:
            return None
        if after > self.version:
            after = 0
        changed = sorted((s for s in self.all() if s.version > after), key=lambda s: s.version)
        return pb.ServerListUpdate(
            incarnation=incarnation, after=after, version=self.version, servers=changed
        )

    def take(self, update: pb.ServerListUpdate) -> bool:
        """Apply an update; False, without a change, if it is older or based on another version."""
        full = update.after == 0
        if not update.incarnation or (update.incarnation != self.incarnation and not full):
            return False
        follows = update.version > self.version and update.after in (0, self.version)
        if update.incarnation == self.incarnation and not follows:
            return False
        if full:
            self._servers.clear()
        self.incarnation = update.incarnation
        for server in update.servers:
            self._servers[ServerUuid(server.uuid)] = server
        self.version = update.version
        return True

    @property
    def known(self) -> pb.ListVersion:
        """Version of this copy, for a request of an update."""
        return pb.ListVersion(incarnation=self.incarnation, version=self.version)
