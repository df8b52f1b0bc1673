"""A followed change feed: rounds without end, a batch ahead of the reader, and a hold of its history.

Between rounds the servers tell when to read.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.feed.change_batch import ChangeBatch
from nyala.client.feed.change_wait import wait_for_changes
from nyala.client.feed.rounds import Rounds
from nyala.client.hold import Holding
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import HistoryGone, InvalidArgument, NyalaError
from nyala.common.hybrid_time import to_micros
from nyala.common.schema import Schema

PAUSE_MS = 20
"""Pause between two rounds, in milliseconds."""
FUTURE_US = 1_000_000
"""Time in microseconds by which `since` may lie ahead of the servers' clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Options of a followed feed.

    Attributes:
        poll_ms: longest time between two reads while the servers announce nothing.
        hold_ms: time for which history is held beyond the position's age at the start; 0: it is not held.
        heartbeat_ms: time without changes after which an empty batch is returned; None: none is.
    """

    poll_ms: int
    hold_ms: int
    heartbeat_ms: int | None = None


class Follower:
    """A followed feed. Runs on the client's loop; one call of `next` at a time.

    Args:
        core: the client.
        table: its own handle of the table; its schema is that of the position.
        spec: the feed, of every version; `since` is where it begins.
        options: see `FollowOptions`.

    Attributes:
        position: hybrid time; a feed that begins there continues this one.
        before: position before the batch that `next` returned last.
    """

    def __init__(
        self, core: ClientCore, table: OpenTable, spec: ReadSpec, options: FollowOptions
    ) -> None:
        self.position = self.before = spec.since
        self._core = core
        self._env = core.env
        self._table = table
        self._options = options
        self._rounds = Rounds(core, table, spec, core.options.timeout_ms)
        self._holding: Holding | None = None
        self._items: AsyncGenerator[ChangeBatch, None] | None = None
        self._ahead: asyncio.Future[ChangeBatch] | None = None
        self._returned_us = self._env.clock.monotonic_us()
        self._stopped = False

    @property
    def definition(self) -> Schema:
        """Schema of the table at the position, as of the newest round."""
        return self._table.schema

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the changes as of the newest round."""
        return self._rounds.schema

    async def begin(self, *, now: bool = False) -> None:
        """Check the position, and hold its history.

        Args:
            now: begin at the present.

        Raises:
            InvalidArgument: the position lies in the future.
            HistoryGone: its history is gone.
        """
        present = await self._rounds.present()
        if now:
            self.position = present
        ahead_us = to_micros(self.position) - to_micros(present)
        if ahead_us > FUTURE_US:
            raise InvalidArgument(
                f"follow: since ({self.position}) lies {ahead_us / 1e6:.0f} s in the future; pass the "
                "position of an earlier batch, a write's timestamp, or client.now()"
            )
        if self._options.hold_ms:
            try:
                self._holding = await self._core.hold(
                    self._table, max(1, self.position), self._options.hold_ms, name="follow-"
                )
            except HistoryGone as err:
                raise self._gone(err) from err

    async def next(self) -> ChangeBatch | None:
        """Return the next batch; None: the feed was closed.

        After an error the next call continues from `position`.

        Raises:
            HistoryGone: the history after the position is gone.
            SchemaMismatch: a column of the feed was dropped.
            NotFound: the table was dropped.
            TimedOut: some tablet has had no leader for the client's timeout.
        """
        if self._holding is not None:
            self._holding.move(max(1, self.position))
        while not self._stopped:
            batch = await self._fetch()
            if batch is None:
                return None
            self.before, self.position = self.position, batch.through
            if batch.num_rows or batch.schema_changed or self._is_heartbeat_due():
                self._returned_us = self._env.clock.monotonic_us()
                return batch
            if self._holding is not None:
                self._holding.move(max(1, self.position))
        return None

    async def _fetch(self) -> ChangeBatch | None:
        """Return the batch that is fetched ahead, and fetch another one; None: the feed was closed."""
        if self._items is None:
            self._items = self._batches(self.position)
        items = self._items
        step = self._ahead or asyncio.ensure_future(anext(items))
        self._ahead = step
        try:
            batch = await asyncio.shield(step)  # goes on when the caller is interrupted
        except asyncio.CancelledError:
            if self._stopped:
                return None
            raise
        except HistoryGone as err:
            self._items = self._ahead = None
            raise self._gone(err) from err
        except Exception:  # also a bug: the next call begins again
            self._items = self._ahead = None
            raise
        self._ahead = None if self._stopped else asyncio.ensure_future(anext(items))
        return batch

    def _is_heartbeat_due(self) -> bool:
        wanted_ms = self._options.heartbeat_ms
        silent_us = self._env.clock.monotonic_us() - self._returned_us
        return wanted_ms is not None and silent_us >= wanted_ms * 1000

    async def close(self) -> None:
        """End the feed, also a call of `next` that waits, and release its hold."""
        self._stopped = True
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
        if self._items is not None:
            await self._items.aclose()
            self._items = None
        holding, self._holding = self._holding, None
        if holding is not None:
            await holding.release()

    def _gone(self, err: HistoryGone) -> HistoryGone:
        return HistoryGone(
            f"the changes of table {self._table.name!r} after {self.position} cannot be read any more: "
            f"{err.message}. Begin again: at = client.now(), copy the table with scan(at=at), then "
            "follow(since=at). A longer hold= keeps the history of a reader that is slow or stopped, the "
            "table's history_max_age_s that of all",
            dict(err.details),
        )

    async def _batches(self, since: int) -> AsyncGenerator[ChangeBatch, None]:
        """Yield batches without end; a round ends with an empty one if its last changes were yielded."""
        while True:
            present = await self._rounds.present()
            while since < present:
                async with aclosing(self._rounds.read(since, present)) as batches:
                    async for batch in batches:
                        since = batch.through
                        yield batch
            await wait_for_changes(
                self._env, self._core.locations, self._table, since, self._options.poll_ms
            )
            await self._env.tasks.sleep_ms(PAUSE_MS)


async def follow(
    core: ClientCore, table: OpenTable, spec: ReadSpec, options: FollowOptions, *, now: bool = False
) -> Follower:
    """Follow the changes of a table.

    Args:
        core: the client.
        table: that is followed; its handle is not changed.
        spec: the feed; `since` is where it begins.
        options: see `FollowOptions`.
        now: begin at the present, whatever `since`.

    Raises:
        As `Follower.begin`.
    """
    own = await core.locations.open("", core.options.timeout_ms, table_id=table.id)
    own.schema = spec.schema or table.schema  # with which the columns were checked
    follower = Follower(core, own, spec, options)
    try:
        await follower.begin(now=now)
    except NyalaError:
        await follower.close()
        raise
    return follower
