"""A followed change feed as an iterator, for any thread."""

from datetime import timedelta
from types import TracebackType
from typing import Any

import pyarrow as pa

from nyala.client.connection import Connection
from nyala.client.feed.change_batch import ChangeBatch
from nyala.client.feed.follower import Follower, FollowOptions
from nyala.client.hold import MAX_S
from nyala.common.errors import InvalidArgument
from nyala.common.schema import Schema

MIN_POLL_S, MAX_POLL_S = 0.05, 60.0
"""Limits of the longest time between two reads, in seconds."""


def follow_options(poll: Any, hold: Any, heartbeat: Any) -> FollowOptions:
    """Check the options of `Table.follow`.

    Args:
        poll: seconds, or a timedelta.
        hold: the same; 0: no hold.
        heartbeat: the same; None: no empty batches.

    Raises:
        InvalidArgument: one of them is no time, or out of its limits.
    """
    return FollowOptions(
        poll_ms=_ms("poll", poll, MIN_POLL_S, MAX_POLL_S),
        hold_ms=_ms("hold", hold, 0, MAX_S),
        heartbeat_ms=None if heartbeat is None else _ms("heartbeat", heartbeat, 0.1, MAX_S),
    )


def _ms(name: str, value: Any, lowest: float, highest: float) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    numeric = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not numeric or not lowest <= seconds <= highest:
        raise InvalidArgument(
            f"follow: {name}={value!r}: pass seconds from {lowest:g} to {highest:g}, or a timedelta"
        )
    return int(seconds * 1000)


class ChangeFeed:
    """The changes of a table, without end. Made by `Table.follow`; an iterator and a context manager.

    One thread iterates; any thread may `close` it, which ends the iteration. After an error, or Ctrl-C, the
    iteration may go on.
    """

    def __init__(self, connection: Connection, follower: Follower) -> None:
        self._connection = connection
        self._follower = follower
        self._arrived: list[ChangeBatch | None] = []  # not returned yet: the caller was interrupted

    @property
    def position(self) -> int:
        """Hybrid time through which changes were returned; `follow(since=position)` continues."""
        return self._follower.before if self._arrived else self._follower.position

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the changes."""
        return self._follower.schema

    @property
    def definition(self) -> Schema:
        """Columns of the table at the position, with ids and types; their defaults are those of now."""
        return self._follower.definition

    def __iter__(self) -> "ChangeFeed":
        return self

    def __next__(self) -> ChangeBatch:
        """Return the next batch, and wait for it.

        Raises:
            HistoryGone: the reader fell behind for too long; its message says what to do.
            SchemaMismatch: a column that the feed names was dropped.
            NotFound: the table was dropped.
            TimedOut, Unavailable: some tablet did not answer for the client's timeout; the iteration may go
                on.
        """
        if not self._arrived:
            self._connection.run(self._fetch())
        batch = self._arrived.pop()
        if batch is None:
            raise StopIteration
        return batch

    async def _fetch(self) -> None:
        """Keep the next batch, for the next call too if this one is interrupted as the batch arrives."""
        self._arrived.append(await self._follower.next())

    def close(self) -> None:
        """End the iteration and release the history; a second call does nothing."""
        if not self._connection.closed:
            self._connection.finish(self._follower.close())

    def __enter__(self) -> "ChangeFeed":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<nyala.ChangeFeed through {self.position}>"
