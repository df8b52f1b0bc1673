"""WholeTasks: work that goes on to its end when its caller is interrupted, and never waits for itself."""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from nyala.common.errors import InvalidArgument, OutcomeUnknown
from nyala.env.env import Env

T = TypeVar("T")


@dataclass(slots=True)
class _Run:
    owner: "WholeTasks"
    active: bool = True


_RUNS: ContextVar[tuple[_Run, ...]] = ContextVar("runs", default=())


class WholeTasks:
    """Tasks of an owner, each of which ends by itself, whatever its caller does.

    Args:
        env: the client's; its process ends them.
        name: of the tasks.
    """

    def __init__(self, env: Env, name: str) -> None:
        self._env = env
        self._name = name

    def check_outside(self) -> None:
        """Raise InvalidArgument in code that a task of this owner calls, and which it would wait for."""
        if any(run.owner is self and run.active for run in _RUNS.get()):
            raise InvalidArgument(
                f"{self._name} are executed one after the other, and this call is made by a method or an "
                "action of one of them, so that it would wait for itself for ever: make it after that has "
                "ended, or do the work in the action itself"
            )

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of some work, which goes on if the caller is cancelled."""
        try:
            self.check_outside()
        except InvalidArgument:
            work.close()
            raise
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._env.tasks.spawn(self._settle(work, done), self._name)
        return await done

    async def _settle(self, work: Coroutine[Any, Any, T], done: "asyncio.Future[T]") -> None:
        run = _Run(self)
        _RUNS.set((*_RUNS.get(), run))
        try:
            result = await work
        except asyncio.CancelledError:  # its process ends
            if not done.done():
                done.set_exception(
                    OutcomeUnknown(
                        f"the process ends during one of the {self._name}: the next leader completes it, or "
                        "it has no effect"
                    )
                )
                done.exception()  # so that it is not reported if the caller has ended too
            raise
        except GeneratorExit:  # the loop has ended, and its callers with it
            raise
        except BaseException as err:  # raised by the caller, if it still waits
            if not done.done():
                done.set_exception(err)
                done.exception()  # so that it is not reported if the caller ends before it looks
            if isinstance(err, AssertionError):  # a bug, which the task shows as well
                raise
        else:
            if not done.done():
                done.set_result(result)
        finally:
            run.active = False
