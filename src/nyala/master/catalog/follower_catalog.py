"""The catalog of a follower, for look-ups that need no leader (S0.86).

It is built on the first look-up, and advanced to newer closed times by the rows that changed. A closed time
is a point of the log: each batch is below it as a whole or above it as a whole, and the change is published
between two awaits, so no reader sees half of a batch.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nyala.common.errors import Corrupt, HistoryGone, NotFound, NotLeader, Unavailable
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.master.catalog import sys_catalog
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.parsing import parse
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet
from nyala.tablet.read.view import View
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


class StaleReplica(Protocol):
    """The part of a replica that a follower's catalog needs."""

    async def stale_point(
        self, max_age_ms: int, timeout_ms: int, *, min_time: int = 0
    ) -> tuple[int, int]:
        """As `Replica.stale_point`.

        Args:
            max_age_ms: largest age of the point.
            timeout_ms: deadline.
            min_time: hybrid time that the point must reach at least.
        """
        ...


Answer = TypeVar(
    "Answer", pb.ListTablesResponse, pb.DescribeTableResponse, pb.TabletLocationsResponse
)


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """A catalog, to be read before the next await, and the time that it shows.

    Attributes:
        catalog: tables and tablets.
        as_of: time and age of the catalog.
    """

    catalog: Catalog
    as_of: pb.AsOf

    def answer(self, make: Callable[[], Answer]) -> Answer:
        """Return a response made from the catalog, with its time.

        Raises:
            NotLeader: a follower does not have the table or tablet (details: `reason` NOT_HERE).
            NyalaError: what `make` raises.
        """
        try:
            answer = make()
        except NotFound as err:
            if not self.as_of.follower:
                raise
            leader = self.as_of.leader_address
            raise NotLeader(
                f"{err.message} (as of {self.as_of.age_ms} ms ago; the leader may know more)",
                {"reason": "NOT_HERE"} | ({"address": leader} if leader else {}),
            ) from err
        answer.as_of.CopyFrom(self.as_of)
        return answer


class FollowerCatalog:
    """The catalog of this master's own replica. On the loop only.

    Args:
        env: the environment: clock, tasks, files, calls.
        replica: this master's member of the group.
        view: returns a view of the applied rows.
        timeout_ms: deadline, in milliseconds, of a read index round.
    """

    def __init__(
        self, env: Env, replica: StaleReplica, view: Callable[[], View], timeout_ms: int
    ) -> None:
        self._env = env
        self._replica = replica
        self._view = view
        self._timeout_ms = timeout_ms
        self._catalog = Catalog()
        self._at = 0
        self._one = asyncio.Lock()

    async def within(self, wanted: pb.Staleness) -> tuple[Catalog, int, int]:
        """Return the catalog, its hybrid time, and its age in milliseconds.

        Raises:
            NotLeader: this replica's closed time is too old; details: `reason` TOO_OLD, the leader if known.
            Unavailable: this replica has failed, is still opening, or was deleted.
        """
        async with self._one:
            with sys_catalog.not_found_is_unavailable():
                return await self._within(wanted)

    async def _within(self, wanted: pb.Staleness) -> tuple[Catalog, int, int]:
        while True:
            min_time = max(wanted.not_before, self._view().horizon)
            at, age_ms = await self._replica.stale_point(
                wanted.max_age_ms, self._timeout_ms, min_time=min_time
            )
            began_us = self._env.clock.monotonic_us()
            try:
                await self._follow(at)
            except Corrupt as err:
                raise Unavailable(f"this master cannot read its catalog: {err}") from err
            age_ms += -(-(self._env.clock.monotonic_us() - began_us) // 1000)
            if age_ms <= wanted.max_age_ms:  # else building took long; what is left is less
                return self._catalog, self._at, age_ms

    async def _follow(self, at: int) -> None:
        if at <= self._at:
            return
        view, run = self._view(), self._env.tasks.run
        if self._at:
            try:
                plan = await run(Lane.COMPUTE, _changed, view, self._at, at)
            except HistoryGone:
                self._at = 0
            else:
                self._catalog.follow(plan)
        if not self._at:
            self._catalog = await run(Lane.COMPUTE, _load, view, at)
        self._at = at


def _load(view: View, at: int) -> Catalog:
    catalog = Catalog()
    catalog.load(sys_catalog.scan(view, at))
    return catalog


def _changed(view: View, since: int, until: int) -> CatalogPlan:
    items = [parse(row) for row in sys_catalog.changed(view, since, until)]
    cluster = [item for item in items if isinstance(item, cat.ClusterRecord)]
    return CatalogPlan(
        tablets=tuple(item.record for item in items if isinstance(item, CatalogTablet)),
        tables=tuple(item.record for item in items if isinstance(item, CatalogTable)),
        cluster=cluster[0] if cluster else None,
        servers=tuple(item for item in items if isinstance(item, pb.ListedServer)),
    )
