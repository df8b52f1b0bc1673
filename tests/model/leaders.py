"""Every order of events of two candidates of one log: the real `Election` and `Guard`, a model journal.

A state consists of the candidates, the steps in flight, requests in flight to a server, and time. Time
advances at any moment, whatever a process is about to do, so pauses and delays have no bounds. Steps whose
answer is not awaited any more may still take effect at any time; a request may arrive at any time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from nyala.common.errors import StaleEpoch
from nyala.recipes.election import (
    Election,
    Establish,
    HeldLeadership,
    Look,
    Lose,
    Phase,
    Renew,
    Standing,
)
from nyala.recipes.guard import Guard
from tests.model.search import Searched, search

TIMEOUT, BACK_OFF = 2, 3
NAMES = ("A", "B")
NOTHING = Standing(0, 0, b"")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of an exploration.

    Attributes:
        ids: highest id of the journal.
        processes: candidates.
        restarts: restarts of processes.
        resigns: resignations.
        requests: requests to the server.
        orphans: steps in flight whose answer is not awaited.
    """

    ids: int = 6
    processes: int = 2
    restarts: int = 0
    resigns: int = 0
    requests: int = 1
    orphans: int = 1


class Flight(NamedTuple):
    """A step in flight: its conditions, and whether its sender has stopped waiting for the answer."""

    by: int
    kind: str
    version: int
    last: int
    nonce: bytes
    orphan: bool = False


class Process(NamedTuple):
    """A candidate: its election, the call that it awaits, and the answer.

    Attributes:
        election: fields of the `Election`; times are relative to now.
        call: "look", "establish" or "own", or empty.
        sent: when it was sent.
        read: last id that a look has read.
        answer: what has arrived.
        starts: number of its incarnation.
    """

    election: tuple[Any, ...]
    call: str = ""
    sent: int = 0
    read: int = -1
    answer: tuple[object, ...] | None = None
    starts: int = 0


class World(NamedTuple):
    """A state."""

    processes: tuple[Process, ...]
    last: int = 0
    version: int = 0
    nonce: bytes = b""
    flights: frozenset[Flight] = frozenset()
    requests: frozenset[int] = frozenset()
    sent: int = 0
    guard: int = 0
    accepted: int = 0
    restarts: int = 0
    resigns: int = 0
    terms: int = 0


def _election(values: tuple[Any, ...]) -> Election:
    nonce, *others, leadership, lost = values
    made = Election(nonce, TIMEOUT, BACK_OFF, _latest, *others)
    made.leadership, made.lost = HeldLeadership(*leadership) if leadership else None, lost
    return made


def _latest(_: int, high: int) -> int:
    return high


def _key(election: Election) -> tuple[Any, ...]:
    """Return the fields of an election, as a part of a state; fields without influence are empty."""
    e, phase, leadership = election, election.phase, election.leadership
    timed = phase in (Phase.WATCHING, Phase.BACK_OFF, Phase.YIELDING)
    unseen = phase in (Phase.LOOKING, Phase.BACK_OFF, Phase.YIELDING, Phase.LEADING)
    return (
        e.nonce, phase, NOTHING if unseen else e.seen, e.until_us if timed else 0, e.tried_us,
        leadership
        and (leadership.version, leadership.last, leadership.sent_us, leadership.unsettled_us),
        e.lost,
    )  # fmt: skip


def fresh(process: int, starts: int) -> Process:
    """Return a process that has just started."""
    made = Election(b"%s%d" % (NAMES[process].encode(), starts), TIMEOUT, BACK_OFF, _latest)
    return Process(_key(made), starts=starts)


def start(processes: int) -> World:
    """Return the first state: there is no log."""
    return World(tuple(fresh(n, 0) for n in range(processes)))


def _older(at: int | None) -> int | None:
    return None if at is None else max(at - 1, -TIMEOUT)


