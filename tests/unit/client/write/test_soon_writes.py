"""Room for writes whose results are futures, and their cancellation."""

import threading
from collections import deque
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.calls.rows import PreparedRows
from nyala.client.calls.soon_writes import Soon, SoonWrites
from nyala.client.core import ClientOptions
from nyala.client.write.batcher import BatchLimits
from nyala.client.write.pending_call import Call, Written
from nyala.client.write.watch import Watch
from tests.unit.client.support.client_bulk import opened

ONE = pa.record_batch({"k": [1], "v": [1]})


class Client:
    """A client's core, its loop and its combiner in one: calls wait until they are answered."""

    closed = is_current = False

    def __init__(self, most: int) -> None:
        self.session = self.combiner = self
        self.options = ClientOptions(limits=BatchLimits(ahead_bytes=most))
        self.handed: deque[Any] = deque()
        self.taken: list[Call] = []
        core: Any = self
        self.soon = SoonWrites(core, core)

    def small(self, table: Any, op: int, batch: Any, *, on_done: Any, **_how: Any) -> Call:
        return Call(table, op, batch, batch.nbytes, 0, on_done)

    def hand_over(self, take: Any, item: Any) -> None:
        self.handed.append((take, item))

    def run(self) -> None:
        """Do what the loop has to do."""
        while self.handed:
            take, item = self.handed.popleft()
            take(item)

    def take(self, call: Call) -> None:
        self.taken.append(call)

    def write(self) -> Soon:
        rows = PreparedRows(0, [{}], lambda data, first: [ONE], False, Watch())
        return self.soon.write(opened(), rows, None)


def test_write_waits_while_too_many_bytes_are_not_acknowledged():
    client = Client(2 * ONE.nbytes)
    first, _ = client.write(), client.write()
    client.run()
    third: list[Soon] = []
    waiting = threading.Thread(target=lambda: third.append(client.write()))
    waiting.start()
    assert not third
    client.taken[0].done(Written(1, [], 5))
    waiting.join()
    assert first.result().rows == 1
    assert len(third) == 1


def test_write_that_is_larger_than_all_room_goes_alone():
    client = Client(1)
    for _ in range(3):
        done = client.write()
        client.run()
        client.taken.pop().done(Written(1, [], 5))
        assert done.result().rows == 1


def test_cancelled_write_is_not_sent_unless_it_was():
    client = Client(2 * ONE.nbytes)
    early, late = client.write(), client.write()
    assert early.cancel()
    client.run()
    assert len(client.taken) == 1
    assert not late.cancel()
    client.taken[0].failed(ValueError("no answer"))
    with pytest.raises(ValueError, match="no answer"):
        late.result()
    for _ in range(2):  # both have left their room
        client.write()
