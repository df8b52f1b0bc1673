"""Ctrl-C ends the wait of a synchronous call, also under a handler that restarts system calls."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from nyala.env.loop_thread import LoopThread
from tests.interrupting import interrupt


@pytest.fixture(params=["its own handler", "a handler that restarts calls"])
def handled(request: pytest.FixtureRequest) -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as in a program; with SA_RESTART as polars installs it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.siginterrupt(signal.SIGINT, request.param == "its own handler")
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.close()


def run(loop: LoopThread) -> object:
    return loop.run(asyncio.Event().wait())


def iterate(loop: LoopThread) -> object:
    async def items() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    return next(iter(loop.iterate(items())))


def wait(loop: LoopThread) -> None:
    never = threading.Event()
    loop.wait(never.wait)


@pytest.mark.parametrize("call", [run, iterate, wait])
def test_interrupt_ends_the_wait(
    handled: None, loop: LoopThread, call: Callable[[LoopThread], object]
):
    interrupt(lambda: call(loop))


def test_error_of_the_work_that_is_a_timeout_is_raised(loop: LoopThread):
    async def work() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        loop.run(work())
