"""Clients of an ensemble: they create, drop and split tables, read the map, and suspect servers.

A request whose outcome is unknown is sent again with the same operation id.
"""

import random
from typing import Any

from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import NotLeading, NyalaError, OutcomeUnknown, Retryable
from nyala.env.rpc import Method
from nyala.ram.calls import EnsembleClient
from nyala.ram.coordinator import leader_address
from nyala.ram.ids import LAST_HASH
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.ensembles.commits import LOG
from tests.sim.ensembles.history import EnsembleHistory
from tests.sim.ensembles.model import EnsembleModel
from tests.sim.world.loop import SimLoop

CALL_MS = 7_000
TRIES = 4
"""Tries of a request, each of which is several of `EnsembleClient`."""
NAMES = tuple(f"t{n}" for n in range(9))
MAX_SPAN = 6
MOST_TABLETS = 16
PAUSE_US = 350_000.0


def client_of(journal: JournalCoroutines) -> EnsembleClient:
    """Return calls of a process to the coordinator."""
    return EnsembleClient(journal.env, lambda: leader_address(journal, LOG))


class EnsembleActor:
    """One client at work.

    Args:
        loop: virtual time.
        client: sends its requests.
        history: gets its requests and answers.
        model: to check answers, and to choose requests that can succeed.
        rng: draws the requests.
        name: of the client, for the ids of its operations.

    Attributes:
        answered: number of definite answers.
        stopped: it ends when it is idle.
    """

    def __init__(
        self,
        loop: SimLoop,
        client: EnsembleClient,
        history: EnsembleHistory,
        model: EnsembleModel,
        rng: random.Random,
        name: str,
    ) -> None:
        self._loop = loop
        self._client = client
        self._history = history
        self._model = model
        self._rng = rng
        self.name = name
        self._number = 0
        self.answered = 0
        self.stopped = False

    async def run(self) -> None:
        """Send requests until stopped."""
        while not self.stopped:
            await self._loop.delay(self._rng.expovariate(1 / PAUSE_US))
            await self.ask(*self._draw())

    def _draw(self) -> tuple[Method, Any]:
        rng, tables = self._rng, self._model.tables
        self._number += 1
        operation = pb.OperationId(client=self.name, sequence=self._number)
        name = rng.choice(NAMES)
        if rng.random() < 0.6:  # most requests can succeed
            with_table = rng.random() < 0.6
            name = rng.choice([n for n in NAMES if (n in tables) == with_table] or NAMES)
        number = rng.random()
        if number < 0.1:
            return methods.RAM_TABLET_MAP, pb.TabletMapRequest()
        if number < 0.15:
            server = rng.choice([*sorted(self._model.servers), None])
            return methods.RAM_HINT_CRASHED, pb.HintCrashedRequest(
                id=server.message() if server else None
            )
        if number < 0.2 and self._model.servers:
            info = pb.RecoveryInfo(
                id=rng.choice(sorted(self._model.servers)).message(), min_open_segment=rng.randrange(99)
            )  # fmt: skip
            return methods.RAM_SET_RECOVERY_INFO, pb.SetRecoveryInfoRequest(info=info)
        if name not in tables:
            span = rng.randint(1, MAX_SPAN)
            return methods.RAM_CREATE_TABLE, pb.CreateTableRequest(
                name=name, server_span=span, operation=operation
            )
        if number < 0.55 and len(tables[name].pieces) < MOST_TABLETS:
            split_hash = rng.choice((rng.randint(1, LAST_HASH), 1 << 62, LAST_HASH))
            return methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(
                name=name, split_hash=split_hash, operation=operation
            )
        if number < 0.65:
            return methods.RAM_CREATE_TABLE, pb.CreateTableRequest(
                name=name, server_span=1, operation=operation
            )
        return methods.RAM_DROP_TABLE, pb.DropTableRequest(
            name=name, operation=operation, id=tables[name].id
        )

    async def ask(self, method: Method, request: Any) -> Any:
        """Send a request until the answer is definite; return it, or None if it is not after all tries."""
        made = self._history.asked(request, len(self._model.seen) - 1)
        answer: Any = None
        for made.tries in range(1, TRIES + 1):
            try:
                answer = await self._client.call(method, request, CALL_MS)
            except (Retryable, OutcomeUnknown, NotLeading):
                self._history.done["tries"] += 1
                continue
            except NyalaError as err:
                answer = err
            break
        if answer is None:
            self._history.done["unknown"] += 1
            return None
        self._history.answered(made, answer, self._model)
        self.answered += 1
        return answer
