"""Ctrl-C ends the wait of a synchronous call, also under a handler that restarts system calls.

So does whatever a handler of another signal raises. What a call holds by then is released.
"""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from nyala.env.loop_thread import LoopThread
from tests.interrupting import interrupt, waits
from tests.waiting import eventually, wait_until


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


@pytest.fixture
def raising() -> Iterator[Callable[[type[BaseException]], None]]:
    """A function that makes SIGUSR1 raise an error, as an alarm or an order to end does in many programs."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(error: type[BaseException]) -> None:
        def handle(_number: int, _frame: object) -> None:
            raise error("of the handler")

        signal.signal(signal.SIGUSR1, handle)

    yield install
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", [TimeoutError, SystemExit, ValueError])
def test_error_of_a_signal_ends_the_wait_and_the_work(loop: LoopThread, raising, error):
    raising(error)
    given_up, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            await eventually(given_up.is_set, "the caller ignores the error")
        finally:
            ended.set()

    def send() -> None:
        wait_until(waits, "the call waits")
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            wait_until(ended.is_set, "the work is cancelled", 5)
        finally:
            given_up.set()  # a call that ignores the error returns

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(error, match="of the handler"):
            loop.run(work())
    finally:
        thread.join()
    assert ended.is_set()


def test_release_goes_on_when_its_caller_is_interrupted(loop: LoopThread):
    released = threading.Event()

    async def release() -> None:
        await eventually(lambda: not waits(), "the caller is interrupted")
        released.set()

    interrupt(lambda: loop.finish(release()))
    wait_until(released.is_set, "the release continues", 5)


def test_result_that_arrives_as_its_caller_is_interrupted_is_released(loop: LoopThread):
    released = threading.Event()

    async def begin() -> str:
        wait_until(waits, "the caller waits")
        os.kill(os.getpid(), signal.SIGINT)
        return "a hold"

    async def release(result: str) -> None:
        assert result == "a hold"
        released.set()

    with pytest.raises(KeyboardInterrupt):
        loop.acquire(begin, release)
    wait_until(released.is_set, "nobody has a handle to release it", 5)
