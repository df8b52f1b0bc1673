"""Operations that a leader starts by itself.

It records which servers are alive, finishes alterations that all tablets have applied, purges dropped tables,
and replaces tablets that get no leader. Level-triggered: due operations are derived each time from catalog,
reports and clock.
"""

import asyncio
import logging
from functools import partial

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import to_micros
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.master.catalog.catalog import Catalog
from nyala.master.ddl import (
    alter_table,
    create_table,
    creation_timeouts,
    drop_table,
    dropped_ranges,
    server_states,
)
from nyala.master.ddl.creation_timeouts import Creations
from nyala.master.ddl.operation import CatalogOperation, LeaderMemory, run
from nyala.master.tservers import TServers

log = logging.getLogger(__name__)


def due(
    catalog: Catalog,
    servers: TServers,
    now_us: int,
    monotonic_us: int,
    history_s: int,
    term: int = 0,
    since_us: int = 0,
) -> list[CatalogOperation]:
    """Return the operations that are due.

    Nothing is deleted for its age before a tablet server's clock has shown that time too: the clock of a
    single master may be wrong.

    Args:
        catalog: catalog of the leader.
        servers: the tablet servers and their reports.
        now_us: microseconds since the epoch.
        monotonic_us: monotonic time of this process.
        history_s: how long a table that names no time keeps its history.
        term: in which this master leads.
        since_us: monotonic time at which this master was elected.
    """
    version_of = servers.schema_version
    passed_us = min(now_us, to_micros(servers.time(now_us)))
    ended = [t for t in catalog.altering() if alter_table.is_finished(catalog, t, version_of)]
    opened = [t for t in catalog.altering() if alter_table.opening(catalog, t, version_of)]
    expired = [t for t in catalog.recallable() if t.record.purge_after_us <= passed_us]
    return [
        *(alter_table.finish(t, version_of) for t in ended),
        *(alter_table.open_ranges(t, version_of, partial(servers.time, now_us)) for t in opened),
        *(drop_table.purge(t, passed_us) for t in expired),
        *(
            dropped_ranges.purge(t)
            for t in catalog.kept()
            if dropped_ranges.is_expired(catalog, t, passed_us, history_s)
            and not dropped_ranges.is_held(servers, t, monotonic_us, term, since_us)
        ),
    ]


class BackgroundOperations:
    """Operations that one leader starts in one term. On the loop only.

    Args:
        env: clock and tasks.
        servers: the tablet servers and their reports.
        options: options of this master.
    """

    def __init__(self, env: Env, servers: TServers, options: Options) -> None:
        self._env = env
        self._servers = servers
        self._options = options
        self._started_us = env.clock.monotonic_us()
        self._trigger = asyncio.Event()
        self._task: asyncio.Task[object] | None = None

    def start(self, memory: LeaderMemory, creations: Creations) -> None:
        """Start the background task.

        Args:
            memory: memory tracker of the term.
            creations: progress of tablets that are being created.
        """
        work = self._follow(memory, creations)
        self._task = self._env.tasks.spawn(work, "chores of the catalog")

    def stop(self) -> None:
        """Start no more operations; one under way runs to its end."""
        if self._task is not None:
            self._task.cancel()

    def trigger(self) -> None:
        """Make the background task check now: something was reported."""
        self._trigger.set()

    async def _follow(self, memory: LeaderMemory, creations: Creations) -> None:
        loop = asyncio.get_running_loop()
        while memory.dropped is None:
            self._trigger.clear()
            try:
                for operation in self._due(memory, creations):
                    await self._carry_out(operation, memory)
            except Exception as bug:  # the task's top: without it no alteration is finished
                log.error("operations of the catalog were not started", exc_info=bug)
            timer = loop.call_later(self._options.order_interval_ms / 1000, self._trigger.set)
            try:
                await self._trigger.wait()
            finally:
                timer.cancel()

    def _due(self, memory: LeaderMemory, creations: Creations) -> list[CatalogOperation]:
        clock = self._env.clock
        now = clock.wall_us(), clock.monotonic_us()
        known = due(
            memory.catalog,
            self._servers,
            *now,
            self._options.history_max_age_s,
            memory.term,
            self._started_us,
        )
        listed = server_states.due(memory.catalog, self._server_liveness())
        return [*listed, *known, *self._replacements(memory, creations)]

    def _server_liveness(self) -> server_states.ServerLiveness:
        now_us = self._env.clock.monotonic_us()
        return server_states.server_liveness(self._servers, now_us, self._started_us)

    def _replacements(self, memory: LeaderMemory, creations: Creations) -> list[CatalogOperation]:
        now_us = self._env.clock.monotonic_us()
        reporting = self._servers.known_in(memory.term, self._servers.alive(now_us))
        timed_out = creations.timed_out(memory.catalog, [s.uuid for s in reporting], now_us)
        if not timed_out:
            return []
        inputs = create_table.plan_inputs(self._env, memory.catalog, self._servers)
        return creation_timeouts.replacements(memory.catalog, timed_out, inputs)

    async def _carry_out(self, operation: CatalogOperation, memory: LeaderMemory) -> None:
        """Run an operation to its end even if this task is cancelled: its batch cannot be undone."""

        async def guarded() -> None:
            try:
                await run(operation, memory)
            except NyalaError as err:
                log.info("%s: %s; it is derived again", operation.what, err)
            except Exception as bug:  # an error of one operation does not affect the others
                log.error("%s: it is derived again", operation.what, exc_info=bug)

        await asyncio.shield(self._env.tasks.spawn(guarded(), operation.what))
