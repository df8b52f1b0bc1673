"""The list of tablet servers, kept by the masters and cached by clients and servers.

Every change of a server's entry makes the next version of the list. An update says after which version it
counts; a copy takes it only if it has that one, or if the update holds the whole list. So a copy that missed
something never skips it: it tells the version that it has, and gets what it lacks. On the loop only.
"""

from nyala.common.ids import ServerUuid
from nyala.wire.proto import nyala_pb2 as pb


class ServerList:
    """The list, or a copy of it.

    Attributes:
        incarnation: of the catalog whose list it is; empty: of none yet.
        version: of the last change that it has.
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
        """Take a changed entry; the version becomes at least its own."""
        known = self._servers.get(ServerUuid(server.uuid))
        assert known is None or server.version >= known.version, f"{server} after {known}"
        self._servers[ServerUuid(server.uuid)] = server
        self.version = max(self.version, server.version)

    def update(self, incarnation: str, known: pb.ListVersion) -> pb.ServerListUpdate | None:
        """Return what a copy lacks; None: nothing.

        Args:
            incarnation: of this list.
            known: what the copy has. Of another list, or newer than this one: it gets the whole list.
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
        """Take an update; False: it does not follow what is here, or is older, and nothing changed."""
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
        """Version to request an update with."""
        return pb.ListVersion(incarnation=self.incarnation, version=self.version)
