"""A service for tests of operations: named values, which an action sets in the world outside too."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from nyala.common.errors import NotFound
from nyala.recipes.operations.log import OperationLog
from nyala.recipes.operations.operation import Operation
from tests.unit.recipes.support.candidates import LOG, Candidates

Before = Callable[[str], Awaitable[None]]
"""Called with a payload before it is set in the world."""


class World:
    """Values outside, which outlive the processes.

    Attributes:
        values: as the actions have set them.
        before: called by each action first; it may fail, or take long.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.before: Before | None = None

    async def set(self, payload: str) -> None:
        """Set or delete a value."""
        if self.before is not None:
            await self.before(payload)
        name, _, value = payload.partition(" ")
        if value:
            self.values[name] = value
        else:
            self.values.pop(name, None)


class SetValue(Operation):
    """Sets a value; a request is (name, value)."""

    kind = "set"

    def __init__(self, values: dict[str, str], world: World) -> None:
        self.values, self._world = values, world

    def compute(self, request: Any) -> bytes:
        """See `Operation.compute`."""
        return f"{request[0]} {request[1]}".encode()

    def apply(self, payload: bytes) -> None:
        """See `Operation.apply`."""
        name, value = payload.decode().split()
        self.values[name] = value

    def objects(self, payload: bytes) -> Iterable[str]:
        """See `Operation.objects`."""
        return [payload.decode().split()[0]]

    def actions(self, payload: bytes, epoch: int) -> Sequence[Callable[[], Any]]:
        """See `Operation.actions`."""

        async def act() -> None:
            await self._world.set(payload.decode())

        return [act]


class DeleteValue(SetValue):
    """Deletes a value; a request is its name."""

    kind = "delete"

    def compute(self, request: Any) -> bytes:
        """See `Operation.compute`."""
        if request not in self.values:
            raise NotFound(f"no value {request}")
        return str(request).encode()

    def apply(self, payload: bytes) -> None:
        """See `Operation.apply`."""
        self.values.pop(payload.decode(), None)

    def result(self, payload: bytes) -> bytes | None:
        """See `Operation.result`."""
        return None


class Values:
    """A process with such values.

    Attributes:
        values: its state.
        names: of the points that it has passed.
        log: its operations.
    """

    def __init__(self, c: Candidates, world: World, *more: Operation) -> None:
        self._c, self._world = c, world
        self.values: dict[str, str] = {}
        self.names: list[str] = []
        self._kinds = [SetValue(self.values, world), DeleteValue(self.values, world), *more]
        self.log: OperationLog
        self._following: asyncio.Task[None]

    async def open(self, name: str) -> None:
        """Open the log, and follow it."""
        self.log = OperationLog(
            await self._c.journal(f"{name} log"), LOG, self._kinds,
            lambda one: self.values.pop(one, None), _call, self.names.append,
        )  # fmt: skip
        self._following = asyncio.get_running_loop().create_task(self.log.follow())

    async def lead(self, name: str) -> None:
        """Be established, and complete what earlier leaders have left."""
        await self.open(name)
        self.candidate = await self._c.candidate(name)
        await self.candidate.elected()
        await self.log.take_over(self.candidate.steps)

    async def execute(self, kind: str, request: Any) -> bytes:
        """Execute an operation."""
        return await self.log.execute(self.candidate.steps, kind, request)

    async def passed(self, point: str) -> None:
        """Wait for a point."""
        while point not in self.names:
            await self._c.wait_s(0.0001)

    async def end(self) -> None:
        """Resign, and follow the log no more."""
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self.candidate.close()


async def _call(fn: Callable[..., Any], *args: Any) -> Any:
    found = fn(*args)
    return await found if asyncio.iscoroutine(found) else found
