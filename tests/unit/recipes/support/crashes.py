"""Crashes of a leader at each point of its operations, and of each recovery, generated from the operations.

A run executes requests until the point at which it crashes; other processes take over, of which the first may
crash at a point too; the last one completes everything. A request whose intent was appended has taken effect,
another one has not.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nyala.recipes.candidate import LeaderCandidate
from nyala.recipes.operations.log import OperationLog
from nyala.recipes.operations.operation import Operation
from tests.unit.recipes.support.candidates import LOG, Candidates

Request = tuple[str, Any]


class Crash(BaseException):
    """The process ends here."""


class Service(Protocol):
    """State of one process, and its operations on the world outside, which outlives it."""

    @property
    def kinds(self) -> Sequence[Operation]:
        """Its operations."""
        ...

    def retract(self, name: str) -> None:
        """Remove an object."""
        ...

    def dump(self) -> object:
        """Return the whole state."""
        ...


@dataclass
class Points:
    """Crash points of one process, counted; it crashes at the one with this number."""

    at: int = -1
    names: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.at + 1:
            raise Crash


class Process:
    """A process with a service.

    Args:
        c: the journal's servers.
        service: made for it.
        points: its crash points.
        twice: each action is called twice.
    """

    def __init__(
        self, c: Candidates, service: Service, points: Points, *, twice: bool = False
    ) -> None:
        self._c, self.service, self.points, self._twice = c, service, points, twice
        self.candidate: LeaderCandidate
        self.log: OperationLog

    async def lead(self, name: str) -> None:
        """Be established, and complete what earlier leaders have left."""
        self.candidate = await self._c.candidate(name)
        self.log = OperationLog(
            await self._c.journal(f"{name} log"), LOG, self.service.kinds, self.service.retract,
            self._call, self.points,
        )  # fmt: skip
        await self.candidate.elected()
        await self.log.take_over(self.candidate.steps)

    async def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        if self._twice:
            await _value(fn(*args))
        return await _value(fn(*args))

    async def execute(self, request: Request) -> bytes:
        """Execute a request."""
        return await self.log.execute(self.candidate.steps, *request)


async def _value(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


@dataclass
class Outcome:
    """Result of a run.

    Attributes:
        done: number of requests that have taken effect.
        process: the last one.
        crashed: number of processes that crashed.
    """

    done: int
    process: Process
    crashed: int


async def run(
    c: Candidates,
    make: Callable[[], Service],
    requests: Sequence[Request],
    *crashes: int,
    twice: bool = False,
) -> Outcome:
    """Execute requests by one process after the other.

    Args:
        c: the journal's servers.
        make: makes the service of a process.
        requests: in order.
        crashes: number of the point at which each process but the last one crashes.
        twice: each method and action is called twice.
    """
    done = crashed = 0
    for number, at in enumerate((*crashes, -1)):
        process = Process(c, make(), Points(at), twice=twice)
        name, begun = f"p{number}", 1 << 30
        try:
            await process.lead(name)
            while done < len(requests):
                begun = len(process.points.names)
                await process.execute(requests[done])
                done += 1
        except Crash:
            kind = requests[done][0] if done < len(requests) else ""
            done += any(
                f"after {kind} {what}" in process.points.names[begun:]
                for what in ("intent", "done")
            )
            crashed += 1
            await c.crash(name)
        else:
            return Outcome(done, process, crashed)
    raise AssertionError("the last process does not crash")
