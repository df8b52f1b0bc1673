"""Operations of a leader's process: replay before service, follow while another one leads. Methods block."""

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from nyala.common.errors import InvalidArgument, NotLeading
from nyala.env.tasks import Lane
from nyala.recipes.leader import Leader
from nyala.recipes.operations import Operation, OperationLog


class Operations:
    """Operations of the log of a `Leader`. Any thread may call; operations are executed one after the other.

    Args:
        leader: leader, or candidate, of the log.
        kinds: the kinds of operations; their names differ.
        retract: called with the name of an object that no operation describes any more; perhaps again.
        point: called with a name before and after each append and each action, for tests that crash there.

    Raises:
        InvalidArgument: a kind has no name, one with a space, or that of another.
    """

    def __init__(
        self,
        leader: Leader,
        kinds: Iterable[Operation],
        *,
        retract: Callable[[str], object],
        point: Callable[[str], None] = lambda name: None,
    ) -> None:
        kinds = list(kinds)
        _check_kinds(kinds)
        self._leader = leader
        self._journal = leader.journal
        self._log = OperationLog(
            self._journal.coroutines(), leader.name, kinds, retract, self._call, point
        )
        self._ready = 0
        self._follower = self._journal.connection.run(self._follow())

    async def _follow(self) -> "asyncio.Task[object]":
        env = self._journal.connection.core.env
        return env.tasks.spawn(self._log.follow(), f"operations of {self._leader.name}")

    async def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run a method of an operation: a coroutine function on the loop, another one in a thread."""
        if inspect.iscoroutinefunction(fn):
            return await fn(*args)
        env = self._journal.connection.core.env
        return await env.tasks.run(Lane.COMPUTE, fn, *args)

    def take_over(self) -> int:
        """Complete, as the leader, what earlier leaders have left; then `execute` takes requests.

        Returns:
            The epoch.

        Raises:
            NotLeading: this process does not lead.
        """
        epoch = self._leader.check()
        self._journal.connection.change(self._log.take_over(self._leader.steps))
        self._ready = epoch
        return epoch

    def execute(self, kind: str, request: Any) -> bytes:
        """Execute an operation; return the payload of its intent.

        Args:
            kind: name of the kind.
            request: for `Operation.compute`.

        Raises:
            NotLeading: this process does not lead, or `take_over` was not called since it was established. If
                the intent was appended, the next leader completes the operation.
            OutcomeUnknown: the next leader completes the operation, or it has no effect.
        """
        if self._leader.check() != self._ready:
            raise NotLeading(
                "this process leads, and has not completed what earlier leaders have left; call take_over() "
                "after Leader.wait()"
            )
        return self._journal.connection.change(self._log.execute(self._leader.steps, kind, request))

    def close(self) -> None:
        """Follow the log no more."""
        if not self._journal.connection.closed:
            self._journal.connection.run(self._end())

    async def _end(self) -> None:
        self._follower.cancel()
        await asyncio.gather(self._follower, return_exceptions=True)


def _check_kinds(kinds: list[Operation]) -> None:
    names = [getattr(one, "kind", None) for one in kinds]
    for name in names:
        if not isinstance(name, str) or not name or " " in name:
            raise InvalidArgument(f"kind {name!r} of an operation is no name without spaces")
        if names.count(name) > 1:
            raise InvalidArgument(f"two operations have the kind {name!r}; give each its own")
