"""Operations under way as messages and as a web page: those in flight and those in the catalog."""

from collections.abc import Iterable, Iterator

from nyala.common.errors import NotFound
from nyala.master.catalog.plan import Scope
from nyala.master.ddl.operation import InFlight, OperationStep
from nyala.master.services.operations import recorded
from nyala.master.services.operations.recorded import RecordedOperation
from nyala.master.services.operations.waits import MAX_WAITS, LeaderView, first
from nyala.web.pages import Listing
from nyala.wire.proto import nyala_pb2 as pb

RANKS = ("name", "table", "tablet")
COLUMNS = (
    "id",
    "operation",
    "subject",
    "step",
    "committed",
    "commit point",
    "locks",
    "ms",
    "waits for",
)


def fill(answer: pb.InspectMasterResponse, view: LeaderView, wanted: str = "") -> None:
    """Add the operations under way to an answer.

    Args:
        answer: to be filled.
        view: state of the leader.
        wanted: id of one operation, to return it with all its waits; empty: all, each with its first wait.

    Raises:
        NotFound: no operation under way has this id.
    """
    most = MAX_WAITS if wanted else 1
    holders = _holders(view)
    for number, flight in view.term.memory.in_flight.items():
        if wanted in ("", _id(view, number)):
            waits, more = first(_waits(view, flight, holders), most)
            answer.operations.append(_in_flight(view, number, flight, waits, more))
    for found in recorded.under_way(view):
        if wanted in ("", found.id):
            answer.long_operations.append(_recorded(found, most))
    if wanted and not (answer.operations or answer.long_operations):
        raise NotFound(
            f"no operation {wanted!r} is under way: it is complete or was refused, or its leader's term has "
            "ended; `nyala ops` lists those under way, also what such an operation recorded in the catalog"
        )


def page(view: LeaderView) -> Listing:
    """Return the page of the operations under way."""
    answer = pb.InspectMasterResponse()
    fill(answer, view)
    rows = [
        (o.id, o.what, o.subject, o.step, "yes" if o.committed else "no", "the batch", " ".join(o.locks),
         str(o.age_ms), text_of_waits(o.waits, o.more_waits))
        for o in answer.operations
    ]  # fmt: skip
    rows += [
        (o.id, o.what, o.subject, o.step, "yes", o.commit_point, "", "",
         text_of_waits(o.waits, o.more_waits))
        for o in answer.long_operations
    ]  # fmt: skip
    return Listing("operations", COLUMNS, rows)


def lock_text(key: tuple[int, str]) -> str:
    """Return the text of a lock: "table:ID"."""
    rank, name = key
    return f"{RANKS[rank]}:{name}"


def text_of_waits(waits: Iterable[pb.OperationWait], more: int) -> str:
    """Return the first of an operation's waits as a text, and how many there are besides."""
    text = next((f"{w.what}{' at ' + w.address if w.address else ''}" for w in waits), "")
    return f"{text} (and {more} more)" if more else text


def _id(view: LeaderView, number: int) -> str:
    return f"{view.term.memory.term}.{number}"


def _holders(view: LeaderView) -> dict[tuple[int, str], str]:
    """Return the operation that holds each lock, as a text."""
    return {
        key: f"held by {_id(view, number)} ({flight.what})"
        for number, flight in view.term.memory.in_flight.items()
        if flight.step is not OperationStep.LOCK
        for key in flight.scope.ordered()
    }


def _in_flight(
    view: LeaderView, number: int, flight: InFlight, waits: list[pb.OperationWait], more: int
) -> pb.OperationInFlight:
    """Return an operation in flight as a message.

    Args:
        view: state of the leader.
        number: of the operation.
        flight: the operation.
        waits: to return.
        more: number of waits that are not returned.
    """
    scope: Scope = flight.scope
    return pb.OperationInFlight(
        number=number,
        what=flight.what,
        subject=" ".join(scope.tables),
        step=flight.step.value,
        committed=flight.step.committed,
        locks=[lock_text(key) for key in scope.ordered()],
        age_ms=(view.now_us - flight.since_us) // 1000,
        id=_id(view, number),
        waits=waits,
        more_waits=more,
    )


def _waits(
    view: LeaderView, flight: InFlight, holders: dict[tuple[int, str], str]
) -> Iterator[pb.OperationWait]:
    since_ms = (view.now_us - flight.step_us) // 1000
    if flight.step is OperationStep.REPLICATE:
        what = "a majority of the masters writes the batch"
        yield pb.OperationWait(what=what, since_ms=since_ms)
    if flight.step is not OperationStep.LOCK:
        return
    keys = flight.scope.ordered()
    held = [f"lock {lock_text(key)}, {holders[key]}" for key in keys if key in holders]
    for what in held or ["locks that an earlier operation, which waits too, has taken"]:
        yield pb.OperationWait(what=what, since_ms=since_ms)


def _recorded(found: RecordedOperation, most: int) -> pb.LongOperation:
    waits, more = first(found.waits(), most)
    return pb.LongOperation(
        what=found.what,
        subject=found.subject,
        step=found.step,
        commit_point=found.commit_point,
        id=found.id,
        waits=waits,
        more_waits=more,
    )
