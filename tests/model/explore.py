"""Every state within bounds, breadth first: deliveries, timeouts, syncs and crashes in every order.

The network is the set of all messages ever sent. Any of them may arrive at any time, any number of times,
or never: this covers loss, duplication and reordering without actions of their own.
Steps that only add messages (a heartbeat, a refusal) are taken at once, everywhere: a network that may lose
or delay them allows all continuations without them, so no state is omitted. A step of one member depends on
that member and its input alone, so each such step of the real core is executed once and cached; a state is
a few numbers: members, history, crashes, messages.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from nyala.common.errors import NyalaError
from tests.model.bounds import Bounds, begin
from tests.model.machine import WIDTH, Machine
from tests.model.rules import Past, check, remember
from tests.scenarios.raft_text import describe


class Violation(AssertionError):
    """A violated rule; the text is the shortest sequence of steps to it."""


@dataclass(slots=True)
class Report:
    """Findings of an exploration."""

    bounds: Bounds
    states: int = 0
    transitions: int = 0
    depth: int = 0
    widest: int = 0
    members: int = 0
    messages: int = 0
    complete: bool = False
    seconds: float = 0.0

    def text(self) -> str:
        """Return one line."""
        size = "complete" if self.complete else "cut off"
        return (
            f"{self.bounds.name}: {self.states:,} states, {size}, depth {self.depth}, "
            f"{self.transitions:,} transitions, {self.members:,} member states, "
            f"{self.messages:,} messages, {self.seconds:.0f} s"
        )


@dataclass(slots=True)
class Explorer:
    """One exploration.

    Args:
        bounds: limits of the exploration.
        at_most: number of states after which it stops, incomplete.
    """

    bounds: Bounds
    at_most: int = 1 << 62
    machine: Machine = field(init=False)
    parents: dict[int, int] = field(default_factory=dict)
    pasts: list[Past] = field(default_factory=list)
    _past_numbers: dict[Past, int] = field(default_factory=dict)
    _remembered: dict[tuple[int, int], int] = field(default_factory=dict)
    _checked: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.machine = Machine(self.bounds)

    # A state: messages | crashes (4) | past (20) | members (20 each), from the highest bits to the lowest.

    def _pack(self, members: list[int], past: int, crashes: int, mask: int) -> int:
        packed = (mask << 4 | crashes) << WIDTH | past
        for number in reversed(members):
            packed = packed << WIDTH | number
        return packed

    def _unpack(self, packed: int) -> tuple[list[int], int, int, int]:
        low = (1 << WIDTH) - 1
        members = []
        for _ in self.bounds.uuids:
            members.append(packed & low)
            packed >>= WIDTH
        past, packed = packed & low, packed >> WIDTH
        return members, past, packed & 15, packed >> 4

    def _past(self, past: Past) -> int:
        number = self._past_numbers.setdefault(past, len(self.pasts))
        if number == len(self.pasts):
            self.pasts.append(past)
        return number

    def _judge(self, past: int, members: list[int], changed: int) -> int:
        """Return history with the changed member in it; check all members together."""
        faces = self.machine.faces
        key = past, faces[members[changed]]
        after = self._remembered.get(key)
        if after is None:
            after = self._past(remember(self.pasts[past], self.machine.face_of[key[1]]))
            self._remembered[key] = after
        together = (after, *(faces[m] for m in members))
        if together not in self._checked:
            seen = [self.machine.face_of[f] for f in together[1:]]
            check(self.pasts[after], seen, fixed=not self.bounds.changes)
            self._checked.add(together)
        return after

    def _saturate(self, members: list[int], mask: int) -> int:
        """Add all messages of steps that only send; remove messages without further effect."""
        machine, before = self.machine, -1
        for number in members:
            mask |= machine.moves(number)[0]
        while mask != before:
            before = mask
            for number, inbox in zip(members, list(machine.inbox.values()), strict=True):
                mask |= machine.box(number, mask & inbox)[0]
            for number in members:
                for sender in members:
                    if number != sender:
                        mask &= ~machine.dead(number, sender, mask)
        return mask

    def _next(self, packed: int) -> Iterator[tuple[str, int]]:
        """Yield (step, next state); raise where a rule is violated."""
        members, past, crashes, mask = self._unpack(packed)
        machine = self.machine
        for place, (uuid, number) in enumerate(zip(self.bounds.uuids, members, strict=True)):
            for bit, after, sent in machine.box(number, mask & machine.inbox[uuid])[1]:
                yield self._after(members, place, after, past, crashes, mask | sent, bit)
            for move in machine.moves(number)[1]:
                used = crashes + move.crashes
                if used <= self.bounds.crashes:
                    new = mask | move.sent
                    yield self._after(members, place, move.after, past, used, new, move.words)

    def _after(
        self,
        members: list[int],
        place: int,
        after: int,
        past: int,
        crashes: int,
        mask: int,
        what: int | str,
    ) -> tuple[str, int]:
        new = members.copy()
        new[place] = after
        try:
            past = self._judge(past, new, place)
            mask = self._saturate(new, mask)
        except (AssertionError, NyalaError) as err:
            raise _Broken(self._words(place, what), str(err)) from err
        return what, self._pack(new, past, crashes, mask)  # type: ignore[return-value]

    def _words(self, place: int, what: int | str) -> str:
        if isinstance(what, int):
            return describe(self.machine.messages[what])
        return f"{self.bounds.uuids[place]} {what}"

    def run(self) -> Report:
        """Explore.

        Raises:
            Violation: a rule is broken.
        """
        report = Report(self.bounds)
        began = time.perf_counter()
        parents, start = self.parents, self._start()
        parents[start] = -1
        frontier = [start]
        while frontier and len(parents) < self.at_most:
            following: list[int] = []
            for state in frontier:
                try:
                    for _, after in self._next(state):
                        report.transitions += 1
                        if after not in parents:
                            parents[after] = state
                            following.append(after)
                except _Broken as broken:
                    raise Violation(self._report(state, broken)) from broken
                if len(parents) >= self.at_most:
                    break
            report.depth += bool(following)
            report.widest = max(report.widest, len(following))
            frontier = following
        report.complete = not frontier
        report.states, report.members = len(parents), len(self.machine.members)
        report.messages = len(self.machine.messages)
        report.seconds = time.perf_counter() - began
        return report

    def _start(self) -> int:
        try:
            members = [self.machine.number(m) for m in begin(self.bounds)]
            past = self._past(Past())
            for place in range(len(members)):
                past = self._judge(past, members, place)
            return self._pack(members, past, 0, self._saturate(members, 0))
        except (AssertionError, NyalaError) as err:
            raise Violation(f"{self.bounds.name}, at its beginning: {err}") from err

    def _report(self, state: int, broken: "_Broken") -> str:
        """Return the steps to a state, and the violated rule."""
        chain = [state]
        while self.parents[chain[-1]] >= 0:
            chain.append(self.parents[chain[-1]])
        lines: list[str] = []
        for before, after in zip(chain[:0:-1], chain[-2::-1], strict=True):
            what = next(w for w, s in self._next(before) if s == after)
            place = self._changed(before, after)
            lines.append(f"  {len(lines) + 1:>2}. {self._words(place, what)}")
        lines.append(f"  {len(lines) + 1:>2}. {broken.words}")
        head = f"{self.bounds.name}, after {len(self.parents):,} states: {broken.rule}"
        return "\n".join([head, *lines])

    def _changed(self, before: int, after: int) -> int:
        pairs = zip(self._unpack(before)[0], self._unpack(after)[0], strict=True)
        return next(i for i, (a, b) in enumerate(pairs) if a != b)


class _Broken(Exception):
    def __init__(self, words: str, rule: str) -> None:
        super().__init__(words, rule)
        self.words, self.rule = words, rule
