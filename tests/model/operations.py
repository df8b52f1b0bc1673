"""Every order of events of two coordinators: the real operations and guard, a model journal, one server.

Processes crash, are replaced and wake up at any thing that they await. A step in flight, or a request in
flight, may take effect at any later time while its sender is not answered, or is gone, or never. A process
may be established at any moment, also while another one leads: elections are the subject of `leaders.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from nyala.client.journal.items import Entry, Event, Invalidated
from nyala.common.errors import (
    ConditionFailed,
    NotLeading,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from nyala.recipes.guard import Guard
from tests.model.operations_process import (
    FOLLOWER,
    INTERRUPT,
    MAIN,
    Call,
    Change,
    Code,
    Failure,
    Processes,
    Request,
)
from tests.model.search import Searched, search

NAMES = ("A", "B")
CODE = Code()
Asked = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of an exploration.

    Attributes:
        requests: of the client, in order.
        terms: leaders that are established.
        crashes: crashes of processes.
        unanswered: steps and requests of live processes that get no answer.
        pages: pages of changes that followers get; leaders follow too, as they do in a process.
        interrupts: of requests whose operation is under way.
        late: a request that its living sender has given up may arrive later.
    """

    requests: tuple[Asked, ...]
    terms: int = 2
    crashes: int = 1
    unanswered: int = 0
    pages: int = 0
    interrupts: int = 0
    late: bool = False


class Flight(NamedTuple):
    """A step whose sender does not wait for the answer."""

    version: int
    last: int
    change: Change


class Process(NamedTuple):
    """A process: the number of what it has been answered; and whether a call was answered already."""

    number: int = 0
    epoch: int = 0


class World(NamedTuple):
    """A state.

    Attributes:
        processes: by number.
        changes: of the log: id, data, and ids that became invalid.
        version: of the leader's key.
        flights: steps of nobody.
        requests: requests of nobody.
        guard: epoch of the server's guard.
        accepted: highest epoch of a request that the server has carried out.
        owned: names at the server.
        acted: payloads of the requests that the server has carried out.
        asked: number of requests of the client so far.
        terms: leaders so far.
        crashes: crashes so far.
        unanswered: answers that were lost so far.
        pages: pages of changes so far.
        interrupts: interrupts so far.
    """

    processes: tuple[Process, ...] = (Process(), Process())
    changes: tuple[tuple[int, bytes | None, tuple[int, ...]], ...] = ()
    version: int = 0
    flights: frozenset[Flight] = frozenset()
    requests: frozenset[Request] = frozenset()
    guard: int = 0
    accepted: int = 0
    owned: frozenset[bytes] = frozenset()
    acted: frozenset[bytes] = frozenset()
    asked: int = 0
    terms: int = 0
    crashes: int = 0
    unanswered: int = 0
    pages: int = 0
    interrupts: int = 0

    @property
    def last(self) -> int:
        """Id of the last change of the log."""
        return self.changes[-1][0] if self.changes else 0

    def valid(self) -> dict[int, bytes]:
        """Return the valid entries."""
        found: dict[int, bytes] = {}
        for number, data, stale in self.changes:
            for one in stale:
                found.pop(one, None)
            if data is not None:
                found[number] = data
        return found


Step = tuple[str, World]


