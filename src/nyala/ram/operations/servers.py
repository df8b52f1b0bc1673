"""Operations on the list of servers. They have no intent: their records take effect together.

What servers are told follows from the list (`upkeep.py`).
"""

from collections.abc import Iterable

from nyala.common.errors import InvalidArgument, NotFound, Unavailable
from nyala.ram.ids import ServerId
from nyala.ram.operations.record_operation import FactOperation
from nyala.ram.server_list import ServerStatus
from nyala.ram.state import VERSION, objects_of, objects_of_server
from nyala.wire.proto import ram_pb2 as pb

MOST_MOVED = 30
"""Most backups that leave their groups in one step, which may have 64 changes."""


class Enlist(FactOperation):
    """Take a server into the list; one that it replaces, or that was at its address, crashes first."""

    kind = "enlist"

    def facts(self, request: pb.EnlistRequest) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        servers, version, found = self.state.servers, self.state.servers.version, []
        gone = {ServerId.of(request.replaces)}
        before = servers.at_address(request.address)
        for one in sorted(gone | ({before.id} if before else set())):
            if servers.is_up(one):
                version += 1
                found += self.crash(one, version)
        version += 1
        made = ServerId(servers.free_index(), version)
        up = pb.ServerUp(
            id=made.message(), roles=sorted(set(request.roles)), address=request.address,
            read_mb_s=request.read_mb_s, update_version=version,
        )  # fmt: skip
        return [*found, self.record(server_up_update=version), self.record(server_up=up)]


class Crash(FactOperation):
    """Mark a server as crashed."""

    kind = "crash"

    def facts(self, request: ServerId) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        servers = self.state.servers
        if not servers.is_up(request):
            raise NotFound(f"server {request} is not up; see: nyala ram servers")
        return self.crash(request, servers.version + 1)


class RemoveServer(FactOperation):
    """End the recovery of a crashed server, which owns nothing; the others remove it from their lists."""

    kind = "remove"

    def facts(self, request: ServerId) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        servers = self.state.servers
        found = servers.servers.get(request)
        if found is None or found.status is not ServerStatus.CRASHED:
            raise NotFound(f"server {request} is not crashed; see: nyala ram servers")
        if self.state.tablets.owned_by(request):
            raise Unavailable(f"server {request} owns tablets that are not recovered")
        change = pb.ServerChange(id=request.message(), update_version=servers.version + 1)
        return [self.record(server_remove_update=change)]

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        (record,) = pb.Records.FromString(payload).records
        server = ServerId.of(record.server_remove_update.id)
        return [*objects_of(record), f"server_needs_recovery {server}"]


class Confirm(FactOperation):
    """Note that all servers that are up have a version of the list (S3.41, S3.38)."""

    kind = "confirm"

    def facts(self, request: int) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        servers = self.state.servers
        if not servers.confirmed < request <= servers.version:
            raise InvalidArgument(
                f"version {request} is not above {servers.confirmed}, or not there yet"
            )
        return [self.record(server_list_version=request)]

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        version = pb.Records.FromString(payload).records[0].server_list_version
        servers = self.state.servers
        yield VERSION
        yield from (f"server_up_update {v}" for v in servers.unconfirmed if v <= version)
        yield from (f"server_replication_up_update {v}" for v in servers.moved if v <= version)
        for server in servers.removable(version):
            yield from objects_of_server(server)


class SetRecoveryInfo(FactOperation):
    """Keep what a recovery of a server needs to know (ServerUpdate)."""

    kind = "set_recovery_info"

    def facts(self, request: pb.RecoveryInfo) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        server = ServerId.of(request.id)
        if not self.state.servers.is_up(server):
            raise NotFound(f"server {server} is not up; see: nyala ram servers")
        return [self.record(server_update=request)]


class AssignGroup(FactOperation):
    """Put backups that are in no replication group into a new one; its number is the version of its first."""

    kind = "assign_group"

    def facts(self, request: None) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        first, found = self.state.servers.version + 1, []
        for number, server in enumerate(self.state.servers.without_group()):
            made = pb.ReplicationGroup(id=server.up.id, group=first, update_version=first + number)
            found.append(self.record(server_replication_up_update=made))
            found.append(self.record(server_replication_update=made))
        return found


class DissolveGroups(FactOperation):
    """Take the backups that are left of a replication group out of it; they may form another one."""

    kind = "dissolve_groups"

    def facts(self, request: None) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        first, found = self.state.servers.version + 1, []
        for number, server in enumerate(self.state.servers.of_broken_groups()[:MOST_MOVED]):
            left = pb.ReplicationGroup(id=server.up.id, group=0, update_version=first + number)
            found.append(self.record(server_replication_up_update=left))
            found.append(self.record(server_replication_update=left))
        return found


class NoteLoads(FactOperation):
    """Keep the loads that a server reports, so that a later leader divides its tablets by them."""

    kind = "note_loads"

    def facts(self, request: pb.ServerLoads) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        server = ServerId.of(request.id)
        if not self.state.servers.is_up(server):
            raise NotFound(f"server {server} is not up; see: nyala ram servers")
        return [self.record(server_loads=request)]
