"""Ctrl-C at the moment when a batch of a followed feed arrives: the iteration continues with that batch."""

from typing import Any

import pytest

from nyala.client.feed.change_batch import ChangeBatch
from nyala.client.feed.change_feed import ChangeFeed
from nyala.client.feed.time_merge import empty_batch
from tests.unit.client.support.client_bulk import SCHEMA


class Follower:
    """Three batches, and then the feed is closed."""

    def __init__(self) -> None:
        self.position = self.before = 10

    async def next(self) -> ChangeBatch | None:
        if self.position == 13:
            return None
        self.before, self.position = self.position, self.position + 1
        return ChangeBatch(empty_batch(SCHEMA.arrow), self.position)


class Connection:
    """Runs coroutines; the caller is interrupted as the result of one of them arrives."""

    def __init__(self, interrupted: int) -> None:
        self.runs, self.interrupted = 0, interrupted

    def run(self, work: Any) -> None:
        with pytest.raises(StopIteration):
            work.send(None)
        self.runs += 1
        if self.runs == self.interrupted:
            raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [1, 2, 3])
def test_interrupted_iteration_goes_on_with_the_batch_that_had_arrived(interrupted):
    connection, follower = Connection(interrupted), Follower()
    feed = ChangeFeed(connection, follower)  # type: ignore[arg-type]
    seen: list[int] = []

    def read() -> None:
        for batch in feed:
            seen.append(batch.through)
            assert feed.position == batch.through

    with pytest.raises(KeyboardInterrupt):
        read()
    assert feed.position == 10 + len(seen), "a feed that begins there has the batch too"
    read()
    assert seen == [11, 12, 13]
