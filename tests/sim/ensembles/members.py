"""The servers of an ensemble as processes, and the rules that hold at each of them.

A server accepts no request of a leader after one of a later leader. Its copy of the list has versions that
only grow, and for each version the content that the log has for it. Requests of a leader that was replaced
are delivered late, once more: they are refused and change nothing.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from nyala.common.errors import NotFound, StaleEpoch, Unavailable
from nyala.env.env import Env
from nyala.env.rpc import Handlers, Method
from nyala.ram.calls import EnsembleClient
from nyala.ram.ids import HashRange
from nyala.ram.member import EnsembleMember
from nyala.ram.storage_server import StorageConfig, StorageServer
from nyala.ram.will import TabletLoad
from tests.sim.ensembles.model import EnsembleModel
from tests.sim.ensembles.points import CALLS

MAX_LATE_MS = 4_000
LOAD_MS = 700
MOST_BYTES = 5_000
"""Largest load of a tablet, some times the limit of the parts of a will."""
Handle = Callable[[Any], Awaitable[Any]]


@dataclass(slots=True)
class MemberRules:
    """Rules of one server, as long as it has one id.

    Args:
        model: has the list of servers for each version.
        name: of the process.

    Attributes:
        checks: number of checks.
        loads_change: the server reports other loads from time to time.
    """

    model: EnsembleModel
    name: str
    checks: Counter[str]
    loads_change: bool = True
    _member: EnsembleMember | None = None
    _epoch: int = 0
    _version: int = 0

    def look(self, member: EnsembleMember) -> None:
        """Check the list of a server, if it has changed."""
        if member is not self._member:
            self._member, self._epoch, self._version = member, 0, 0
        version = member.servers.version
        if version == self._version:
            return
        assert version > self._version, f"{self.name}: list {version} after {self._version}"
        assert version <= self.model.version, f"{self.name}: list {version} is in no log"
        self._version = version
        found = {str_id(s): (s.status, s.group) for s in member.listed()}
        wanted = self.model.lists[version]
        assert found == wanted, f"{self.name}: list {version} is {found}, not {wanted}"
        self.checks["lists"] += 1

    def accepted(self, member: EnsembleMember, epoch: int) -> bool:
        """Take a request that was accepted; return True if it is the first of its leader."""
        self.look(member)
        assert epoch >= self._epoch, f"{self.name}: epoch {epoch} accepted after {self._epoch}"
        self.checks["requests"] += 1
        first, self._epoch = epoch > self._epoch, epoch
        return first


def str_id(state: Any) -> str:
    """Return the id of a listed server as the list names it."""
    return f"{state.id.index}.{state.id.generation}"


class MemberProcess:
    """The program of a server.

    Args:
        env: the environment.
        config: of the server.
        client: its calls to the coordinator.
        note_alive: see `StorageServer`.
        rules: of this process.
        rng: draws loads and late requests.
    """

    def __init__(
        self,
        env: Env,
        config: StorageConfig,
        client: EnsembleClient,
        note_alive: Callable[[], Awaitable[object]],
        rules: MemberRules,
        rng: random.Random,
    ) -> None:
        self._env = env
        self._rng = rng
        self.rules = rules
        self._loads: dict[HashRange, TabletLoad] = {}
        self.server = StorageServer(env, config, client, note_alive, lambda: self._loads)
        self._last: dict[Method, Any] = {}

    async def start(self) -> None:
        """Start the server, whose tablets get loads."""
        await self.server.start()
        self._env.tasks.spawn(self._load(), "loads")

    async def close(self) -> None:
        """Stop it."""
        await self.server.close()

    def handlers(self) -> Handlers:
        """Its handlers, observed."""
        found: dict[Method, Any] = {}
        for method, handle in self.server.handlers().items():
            found[method] = (
                partial(self._handle, method, cast("Handle", handle)) if method in CALLS else handle
            )
        return found

    async def _handle(self, method: Method, handle: Handle, request: Any) -> Any:
        answer = await handle(request)
        if self.rules.accepted(self.server.member, request.fence.epoch):
            late, self._last = self._last, {}
            for one, earlier in late.items():
                self._env.tasks.spawn(self._late(one, earlier), "late request")
        self._last[method] = request
        return answer

    async def _late(self, method: Method, request: Any) -> None:
        """Deliver a request of an earlier leader again, after one of a later leader was accepted."""
        await self._env.tasks.sleep_ms(self._rng.uniform(0, MAX_LATE_MS))
        if not self.server.enlisted:
            return
        member = self.server.member
        owned, version = set(member.owned), member.servers.version
        try:
            await self.server.handlers()[method](request)  # type: ignore[misc, call-arg]
        except (StaleEpoch, NotFound, Unavailable) as err:
            self.rules.checks[f"late request refused: {type(err).__name__}"] += 1
        else:
            raise AssertionError(f"{self.rules.name} accepts a late request: {request}")
        assert (member.owned, member.servers.version) == (owned, version), "it changed something"

    async def _load(self) -> None:
        """Report other loads from time to time."""
        while True:
            await self._env.tasks.sleep_ms(self._rng.expovariate(1 / LOAD_MS))
            if self.server.enlisted and self.rules.loads_change:
                owned = sorted(self.server.member.owned)
                self._loads = {t: TabletLoad(self._rng.randrange(MOST_BYTES), 1) for t in owned}
