"""Queue of items from threads to a loop, and its wake-ups."""

import threading

import pytest

from nyala.client.caller import finished
from nyala.client.calls.thread_caller import ThreadSignal
from nyala.common.errors import InvalidArgument, Unavailable
from nyala.env.loop_thread import LoopThread


def test_hand_over_delivers_once_in_order_per_thread():
    loop = LoopThread("test")
    arrived: list[tuple[int, int]] = []

    def take(item: tuple[int, int, ThreadSignal]) -> None:
        arrived.append(item[:2])
        item[2].set()

    def work(number: int) -> None:
        for turn in range(200):
            bell = ThreadSignal(loop)
            loop.hand_over(take, (number, turn, bell))
            finished(bell.wait())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loop.close()
    for number in range(8):
        assert [turn for n, turn in arrived if n == number] == list(range(200))


def test_hand_over_accepts_nothing_after_close():
    loop = LoopThread("test")
    loop.close()
    with pytest.raises(InvalidArgument, match="closed"):
        loop.hand_over(print, "x")


def test_waiting_caller_gets_error_when_loop_ends():
    loop = LoopThread("test")
    loop.close()
    with pytest.raises(Unavailable, match="closed"):
        loop.wait(lambda seconds: False)
