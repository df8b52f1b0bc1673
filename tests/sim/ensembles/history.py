"""History of the clients of an ensemble: calls and their answers, compared with the commits of the log.

Requests are executed under the coordinator's lock, so that an answer fits the tables after some commit
between the first try and the answer. Reads may miss operations that no answer has shown yet.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nyala.common.errors import AlreadyPresent, NotFound, NyalaError
from nyala.ram.ids import ServerId
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.ensembles.model import EnsembleModel, ModelTable, Tables, operation_of, table_of

Answer = Any
"""Response, or the error that refused the request; None: the outcome is unknown."""


@dataclass(slots=True)
class Call:
    """A request and its answer.

    Attributes:
        request: the same in all tries.
        called: number of commits at the first try.
        returned: at the answer.
        answer: see `Answer`.
        tries: number of tries.
        least: for reads: number of commits that an answer had shown.
    """

    request: Any
    called: int
    least: int
    returned: int = 0
    answer: Answer = None
    tries: int = 0


@dataclass(slots=True)
class EnsembleHistory:
    """All requests of all clients.

    Attributes:
        sent: calls of leaders; see `LeaderCalls`.
        creates: requested tables, by operation.
        drops: names of dropped tables, by operation.
        splits: requested splits.
        calls: answered ones, and those with unknown outcomes.
        done: number of answers by kind.
        shown: highest number of commits that an answer has shown.
    """

    sent: Mapping[tuple[int, str, int], set[ServerId]]
    creates: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    drops: dict[tuple[str, int], str] = field(default_factory=dict)
    splits: set[tuple[str, int]] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    shown: int = 0

    # ---- see `Requests` ----------------------------------------------------------------------------

    def may_create(self, operation: tuple[str, int], name: str, span: int) -> bool:
        """Return whether a client has requested this table."""
        return self.creates.get(operation) == (name, span)

    def may_drop(self, operation: tuple[str, int], name: str) -> bool:
        """Return whether a client has requested to drop it."""
        return self.drops.get(operation) == name

    def may_split(self, name: str, split_hash: int) -> bool:
        """Return whether a client has requested this split."""
        return (name, split_hash) in self.splits

    def called(self, epoch: int, what: str, table_id: int) -> set[ServerId]:
        """Return the servers that the leader of an epoch has called for a table."""
        return self.sent.get((epoch, what, table_id), set())

    # ---- requests ----------------------------------------------------------------------------------

    def asked(self, request: Any, position: int) -> Call:
        """Take a new request."""
        match request:
            case pb.CreateTableRequest():
                wanted = (request.name, request.server_span)
                self.creates[operation_of(request.operation)] = wanted
            case pb.DropTableRequest():
                self.drops[operation_of(request.operation)] = request.name
            case pb.SplitTabletRequest():
                self.splits.add((request.name, request.split_hash))
        made = Call(request, position, self.shown)
        self.calls.append(made)
        return made

    def answered(self, call: Call, answer: Answer, model: EnsembleModel) -> None:
        """Take an answer, and check it.

        Raises:
            AssertionError: it contradicts the log.
        """
        call.returned, call.answer = len(model.seen) - 1, answer
        _check_hint(call, model)
        kind = type(call.request).__name__.removesuffix("Request")
        ending = type(answer).__name__ if isinstance(answer, NyalaError) else "done"
        self.done[f"{kind} {ending}"] += 1
        fits = next((p for p in self._positions(call) if _fits(call, model, p)), None)
        assert fits is not None, (
            f"{call.request} was answered with {answer!r}: it fits no state from commit {call.called} "
            f"({_names(model.seen[call.called])}) to {call.returned} ({_names(model.seen[call.returned])})"
        )
        if not isinstance(call.request, pb.HintCrashedRequest):  # its answer contains no table
            self.shown = max(self.shown, fits)

    def _positions(self, call: Call) -> Iterator[int]:
        reads = isinstance(call.request, pb.TabletMapRequest)
        first = min(call.least, call.called) if reads else call.called
        yield from range(first, call.returned + 1)

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged changes."""
        return sum(n for k, n in self.done.items() if k.endswith("done") and "Map" not in k)


def _check_hint(call: Call, model: EnsembleModel) -> None:
    """Check that a server that is called crashed is not up; none that has crashed is up again."""
    if isinstance(call.answer, pb.HintCrashedResponse) and call.answer.crashed:
        server = ServerId.of(call.request.id)
        assert server not in model.up(), f"{server} is called crashed, and is up"


def _names(tables: Tables) -> str:
    return ", ".join(f"{n}={t.id}" for n, t in sorted(tables.items()))


def _fits(call: Call, model: EnsembleModel, position: int) -> bool:
    """Return whether an answer fits the tables after a commit."""
    request, answer, tables = call.request, call.answer, model.seen[position]
    if isinstance(request, pb.TabletMapRequest):
        return {t.id: table_of(t) for t in answer.tables} == {t.id: t for t in tables.values()}
    if not hasattr(request, "name"):
        return True  # see `_check_hint`
    table = tables.get(request.name)
    match request, answer:
        case pb.DropTableRequest(), NotFound():
            return _is_gone(table, request)
        case _, NotFound():
            return table is None
        case pb.CreateTableRequest(), AlreadyPresent():
            return table is not None and table.operation != operation_of(request.operation)
        case pb.CreateTableRequest(), pb.CreateTableResponse():
            return _created(table, request, answer) or _was_dropped(call, model, position)
        case pb.DropTableRequest(), pb.DropTableResponse():
            before = model.seen[max(position - 1, 0)].get(request.name)
            return table is None and before is not None and before.id == answer.id
        case pb.SplitTabletRequest(), pb.SplitTabletResponse():
            if _was_dropped(call, model, position):
                return True
            return (
                table is not None
                and table_of(answer.table) == table
                and any(p.first == request.split_hash for p in table.pieces)
            )
    return False


def _is_gone(table: ModelTable | None, drop: Any) -> bool:
    """Return whether a name has no table, or another one than the client wants to drop."""
    return table is None or drop.id not in (0, table.id)


def _was_dropped(call: Call, model: EnsembleModel, position: int) -> bool:
    """Return whether the answer, without tablets, names a table that was there and was dropped since."""
    found, name = call.answer.table, call.request.name
    if found.tablets:
        return False
    seen = [model.seen[p].get(name) for p in range(call.called, position + 1)]
    was_there = any(t is not None and t.id == found.id for t in seen)
    return was_there and (seen[-1] is None or seen[-1].id != found.id)


def _created(table: ModelTable | None, request: Any, answer: Any) -> bool:
    return table == table_of(answer.table) and table.operation == operation_of(request.operation)
