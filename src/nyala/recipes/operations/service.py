"""Operations of a leader's process: replay before service, follow while another one leads. Methods block."""

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from nyala.common.errors import InvalidArgument, NotLeading
from nyala.env.tasks import Lane
from nyala.recipes.leader import Leader
from nyala.recipes.operations.log import OperationLog
from nyala.recipes.operations.operation import Operation
from nyala.recipes.operations.pending import PendingOperation


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
        if not isinstance(leader, Leader):
            raise InvalidArgument(
                f"leader is a {type(leader).__name__}; give a Leader of a journal of nyala.connect()"
            )
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
        context = contextvars.copy_context()  # tells execute that it is called by an operation
        return await env.tasks.run(Lane.COMPUTE, context.run, fn, *args)

    def take_over(self) -> int:
        """Complete, as the leader, what earlier leaders have left; then `execute` takes requests.

        Returns:
            The epoch.

        Raises:
            NotLeading: this process does not lead.
        """
        self._log.tasks.check_outside()
        epoch = self._leader.check()
        self._journal.connection.change(self._log.take_over(self._leader.steps))
        self._ready = epoch
        return epoch

    def execute(self, kind: str, request: Any) -> bytes:
        """Execute an operation; return the payload of its intent. An interrupt leaves it to end by itself.

        Args:
            kind: name of the kind.
            request: for `Operation.compute`.

        Raises:
            NotReady: it is committed, and this process or the next leader completes it; see `pending`.
            NotLeading: this process does not lead, or `take_over` was not called since it was established;
                nothing took effect.
            Unavailable: it touches the objects of one that could not be completed; nothing took effect.
            OutcomeUnknown: the next leader completes the operation, or it has no effect.
            InvalidArgument: there is no such kind, or an operation makes this call.
        """
        self._check_ready()
        return self._journal.connection.change(self._log.execute(self._leader.steps, kind, request))

    def pending(self) -> list[PendingOperation]:
        """Return the operations that are committed and not completed, each with the error of its last try."""
        return self._journal.connection.run(self._log.pending())

    def retry(self, intent: int) -> None:
        """Complete a pending operation now.

        Args:
            intent: id of its intent.

        Raises:
            NotReady: it has failed again.
            NotFound: it is not pending.
            NotLeading: as `execute`.
        """
        self._check_ready()
        self._journal.connection.change(self._log.retry(self._leader.steps, intent))

    def abandon(self, intent: int) -> None:
        """End a pending operation without a result: its objects are again as they were described before.

        What its actions have done at other processes stays: undo it there first.

        Args:
            intent: id of its intent.

        Raises:
            NotFound: it is not pending.
            NotLeading: as `execute`.
        """
        self._check_ready()
        self._journal.connection.change(self._log.abandon(self._leader.steps, intent))

    def _check_ready(self) -> None:
        self._log.tasks.check_outside()
        if self._leader.check() != self._ready:
            raise NotLeading(
                "this process leads, and has not completed what earlier leaders have left; call take_over() "
                "after Leader.wait()"
            )

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