class Leaders:
    """Steps of the whole system.

    Args:
        bounds: limits of the exploration.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield the states that may follow; raise where a rule is violated."""
        for number, process in enumerate(world.processes):
            yield from self._of_process(world, number, process)
        for flight in world.flights:
            yield from self._arrival(world, flight)
        for epoch in world.requests:
            yield self._request(world, epoch)
        yield "time passes", self._checked(self._tick(world))

    def _tick(self, world: World) -> World:
        processes = []
        for process in world.processes:
            election = _election(process.election)
            election.until_us = max(0, election.until_us - 1)
            election.tried_us = _older(election.tried_us)
            if (leadership := election.leadership) is not None:
                leadership.sent_us = max(leadership.sent_us - 1, -TIMEOUT)
                leadership.unsettled_us = _older(leadership.unsettled_us)
            sent = max(process.sent - 1, -TIMEOUT) if process.call else 0
            processes.append(process._replace(election=_key(election), sent=sent))
        return world._replace(processes=tuple(processes))

    def _checked(self, world: World) -> World:
        if all(p.election[1] is Phase.LEADING for p in world.processes):
            acting = [p for p in world.processes if _election(p.election).acts(0)]
            assert len(acting) < 2, "two leaders act"
        return world

    def _with(self, world: World, number: int, process: Process, **changes: object) -> World:
        processes = list(world.processes)
        processes[number] = process
        return self._checked(world._replace(processes=tuple(processes), **changes))  # type: ignore[arg-type]

    # ---- processes ---------------------------------------------------------------------------------

    def _of_process(
        self, world: World, number: int, process: Process
    ) -> Iterator[tuple[str, World]]:
        name = NAMES[number]
        election = _election(process.election)
        if not process.call:
            yield from self._next(world, number, process)
        elif process.answer is not None:
            yield f"{name} gets {process.answer}", self._answered(world, number, process)
        elif process.call == "look" and process.read < 0:
            read = process._replace(read=world.last)
            yield f"the log is read for {name}", self._with(world, number, read)
        elif process.call == "look":
            found = process.read, world.version, world.nonce
            read = process._replace(answer=found)
            yield f"the key is read for {name}", self._with(world, number, read)
        if process.call not in ("", "look") and process.sent < 0:
            yield f"{name} waits no more", self._unanswered(world, number, process)
        if election.acts(0) and world.sent < self.bounds.requests:
            assert election.leadership is not None
            yield (
                f"{name} sends a request",
                world._replace(
                    requests=world.requests | {election.leadership.epoch}, sent=world.sent + 1
                ),
            )
        if world.restarts < self.bounds.restarts:
            again = fresh(number, process.starts + 1)
            yield f"{name} restarts", self._with(world, number, again, restarts=world.restarts + 1)
        if not world.version and election.phase in (Phase.WATCHING, Phase.BACK_OFF):
            election.key_deleted()
            noticed = process._replace(election=_key(election))
            yield f"{name} notices the resignation", self._with(world, number, noticed)
            election = _election(process.election)
        if election.phase is Phase.WATCHING and world.last != election.seen.last:
            election.log_changed(0)
            noticed = process._replace(election=_key(election))
            yield f"{name} notices a change", self._with(world, number, noticed)
            election = _election(process.election)
        idle = election.phase is Phase.LEADING and not process.call
        if idle and world.resigns < self.bounds.resigns and election.leadership is not None:
            flight = Flight(
                number, "resign", election.leadership.version, election.leadership.last, b"", True
            )
            election.dropped(0)
            yield (
                f"{name} resigns",
                self._with(
                    world, number, process._replace(election=_key(election)),
                    flights=world.flights | {flight}, resigns=world.resigns + 1,
                ),
            )  # fmt: skip

    def _next(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        name, election = NAMES[number], _election(process.election)
        action = election.next(0)
        after = process._replace(election=_key(election), sent=0)
        match action:
            case Look():
                yield f"{name} looks", self._with(world, number, after._replace(call="look"))
            case Establish(seen):
                flight = Flight(number, "establish", seen.version, seen.last, election.nonce)
                yield f"{name} sends {flight.kind}", self._send(world, number, after, flight)
            case Renew():
                leadership = election.leadership
                assert leadership is not None
                flight = Flight(number, "own", leadership.version, leadership.last, election.nonce)
                yield f"{name} sends {flight.kind}", self._send(world, number, after, flight)
            case Lose():
                election.dropped(0)
                lost = after._replace(election=_key(election))
                yield f"{name} loses", self._with(world, number, lost)

    def _send(self, world: World, number: int, process: Process, flight: Flight) -> World:
        call = process._replace(call=flight.kind)
        return self._with(world, number, call, flights=world.flights | {flight})

    def _answered(self, world: World, number: int, process: Process) -> World:
        election, answer = _election(process.election), process.answer
        match process.call, answer:
            case "look", (int(last), int(version), bytes(nonce)):
                election.looked(0, Standing(last, version, nonce))
            case "establish", ("done", int(version)):
                election.established(0, process.sent, version)
            case "establish", _:
                election.refused(0)
            case "own", ("done", int(last)):
                election.taken(process.sent, last)
            case "own", (bool(key), int(actual)):
                election.failed(key=key, actual=actual)
        return self._with(world, number, Process(_key(election), starts=process.starts))

    def _unanswered(self, world: World, number: int, process: Process) -> World:
        election = _election(process.election)
        if process.call == "establish":
            election.unanswered(process.sent)
        elif process.call == "own":
            election.unsettled(process.sent)
        after = Process(_key(election), starts=process.starts)
        others = {f for f in world.flights if f.by != number}
        mine = sorted(
            {f._replace(orphan=True) for f in world.flights - others}, key=lambda f: f.last
        )
        kept = mine[max(0, len(mine) - self.bounds.orphans) :]
        return self._with(world, number, after, flights=frozenset(others | set(kept)))

    # ---- journal and server ------------------------------------------------------------------------

    def _arrival(self, world: World, flight: Flight) -> Iterator[tuple[str, World]]:
        """A step takes effect, or is refused."""
        done = world._replace(flights=world.flights - {flight})
        words = f"{flight.kind} of {NAMES[flight.by]} arrives"
        if self.key_fails(world, flight):
            yield words, self._answer(done, flight, (True, world.version))
        elif self.last_fails(world, flight):
            yield words, self._answer(done, flight, (False, world.last))
        elif flight.kind == "establish" and world.last + 2 <= self.bounds.ids:
            new = world.last + 1
            done = done._replace(
                last=new, version=new + 1, nonce=flight.nonce, terms=world.terms + 1
            )
            yield words, self._answer(done, flight, ("done", new + 1))
        elif flight.kind != "establish" and self.next_id(world) <= self.bounds.ids:
            assert flight.version == world.version, "a step of an older term took effect"
            new = self.next_id(world)
            done = done._replace(last=new)
            if flight.kind == "resign":
                done = done._replace(version=0, nonce=b"")
            yield words, self._answer(done, flight, ("done", new))

    def key_fails(self, world: World, flight: Flight) -> bool:
        """Return whether the condition on the key does not hold."""
        return flight.version != world.version

    def last_fails(self, world: World, flight: Flight) -> bool:
        """Return whether the condition on the log does not hold."""
        return flight.last != world.last

    def next_id(self, world: World) -> int:
        """Return the id of the next change."""
        return max(world.last, world.version) + 1

    def _answer(self, world: World, flight: Flight, answer: tuple[object, ...]) -> World:
        process = world.processes[flight.by]
        waits = process.call == flight.kind and not flight.orphan
        if not waits or _election(process.election).nonce != flight.nonce:
            return world
        return self._with(world, flight.by, process._replace(answer=answer))

    def _request(self, world: World, epoch: int) -> tuple[str, World]:
        """A request of a leader arrives at the server."""
        guard = Guard(world.guard)
        done = world._replace(requests=world.requests - {epoch})
        try:
            guard.check(epoch)
        except StaleEpoch:
            return f"request of {epoch} is refused", done
        assert epoch >= world.accepted, "a request of a replaced leader was accepted"
        accepted = done._replace(guard=guard.epoch, accepted=epoch)
        return f"request of {epoch} is accepted", accepted


FULL: dict[str, tuple[Bounds, int]] = {
    "two terms": (Bounds(ids=4), 3_000_000),
    "renewals": (Bounds(ids=6), 1_000_000),
    "resignation": (Bounds(ids=5, resigns=1), 1_000_000),
    "restart": (Bounds(ids=5, restarts=1), 1_000_000),
    "two requests": (Bounds(ids=4, requests=2), 1_000_000),
}
REDUCED = 15_000
"""States of each exploration in `./run test`."""


def explore(bounds: Bounds, at_most: int, system: type[Leaders] = Leaders) -> Searched:
    """Visit the states of a system.

    Args:
        bounds: limits.
        at_most: number of states after which it stops.
        system: a variant with a mistake, in tests of the model.
    """
    return search(start(bounds.processes), system(bounds).steps, _goals, at_most)


def _goals(world: World) -> Iterator[str]:
    if world.terms > 1:
        yield "two terms"
    if world.terms > 1 and world.accepted == world.version - 1:
        yield "a request of a second leader"
