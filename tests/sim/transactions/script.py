"""A scripted coordinator in place of the masters' part: decisions in one object, answers to status requests.

The masters of the simulated cluster are the real ones, except for their answers to
`TransactionService.Status`. The object is what a catalog would be: it loses nothing. After a coordinator's
crash its orders are not sent; tablets then learn the outcome by their own questions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.master.server import Master
from nyala.replica.state_machine import Transport
from nyala.wire import methods
from nyala.wire.proto import transactions_pb2 as tb
from tests.sim.systems.cluster import SimCluster

Attempt = tuple[int, int, int]


class Decisions:
    """Decisions and attempts of all transactions of a run.

    Attributes:
        times: commit times of decisions.
        trying: transactions with an attempt under way.
        silent: answer WAIT to every question.
        dropped: tablets that are answered DELETED.
        asked: number of questions about each transaction.
    """

    def __init__(self) -> None:
        self.times: dict[bytes, int] = {}
        self.trying: set[bytes] = set()
        self.silent = False
        self.dropped: set[str] = set()
        self.asked: dict[bytes, int] = {}
        self.numbers = 0
        self._last = 0

    def attempt(self) -> Attempt:
        """Return a new attempt, above every one before."""
        self.numbers += 1
        return 1, 1, self.numbers

    def decide(self, transaction: bytes, prepare_times: Sequence[int], ahead: int = 1) -> int:
        """Decide that a transaction is committed; return its commit time, above every one before.

        Args:
            transaction: its id.
            prepare_times: of its tablets.
            ahead: difference to the latest of them, or to the last decision.
        """
        self._last = max(self._last, *prepare_times) + ahead
        self.times[transaction] = self._last
        self.trying.discard(transaction)
        return self._last

    async def status(self, request: tb.TxnStatusRequest) -> tb.TxnStatusResponse:
        """Answer the questions of a tablet server."""
        response = tb.TxnStatusResponse()
        for asked in request.prepared:
            transaction = asked.transaction
            self.asked[transaction] = self.asked.get(transaction, 0) + 1
            if self.silent or transaction in self.trying:
                response.answers.add(kind=tb.TxnStatusAnswer.WAIT)
            elif asked.tablet_id in self.dropped:
                response.answers.add(kind=tb.TxnStatusAnswer.DELETED)
            elif transaction in self.times:
                at = self.times[transaction]
                response.answers.add(kind=tb.TxnStatusAnswer.RESOLVE, at=at)
            else:
                bound = as_message(self.attempt())
                response.answers.add(kind=tb.TxnStatusAnswer.UNPREPARE, bound=bound)
        return response


def as_message(attempt: Attempt) -> tb.TxnAttempt:
    """Return an attempt as it is sent."""
    return tb.TxnAttempt(incarnation=attempt[0], term=attempt[1], number=attempt[2])


class _ScriptedMaster:
    """A master whose answers to status requests are the script's."""

    def __init__(self, master: Master, decisions: Decisions) -> None:
        self._master = master
        self._decisions = decisions

    def handlers(self) -> Handlers:
        found: Mapping[Any, Any] = self._master.handlers()
        return {**found, methods.TXN_STATUS: self._decisions.status}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._master, name)


def script(cluster: SimCluster, decisions: Decisions) -> None:
    """Let the masters of a cluster, which has not started, answer status requests from a script."""
    for process in cluster.masters:
        program = process.program
        assert program is not None

        def scripted(env: Env, transport: Transport, made: Any = program) -> Any:
            return _ScriptedMaster(made(env, transport), decisions)

        process.program = scripted
