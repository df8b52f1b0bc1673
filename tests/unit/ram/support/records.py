"""Operations of the coordinator on servers in memory, for runs with crashes."""

from collections.abc import Sequence
from typing import Any

from nyala.ram.ids import HashRange, ServerId
from nyala.ram.member import EnsembleMember
from nyala.ram.operations.kinds import KINDS
from nyala.ram.operations.record_operation import OperationContext
from nyala.ram.operations.tables import RecoverTablets, TabletRecovery
from nyala.ram.server_list import MASTER, ServerStatus
from nyala.ram.state import CoordinatorState, parse
from nyala.ram.will import divide
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.recipes.support.candidates import Candidates
from tests.unit.recipes.support.crashes import Points, Process, Request

ENSEMBLE = "ensemble"


class ServersInMemory:
    """Servers that outlive coordinators.

    Attributes:
        members: by id; each is made by the first request to it.
        silent: servers that answer nothing.
        calls: number of calls.
    """

    def __init__(self) -> None:
        self.members: dict[ServerId, EnsembleMember] = {}
        self.silent: set[ServerId] = set()
        self.calls = 0

    def _member(self, server: ServerId) -> EnsembleMember | None:
        self.calls += 1
        if server in self.silent:
            return None
        return self.members.setdefault(server, EnsembleMember(server, ENSEMBLE, 0))

    async def take(self, server: ServerId, tablets: Sequence[HashRange]) -> None:
        """See `OwnershipCalls`."""
        if (member := self._member(server)) is not None:
            member.take(tablets)

    async def drop(self, server: ServerId, table_id: int) -> None:
        """See `OwnershipCalls`."""
        if (member := self._member(server)) is not None:
            member.drop(table_id)

    async def split(self, server: ServerId, table_id: int, split_hash: int) -> None:
        """See `OwnershipCalls`."""
        if (member := self._member(server)) is not None:
            member.split(table_id, split_hash)

    def owned(self, server: ServerId) -> list[HashRange]:
        """Return what a server owns."""
        found = self.members.get(server)
        return [] if found is None else sorted(found.owned)


class _Recover(RecoverTablets):
    """Recovers all tablets of a lost server in one table, as planned when the operation begins."""

    def compute(self, request: Any) -> bytes:
        if isinstance(request, TabletRecovery):
            return super().compute(request)
        table_id, lost = request
        return super().compute(plan_recovery(self.state, table_id, lost))


def plan_recovery(state: CoordinatorState, table_id: int, lost: ServerId) -> TabletRecovery:
    """Return the recovery of a lost server's tablets in a table."""
    masters = [s.id for s in state.servers.with_status(ServerStatus.UP, MASTER)]
    owned = [t for t in state.tablets.owned_by(lost) if t.table_id == table_id]
    pieces = [p for part in divide(owned, {}) for p in part.pieces]
    takers = [(p, masters[n % len(masters)]) for n, p in enumerate(pieces)] if masters else []
    return TabletRecovery(table_id, lost, takers)


class CoordinatorProcess:
    """State and operations of one process; a `Service` of the crash runs."""

    def __init__(self, servers: ServersInMemory) -> None:
        self.state = CoordinatorState()
        self.context = OperationContext(self.state, servers)
        self.kinds = [
            _Recover(self.context) if k is RecoverTablets else k(self.context) for k in KINDS
        ]

    def retract(self, name: str) -> None:
        """Remove an object."""
        self.state.retract(name)

    def dump(self) -> object:
        """Return the state."""
        return self.state.dump()


def enlist(port: int, *, replaces: ServerId | None = None) -> tuple[str, Any]:
    """Return the request of a server."""
    message = replaces.message() if replaces else None
    roles = ["backup", "master"]
    return "enlist", pb.EnlistRequest(roles=roles, address=f"m:{port}", replaces=message)


def create(name: str, span: int = 2) -> tuple[str, Any]:
    """Return the request."""
    return "create_table", pb.CreateTableRequest(name=name, server_span=span)


def drop(name: str) -> tuple[str, Any]:
    """Return the request."""
    return "drop_table", pb.DropTableRequest(name=name)


def split(name: str, at: int) -> tuple[str, Any]:
    """Return the request."""
    return "split_tablet", pb.SplitTabletRequest(name=name, split_hash=at)


def valid_records(c: Candidates) -> list[pb.Record]:
    """Return the valid entries of the log that are records, without their epochs."""
    found = []
    for data in c.entries():
        record = parse(data.split(b" ", 2)[2]) if data.startswith((b"done ", b"intent ")) else None
        if record is not None:
            record.epoch = 0
            found.append(record)
    return found


def is_lint_free(c: Candidates, state: CoordinatorState) -> bool:
    """Return True if the valid entries are the records that describe the state, and no others."""
    log = sorted(r.SerializeToString(deterministic=True) for r in valid_records(c))
    return log == sorted(r.SerializeToString(deterministic=True) for r in state.describe())


async def fresh(c: Candidates) -> object:
    """Return the state of a process that replays the valid entries."""
    process = Process(c, CoordinatorProcess(ServersInMemory()), Points())
    await process.lead("fresh")
    return process.service.dump()


def state_of(process: Process) -> CoordinatorState:
    """Return the state of a process."""
    assert isinstance(process.service, CoordinatorProcess)
    return process.service.state


async def led(c: Candidates, *requests: Request) -> tuple[Process, ServersInMemory]:
    """Return a leader that has executed requests."""
    servers = ServersInMemory()
    process = Process(c, CoordinatorProcess(servers), Points())
    await process.lead("one")
    for request in requests:
        await process.execute(request)
    return process, servers