class Operations:
    """Steps of the whole system, and its invariants.

    Args:
        bounds: limits of the exploration.
        code: of the processes.
    """

    def __init__(self, bounds: Bounds, code: Code) -> None:
        self.bounds = bounds
        self.processes = Processes(code, follows=bounds.pages > 0)
        self._right = Processes(Code(), follows=False)
        self._replayed: dict[tuple[Any, ...], Any] = {}

    def steps(self, world: World) -> Iterator[Step]:
        """Yield the states that may follow; raise where an invariant is violated."""
        for label, after in self._next(world):
            self.check(after)
            yield label, after

    def _next(self, world: World) -> Iterator[Step]:
        for number in range(len(world.processes)):
            for label, after in self._of_process(world, number):
                yield f"{NAMES[number]} {label}", after
        for flight in world.flights:
            gone = world._replace(flights=world.flights - {flight})
            yield "a late step is lost", gone
            _, after = self._arrive(gone, flight)
            yield "a late step arrives", after
        for request in world.requests:
            gone = world._replace(requests=world.requests - {request})
            yield "a late request is lost", gone
            _, after = self._carried_out(gone, request)
            yield f"a late request arrives: {request}", after

    # ---- processes ---------------------------------------------------------------------------------

    def _of_process(self, world: World, place: int) -> Iterator[Step]:
        process = world.processes[place]
        seen = self.processes.seen[process.number]
        call = seen.calls[seen.waits]
        if seen.ended:
            yield "starts anew", self._with(world, place, Process())
            return
        tail = seen.calls[FOLLOWER]
        if tail is not None and world.pages < self.bounds.pages:
            yield from self._followed(world, place, tail)
        if call is not None:
            yield from getattr(self, f"_{call.kind}")(world, place, call)
        if world.interrupts < self.bounds.interrupts and process.epoch and not seen.leads:
            yield "is interrupted", self._interrupted(world, place, seen.calls[MAIN])
        asks = seen.calls[MAIN]
        if seen.waits != MAIN and asks is not None:  # another request, after an interrupt
            yield from self._command(world, place, asks)
        if process.number and world.crashes < self.bounds.crashes:
            down = self._abandon(world, call)._replace(crashes=world.crashes + 1)
            yield "crashes", self._with(down, place, Process())

    def _with(self, world: World, place: int, process: Process) -> World:
        processes = list(world.processes)
        processes[place] = process
        return world._replace(processes=tuple(processes))

    def _interrupted(self, world: World, place: int, call: Call | None) -> World:
        """The caller of an operation is cancelled; what it awaited may still take effect."""
        world = self._abandon(world, call)._replace(interrupts=world.interrupts + 1)
        return self._answer(world, place, INTERRUPT, MAIN)

    def _answer(self, world: World, place: int, answer: Any, task: int | None = None) -> World:
        process = world.processes[place]
        if task is None:
            task = self.processes.seen[process.number].waits
        number = self.processes.after(process.number, task, answer)
        return self._with(world, place, process._replace(number=number))

    def _abandon(self, world: World, call: Call | None) -> World:
        """A process does not wait any more for the call that it has made; it may take effect later."""
        if call is not None and call.kind == "step":
            return world._replace(flights=world.flights | {Flight(*call.content)})
        if call is not None and call.kind == "act":
            return world._replace(requests=world.requests | {Request(*call.content)})
        return world

    def _command(self, world: World, place: int, _: Call) -> Iterator[Step]:
        process = world.processes[place]
        if not process.epoch:
            if world.terms < self.bounds.terms:
                yield "is established", self._established(world, place)
        elif world.asked < len(self.bounds.requests):
            asked = self.bounds.requests[world.asked]
            after = self._answer(world._replace(asked=world.asked + 1), place, asked, MAIN)
            yield f"is asked to {asked}", after

    def _established(self, world: World, place: int) -> World:
        epoch = max(world.last, world.version) + 1
        old = tuple(i for i, data in world.valid().items() if data == b"alive")
        changes = (*world.changes, (epoch, b"alive", old))
        led = world._replace(changes=changes, version=epoch + 1, terms=world.terms + 1)
        led = self._with(led, place, led.processes[place]._replace(epoch=epoch))
        return self._answer(led, place, epoch + 1)

    def _last(self, world: World, place: int, _: Call) -> Iterator[Step]:
        yield "reads the last id", self._answer(world, place, world.last)

    def _entries(self, world: World, place: int, _: Call) -> Iterator[Step]:
        found = tuple(Entry(i, data) for i, data in self.read(world).items())
        yield "reads the entries", self._answer(world, place, found)

    def read(self, world: World) -> dict[int, bytes]:
        """Return what a process reads of the log."""
        return world.valid()

    def _step(self, world: World, place: int, call: Call) -> Iterator[Step]:
        answer, after = self._arrive(world, Flight(*call.content))
        yield f"appends {call.content[2]}", self._answer(after, place, answer)
        if world.unanswered < self.bounds.unanswered:
            lost, unknown = after.unanswered + 1, Failure(OutcomeUnknown)
            for label, one in (("appends", after), ("gives up", self._abandon(world, call))):
                one = self._answer(one._replace(unanswered=lost), place, unknown)
                yield f"{label}, not knowing whether it did: {call.content[2]}", one

    def _act(self, world: World, place: int, call: Call) -> Iterator[Step]:
        request = Request(*call.content)
        answer, after = self._carried_out(world, request)
        yield f"acts: {request}", self._answer(after, place, answer)
        if world.unanswered < self.bounds.unanswered:
            lost, failed = world.unanswered + 1, Failure(Unavailable)
            given_up = self._abandon(world, call) if self.bounds.late else world
            for label, one in (("acts", after), ("gives up", given_up)):
                one = self._answer(one._replace(unanswered=lost), place, failed)
                yield f"{label}, without an answer: {request}", one

    def _followed(self, world: World, place: int, call: Call) -> Iterator[Step]:
        events: list[Event] = []
        valid = world.valid()
        for number, data, stale in world.changes:
            if number > call.content[0]:
                if data is not None and number in valid:
                    events.append(Entry(number, data))
                if stale:
                    events.append(Invalidated(stale, number))
        for length in range(1, len(events) + 1):
            page = tuple(events[:length])
            got = world._replace(pages=world.pages + 1)
            yield f"follows {page}", self._answer(got, place, page, FOLLOWER)

    # ---- journal and server ------------------------------------------------------------------------

    def _arrive(self, world: World, flight: Flight) -> tuple[Any, World]:
        """A step takes effect, or is refused; return the answer."""
        version, last, (data, stale) = flight
        for number, wanted, actual in ((0, version, world.version), (1, last, world.last)):
            if wanted != actual and self.conditional():
                details = (("condition", str(number)), ("actual", str(actual)))
                return Failure(ConditionFailed, details), world
        assert version == world.version, "a step of an older epoch took effect"
        made = max(world.last, world.version) + 1
        self._check_step(world, data, stale)
        return made, world._replace(changes=(*world.changes, (made, data, stale)))

    def conditional(self) -> bool:
        """Return whether steps have conditions."""
        return True

    def _check_step(self, world: World, data: bytes | None, stale: tuple[int, ...]) -> None:
        valid = world.valid()
        intents = [one for i, one in valid.items() if one.startswith(b"intent ")]
        if data is not None and data.startswith(b"intent "):
            assert not intents, "an intent beside that of another operation"
            payload = data.split(b" ", 2)[2]
            assert payload not in world.acted, "an action before its intent"
        elif stale:  # the end of an operation, with an entry or without
            ended = [valid[i] for i in stale if valid.get(i, b"").startswith(b"intent ")]
            assert len(ended) == 1, "an end of no operation, or a second one"
            assert ended[0].split(b" ", 2)[2] in world.acted, "an end before the action"

    def _carried_out(self, world: World, request: Request) -> tuple[Any, World]:
        """A request arrives at the server; return the answer."""
        guard = Guard(world.guard)
        try:
            guard.check(request.epoch)
        except StaleEpoch:
            return Failure(NotLeading), world
        assert request.epoch >= world.accepted, "an action of an older epoch after a newer one"
        intent = b"intent %s %s" % (request.kind.encode(), request.payload)
        assert any(data == intent for _, data, _ in world.changes), "an action before its intent"
        return None, world._replace(
            guard=guard.epoch, accepted=request.epoch, owned=self.owned(world.owned, request),
            acted=world.acted | {request.payload},
        )  # fmt: skip

    def owned(self, before: frozenset[bytes], request: Request) -> frozenset[bytes]:
        """Return the names that the server owns after a request."""
        name = {request.payload.split()[0]}
        return before | name if request.kind == "put" else before - name

    # ---- invariants --------------------------------------------------------------------------------

    def check(self, world: World) -> None:
        """Check what holds whenever the leader waits for a request."""
        for process in world.processes:
            seen = self.processes.seen[process.number]
            if not process.epoch or process.epoch != world.version - 1:
                continue
            if not seen.leads:
                continue
            assert seen.names == self._replay(world), "the leader has another state than a replay"
            if not (world.flights or world.requests or seen.failed):
                self._check_quiet(world, dict(seen.names))

    def _check_quiet(self, world: World, names: dict[bytes, bytes]) -> None:
        valid = sorted(d for d in world.valid().values() if d != b"alive")
        described = sorted(b"done put %s %s" % one for one in names.items())
        assert valid == described, "an entry is left, or one is missing"
        assert world.owned == names.keys(), "the server differs from the state"

    def _replay(self, world: World) -> Any:
        """Return the state of a process that replays the valid entries and completes what it finds."""
        valid = tuple(world.valid().items())
        found = self._replayed.get(valid)
        if found is None:
            entries = tuple(Entry(i, data) for i, data in valid)
            version, at = 1 << 40, 0
            number = self._right.after(0, MAIN, version)
            while (
                call := self._right.seen[number].calls[self._right.seen[number].waits]
            ) is not None:
                if call.kind == "command":
                    break
                at += 1
                answers = {"last": 1, "entries": entries, "step": version + at, "act": None}
                waits = self._right.seen[number].waits
                number = self._right.after(number, waits, answers[call.kind])
            found = self._replayed[valid] = self._right.seen[number].names
        return found


