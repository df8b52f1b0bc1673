"""State of the processes of an ensemble, as they tell it themselves, also while no coordinator leads."""

import asyncio
import contextlib
from dataclasses import dataclass

from nyala.client.core import ClientCore, ClientOptions
from nyala.client.credentials import credentials_for
from nyala.client.journal.core import JournalCore
from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import NyalaError
from nyala.env.env import Env, system_env
from nyala.testing import processes
from nyala.testing.layout import Layout
from nyala.testing.ram_ensemble import COORDINATOR, ENSEMBLE, JOURNAL
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import ram_pb2 as pb

ANSWER_MS = 2_000
LEADS, REPLAYS, FOLLOWS, SILENT, STOPPED = (
    "leads",
    "replays",
    "follows",
    "gives no answer",
    "stopped",
)
UNKNOWN, NOT_LISTED = "unknown", "not in the list"


@dataclass(slots=True)
class ProcessState:
    """One process of an ensemble.

    Attributes:
        name: of the process.
        address: where it serves.
        pid: None: it does not run.
        state: of a coordinator, one of the above; of a server, that in the leader's list.
        epoch: of a coordinator that leads.
        behind: number of valid entries of the log that a coordinator does not have yet; None: not known.
    """

    name: str
    address: str
    pid: int | None
    state: str = ""
    epoch: int | None = None
    behind: int | None = None


@dataclass(slots=True)
class EnsembleState:
    """State of an ensemble.

    Attributes:
        coordinators: in the order of the layout.
        servers: in the same order.
        journal_error: why the journal could not be read; empty: it was.
    """

    coordinators: list[ProcessState]
    servers: list[ProcessState]
    journal_error: str = ""

    @property
    def processes(self) -> list[ProcessState]:
        """All processes."""
        return [*self.coordinators, *self.servers]

    @property
    def leader(self) -> ProcessState | None:
        """The coordinator that leads and serves."""
        return next((p for p in self.coordinators if p.state == LEADS), None)


def read_state(ensemble: Layout) -> EnsembleState:
    """Ask all processes of an ensemble that run, and its journal, for their state."""
    return asyncio.run(_read(ensemble))


async def _read(ensemble: Layout) -> EnsembleState:
    rpc = GrpcRpc(RpcLimits(), credentials_for(ensemble.options["masters"]))
    env = system_env(rpc)
    state = EnsembleState([], [])
    for s in ensemble.servers:
        listed = state.coordinators if s.role == COORDINATOR else state.servers
        listed.append(ProcessState(s.name, s.address, processes.running_pid(s)))
    try:
        reached = await asyncio.gather(*(_coordinator(env, one) for one in state.coordinators))
        await _servers(env, state)
        after = min((r for r in reached if r is not None), default=0)
        try:
            ids = await _entry_ids(env, ensemble.options["masters"], after)
        except NyalaError as err:
            state.journal_error = err.message
        else:
            for one, known in zip(state.coordinators, reached, strict=True):
                one.behind = None if known is None else sum(i > known for i in ids)
        return state
    finally:
        await env.tasks.close()
        await rpc.close()


async def _coordinator(env: Env, one: ProcessState) -> int | None:
    """Ask a coordinator for its state; return the id up to which it has the log."""
    one.state = STOPPED
    if one.pid is None:
        return None
    try:
        request = pb.CoordinatorStatusRequest()
        found = await env.rpc.call(
            one.address, methods.RAM_COORDINATOR_STATUS, request, timeout_ms=ANSWER_MS
        )
    except NyalaError:
        one.state = SILENT
        return None
    one.state = LEADS if found.serves else REPLAYS if found.epoch else FOLLOWS
    one.epoch = found.epoch or None
    reached: int = found.reached
    return reached


async def _servers(env: Env, state: EnsembleState) -> None:
    """Set the state of the servers that run, by the leader's list."""
    listed: dict[str, str] | None = None
    if state.leader is not None:
        request, address = pb.ServerListRequest(), state.leader.address
        with contextlib.suppress(NyalaError):
            found = await env.rpc.call(
                address, methods.RAM_SERVER_LIST, request, timeout_ms=ANSWER_MS
            )
            listed = {s.address: s.status for s in found.servers}
    for one in state.servers:
        known = UNKNOWN if listed is None else listed.get(one.address, NOT_LISTED)
        one.state = STOPPED if one.pid is None else known


async def _entry_ids(env: Env, masters: str, after: int) -> list[int]:
    """Return the ids of the valid entries of the log above `after`."""
    core = JournalCore(ClientCore(env, masters.split(","), ClientOptions(timeout_ms=ANSWER_MS)))
    journal = JournalCoroutines(core, await core.open(JOURNAL))
    return [e.id async for page in journal.entries(ENSEMBLE, after) for e in page]
