"""EnsembleServerList: the servers of the ensemble, with a version that each change raises. It does no I/O."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from nyala.common.errors import Corrupt
from nyala.ram.ids import ServerId
from nyala.wire.proto import ram_pb2 as pb

MASTER, BACKUP = "master", "backup"
ROLES = (MASTER, BACKUP)
GROUP_SIZE = 3
"""Number of backups in a replication group."""


class ServerStatus(StrEnum):
    """Status of a server: it only moves on (S3.9)."""

    UP = "UP"
    CRASHED = "CRASHED"  # its tablets are not all recovered
    REMOVE = "REMOVE"  # recovered; some servers may not know that it is gone


@dataclass(slots=True)
class EnsembleServer:
    """One server.

    Attributes:
        up: record by which it enlisted.
        crashed_version: version of the list by which it crashed; 0: it has not.
        needs_recovery: it may have owned tablets, and they are not recovered.
        removed_version: version of the list by which it is removed; 0: it is not.
        recovery: what a recovery of it needs to know.
        group: replication group; None, or of number 0: none.
        loads: what its tablets hold, as it reported.
    """

    up: pb.ServerUp
    crashed_version: int = 0
    needs_recovery: bool = False
    removed_version: int = 0
    recovery: pb.RecoveryInfo | None = None
    group: pb.ReplicationGroup | None = None
    loads: pb.ServerLoads | None = None

    @property
    def id(self) -> ServerId:
        """Its id."""
        return ServerId.of(self.up.id)

    @property
    def status(self) -> ServerStatus:
        """Its status."""
        if self.removed_version:
            return ServerStatus.REMOVE
        return ServerStatus.CRASHED if self.crashed_version else ServerStatus.UP

    @property
    def group_number(self) -> int:
        """Number of its replication group; 0: it is in none."""
        return self.group.group if self.group else 0

    def message(self) -> pb.ServerState:
        """Return what other servers are told of it."""
        info = self.recovery or pb.RecoveryInfo()
        return pb.ServerState(
            id=self.up.id, roles=self.up.roles, address=self.up.address, read_mb_s=self.up.read_mb_s,
            status=self.status, group=self.group_number,
            min_open_segment=info.min_open_segment, min_open_epoch=info.min_open_epoch,
        )  # fmt: skip


@dataclass(slots=True)
class EnsembleServerList:
    """The servers. Each method is one atomic change, and may be called again.

    Attributes:
        servers: by id.
        confirmed: version that all servers that are up are known to have (S3.41).
        unconfirmed: versions by which servers came up that some may not have.
        moved: versions by which replication groups changed that some may not have.
        highest: highest version seen in a record.
    """

    servers: dict[ServerId, EnsembleServer] = field(default_factory=dict)
    confirmed: int = 0
    unconfirmed: set[int] = field(default_factory=set)
    moved: dict[int, pb.ReplicationGroup] = field(default_factory=dict)
    highest: int = 0

    @property
    def version(self) -> int:
        """Version of the list: the number of its changes."""
        return self.highest

    def _reached(self, version: int) -> None:
        self.highest = max(self.highest, version)

    # ---- changes -----------------------------------------------------------------------------------

    def up(self, record: pb.ServerUp) -> None:
        """Take a server into the list."""
        self._reached(record.update_version)
        self.servers.setdefault(ServerId.of(record.id), EnsembleServer(record))

    def up_update(self, version: int) -> None:
        """Note that the server that comes up by this version is not known to all."""
        self._reached(version)
        self.unconfirmed.add(version)

    def crashed(self, record: pb.ServerChange) -> None:
        """Mark a server as crashed, and raise the version, in one change (S3.6)."""
        self._reached(record.update_version)
        self._of(record.id).crashed_version = record.update_version

    def needs_recovery(self, record: pb.ServerChange) -> None:
        """Note that the tablets of a crashed server are to be recovered."""
        self._of(record.id).needs_recovery = True

    def remove(self, record: pb.ServerChange) -> None:
        """Note that a crashed server was recovered; nobody refers to it any more."""
        self._reached(record.update_version)
        gone = self._of(record.id)
        gone.removed_version, gone.needs_recovery = record.update_version, False

    def recovery_info(self, record: pb.RecoveryInfo) -> None:
        """Keep what a recovery of a server needs to know."""
        self._of(record.id).recovery = record

    def group(self, record: pb.ReplicationGroup) -> None:
        """Put a server into a replication group."""
        self._reached(record.update_version)
        self._of(record.id).group = record

    def group_update(self, record: pb.ReplicationGroup) -> None:
        """Note that the group of a server is not known to all."""
        self._reached(record.update_version)
        self.moved[record.update_version] = record

    def note_loads(self, record: pb.ServerLoads) -> None:
        """Keep what the tablets of a server hold, for a recovery by a later leader."""
        self._of(record.id).loads = record

    def confirm(self, version: int) -> None:
        """Note that all servers that are up have this version."""
        self._reached(version)
        self.confirmed = max(self.confirmed, version)

    def forget(self, server: ServerId) -> None:
        """Remove a server."""
        self.servers.pop(server, None)

    def _of(self, server: pb.ServerId) -> EnsembleServer:
        """Return a server; records of one follow that by which it enlisted.

        Raises:
            Corrupt: no record says that it enlisted.
        """
        found = self.servers.get(ServerId.of(server))
        if found is None:
            raise Corrupt(f"a record names server {ServerId.of(server)}, which never enlisted")
        return found

    # ---- questions ---------------------------------------------------------------------------------

    def is_up(self, server: ServerId) -> bool:
        """Return True if a server is up."""
        found = self.servers.get(server)
        return found is not None and found.status is ServerStatus.UP

    def with_status(self, status: ServerStatus, role: str = "") -> list[EnsembleServer]:
        """Return the servers with a status, by id; with this role only, if one is given."""
        return [
            s
            for _, s in sorted(self.servers.items())
            if s.status is status and (not role or role in s.up.roles)
        ]

    def to_recover(self) -> list[ServerId]:
        """Return the servers whose recovery no leader has finished, by their records (S3.36)."""
        return [i for i, s in sorted(self.servers.items()) if s.needs_recovery]

    def at_address(self, address: str) -> EnsembleServer | None:
        """Return the server that is up at an address."""
        return next((s for s in self.with_status(ServerStatus.UP) if s.up.address == address), None)

    def free_index(self) -> int:
        """Return the lowest index that no server has."""
        used = {s.index for s in self.servers}
        return next(i for i in range(1, len(used) + 2) if i not in used)

    def removable(self, version: int) -> list[ServerId]:
        """Return the servers that all are told are gone when all have this version."""
        return [i for i, s in sorted(self.servers.items()) if 0 < s.removed_version <= version]

    def without_group(self) -> list[EnsembleServer]:
        """Return the backups that are up and in no group, if they are enough for one."""
        free = [s for s in self.with_status(ServerStatus.UP, BACKUP) if not s.group_number]
        return free[:GROUP_SIZE] if len(free) >= GROUP_SIZE else []

    def of_broken_groups(self) -> list[EnsembleServer]:
        """Return the backups that are up, of groups that have lost a member."""
        backups = self.with_status(ServerStatus.UP, BACKUP)
        left = Counter(s.group_number for s in backups)
        return [s for s in backups if s.group_number and left[s.group_number] < GROUP_SIZE]

    def updates(self) -> Iterator[tuple[int, EnsembleServer]]:
        """Yield the changes above `confirmed`: version and server, in order (S3.8)."""
        found: dict[int, EnsembleServer] = {}
        for server in self.servers.values():
            versions = (server.up.update_version, server.crashed_version, server.removed_version)
            found.update((v, server) for v in versions if v > self.confirmed)
        for version, moved in self.moved.items():  # a server may have moved twice
            if version > self.confirmed and ServerId.of(moved.id) in self.servers:
                found[version] = self.servers[ServerId.of(moved.id)]
        yield from sorted(found.items(), key=lambda one: one[0])

    # ---- description -------------------------------------------------------------------------------

    def describe(self) -> Iterator[pb.Record]:
        """Yield the records that describe the list, and no others (S3.26)."""
        for version in sorted(self.unconfirmed):
            yield pb.Record(server_up_update=version)
        for moved in self.moved.values():
            yield pb.Record(server_replication_up_update=moved)
        if self.confirmed:
            yield pb.Record(server_list_version=self.confirmed)
        for server, entry in sorted(self.servers.items()):
            yield pb.Record(server_up=entry.up)
            if entry.recovery is not None:
                yield pb.Record(server_update=entry.recovery)
            if entry.group is not None:
                yield pb.Record(server_replication_update=entry.group)
            if entry.loads is not None:
                yield pb.Record(server_loads=entry.loads)
            for name, version in (
                ("server_crashed", entry.crashed_version),
                ("server_needs_recovery", entry.crashed_version * entry.needs_recovery),
                ("server_remove_update", entry.removed_version),
            ):
                if version:
                    change = pb.ServerChange(id=server.message(), update_version=version)
                    yield pb.Record(**{name: change})  # type: ignore[arg-type]