PUT, REPLACE, REMOVE = ("put", b"x 1"), ("put", b"x 2"), ("remove", b"x 2")
BOUNDS = {
    "put and remove, a crash": Bounds((PUT, REMOVE)),
    "put twice, a crash": Bounds((PUT, REPLACE)),
    "two recoveries crash": Bounds((PUT,), terms=3, crashes=2),
    "a lost answer and a crash": Bounds((PUT,), unanswered=1),
    "a follower": Bounds((PUT,), crashes=0, pages=1),
    "an interrupt": Bounds((PUT, REPLACE), crashes=0, interrupts=1),
}
"""Explorations of `./run test`, each complete."""
FULL = {
    "put and remove, a lost answer and a crash": Bounds((PUT, REMOVE), unanswered=1),
    "put and remove, two recoveries crash": Bounds((PUT, REMOVE), terms=3, crashes=2),
    "a follower of two operations": Bounds((PUT, REMOVE), crashes=0, pages=1),
    "a follower and a crash": Bounds((PUT,), crashes=1, pages=2),
}
"""Further explorations of `./run py -m tests.model.operations`; at most 500,000 states each."""


def explore(
    bounds: Bounds,
    code: Code = CODE,
    system: type[Operations] = Operations,
    at_most: int = 1 << 40,
) -> Searched:
    """Visit all states of a system.

    Args:
        bounds: limits.
        code: of the processes; a variant with a mistake, in tests of the model.
        system: the same, of journal and server.
        at_most: number of states after which it stops.
    """
    made = system(bounds, code)
    return search(World(), made.steps, _Goals(made), at_most)


class _Goals:
    """Events that some state must reach; a search that lacks one would hold without a reason."""

    def __init__(self, system: Operations) -> None:
        self._system = system

    def __call__(self, world: World) -> Iterator[str]:
        ends = sum(bool(stale) and data != b"alive" for _, data, stale in world.changes)
        if ends == len(self._system.bounds.requests):
            yield "all operations completed"
        alive = [i for i, data, _ in world.changes if data == b"alive"]
        for number, data, _ in world.changes:
            if data is not None and data.startswith(b"intent "):
                later = [(i, s) for i, _, s in world.changes if number in s]
                terms = sum(number < one < later[0][0] for one in alive) if later else 0
                if terms:
                    yield f"an operation completed {terms} terms later"
        if world.accepted and world.accepted == (alive or [0])[-1] and len(alive) > 1:
            yield "a later leader acted"


def main() -> None:
    """Run all explorations, one line each."""
    for name, bounds in (BOUNDS | FULL).items():
        found = explore(bounds, at_most=500_000)
        size = "complete" if found.complete else "stopped"
        print(f"{name}: {found.states:,} states, {size}", flush=True)


if __name__ == "__main__":
    main()
