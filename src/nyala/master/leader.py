"""Leadership in the masters' group.

The catalog is built from the sys catalog at each election and dropped at the end of the term.
Level-triggered: the role is checked before each use, not only when it changes. A read is answered only after
a majority has confirmed the term, so a deposed leader answers nothing (S0.18).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nyala.common.errors import Corrupt, NotLeader, NyalaError, Unavailable
from nyala.common.options import Options
from nyala.env.clock import random_id
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.detached import detached
from nyala.master.catalog.follower_catalog import CatalogSnapshot, FollowerCatalog
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.rows import CatalogRow
from nyala.master.ddl import operation
from nyala.master.ddl.background import BackgroundOperations
from nyala.master.ddl.operation import CatalogOperation, CatalogWriter, LeaderMemory
from nyala.master.orders.dispatcher import Dispatcher
from nyala.master.table_quotas import TableQuotas
from nyala.master.transactions.denials import CatalogReader
from nyala.master.transactions.term import CoordinatorContext, TransactionsOfTerm
from nyala.master.tservers import TServers
from nyala.raft.status import Role
from nyala.replica.status import ReplicaStatus, State
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

CATALOG_FORMAT = 1


class CatalogStore(CatalogWriter, CatalogReader, Protocol):
    """The sys catalog, as one leader uses it in one term."""

    async def rows(self) -> list[CatalogRow]:
        """Return every row, up to date."""
        ...


@dataclass(slots=True)
class Term:
    """One term in which this master leads.

    Attributes:
        memory: state for operations.
        rows: the sys catalog.
        dispatcher: dispatcher of orders to tablet servers.
        background: operations that the leader starts by itself.
        transactions: coordinator of transactions.
        quotas: sizes of the tables with a quota.
        elected_us: monotonic time at which the memory was ready.
    """

    memory: LeaderMemory
    rows: CatalogStore
    dispatcher: Dispatcher
    background: BackgroundOperations
    transactions: TransactionsOfTerm
    quotas: TableQuotas
    elected_us: int

    @property
    def catalog(self) -> Catalog:
        """Tables and tablets."""
        return self.memory.catalog


class MasterLeadership:
    """Follows this master's role in the masters' group. On the loop only.

    Args:
        env: the environment: clock, tasks, files, calls.
        sys_catalog: makes the sys catalog of a new term.
        status: status of this master's replica of it.
        servers: the tablet servers.
        options: options of this master.
        coordination: clock and peers of this master as a coordinator of transactions.
        followed: catalog of this master's own replica; None: look-ups need the leader.
    """

    def __init__(
        self,
        env: Env,
        sys_catalog: Callable[[], CatalogStore],
        status: Callable[[], ReplicaStatus],
        servers: TServers,
        options: Options,
        coordination: CoordinatorContext,
        followed: FollowerCatalog | None = None,
    ) -> None:
        self._env = env
        self._sys_catalog = sys_catalog
        self._servers = servers
        self._options = options
        self._coordination = coordination
        self._followed = followed
        self._term: Term | None = None
        self._ended: LeaderMemory | None = None  # of the term before
        self._stopped = False
        self._changed = asyncio.Event()
        self.status = status
        self.failure: NyalaError | None = None

    def start(self) -> None:
        """Start the task that follows the role."""
        self._env.tasks.spawn(self._follow(), "follow the role of the sys catalog")

    def stop(self) -> None:
        """Drop the leader's state; it is not rebuilt."""
        self._stopped = True
        self._changed.set()
        self._drop("the master is stopping")

    @property
    def term(self) -> Term | None:
        """Term whose state this master holds; `current` drops one that has ended."""
        return self._term

    def current(self) -> Term | None:
        """Return the term in which this master leads and is ready; None when there is none."""
        term = self._term
        if term is None:
            return None
        status = self.status()
        if status.role is not Role.LEADER or status.term != term.memory.term:
            self._drop(f"it is {status.role} in term {status.term}")
        elif term.memory.dropped is not None:
            self._drop(term.memory.dropped)
        return self._term

    def require(self) -> Term:
        """Return the term in which this master leads.

        Raises:
            NotLeader: another master leads; names it when known.
            Unavailable: this one was elected and has not rebuilt its state yet; retry.
        """
        term = self.current()
        if term is not None:
            return term
        raise refusal(self.failure, self.status())

    async def confirmed(self) -> Term:
        """Return the term in which this master leads, confirmed by a majority since the call.

        Raises:
            NotLeader: another master leads.
            Unavailable, TimedOut: no majority answers, or the memory is not rebuilt yet.
        """
        term = self.require()
        await term.rows.confirm()
        term.memory.check()
        return term

    async def look_up(self, wanted: pb.Staleness) -> CatalogSnapshot:
        """Return a catalog to read: the leader's, confirmed, or this replica's within the allowed age.

        Args:
            wanted: largest age of the answer; unset: the leader's only.

        Raises:
            NotLeader: another master leads, and what is here is too old (details: `reason` TOO_OLD).
            Unavailable, TimedOut: as `confirmed`.
        """
        if self._followed is None or not wanted.max_age_ms or self.current() is not None:
            term = self.require()
            at = await term.rows.confirm()
            term.memory.check()
            return CatalogSnapshot(term.catalog, pb.AsOf(at=at))
        catalog, at, age_ms = await self._followed.within(wanted)
        status = self.status()
        leader = None if status.leader is None else status.config.get(status.leader)
        hint = "" if leader is None else leader.address
        return CatalogSnapshot(
            catalog, pb.AsOf(at=at, age_ms=age_ms, follower=True, leader_address=hint)
        )

    async def run(self, wanted: CatalogOperation, term: Term) -> CatalogPlan:
        """Run an operation to its end, even when the caller is cancelled.

        Raises:
            NyalaError: as `operation.run`.
        """
        return await detached(self._env, operation.run(wanted, term.memory))

    def role_changed(self) -> None:
        """Follow the role now; without a call a change is noticed within a heartbeat interval."""
        self._changed.set()

    async def _follow(self) -> None:
        while not self._stopped:
            self._changed.clear()
            pause_ms = self._options.server_heartbeat_ms
            try:
                if await self._follow_once():
                    pause_ms = self._options.raft_tick_ms
            except Exception as bug:  # the task's top: without it this master never leads again
                log.error("the role of the sys catalog was not followed", exc_info=bug)
            timer = asyncio.get_running_loop().call_later(pause_ms / 1000, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()

    async def _follow_once(self) -> bool:
        """Rebuild the leader's state if it is due; return whether it is still due."""
        status = self.status()
        if self.current() is not None or status.role is not Role.LEADER or self.failure is not None:
            return False
        # rows that operations of the dropped term still propose would not be read
        if not (self._ended and self._ended.in_flight):
            await self._rebuild(status.term)
        return self.current() is None

    async def _rebuild(self, number: int) -> None:
        try:
            rows = self._sys_catalog()
            term = await build(
                self._env, rows, self._servers, number, self._options, self._coordination
            )
        except Corrupt as err:
            log.error("the sys catalog cannot be read: %s", err)
            self.failure = err
            return
        except NyalaError as err:
            log.info("the catalog cannot be read for term %d, retrying: %s", number, err)
            return
        if self.status().term == number:
            self._term = term
            term.dispatcher.start()
            term.background.start(term.memory, term.dispatcher.creations)
            term.transactions.start()
            self._env.tasks.spawn(self._keep_fresh(term), "keep the followers' catalogs fresh")
            log.info("leader of term %d, with %d tables", number, len(term.catalog.tables()))

    async def _keep_fresh(self, term: Term) -> None:
        while self.current() is term:
            try:
                await term.rows.confirm()
            except NyalaError as err:
                log.debug("term %d is not confirmed: %s", term.memory.term, err)
            except Exception as bug:  # the task's top: without it followers' catalogs grow old
                log.error("term %d was not confirmed", term.memory.term, exc_info=bug)
            await self._env.tasks.sleep_ms(self._options.server_heartbeat_ms)

    def _drop(self, why: str) -> None:
        if self._term is not None:
            log.info("no longer leader of term %d: %s", self._term.memory.term, why)
            self._term.memory.drop(why)
            self._ended, self._term = self._term.memory, None
            self._changed.set()  # to be rebuilt, if it still leads


def refusal(failure: NyalaError | None, status: ReplicaStatus) -> NyalaError:
    """Return the error of a master that does not lead, or is not ready."""
    if failure is not None:
        return Unavailable(f"this master cannot serve the catalog: {failure}")
    if status.state is State.FAILED:
        return Unavailable(f"this master's sys catalog has failed: {status.error}")
    if status.role is Role.LEADER:
        return Unavailable("this master was just elected and is reading the catalog; retry")
    leader = None if status.leader is None else status.config.get(status.leader)
    if leader is None:
        return NotLeader("this master does not lead, and it knows of no leader yet; retry")
    return NotLeader(
        f"this master does not lead; the leader is {leader.uuid} at {leader.address}",
        {"leader": leader.uuid, "address": leader.address},
    )


async def build(
    env: Env,
    rows: CatalogStore,
    servers: TServers,
    number: int,
    options: Options,
    coordination: CoordinatorContext,
) -> Term:
    """Read the whole catalog into memory, in a worker thread; the first leader creates the cluster's record.

    Args:
        env: the environment: clock, tasks, files, calls.
        rows: the sys catalog of the term.
        servers: the tablet servers.
        number: the term.
        options: options of this master.
        coordination: clock and peers of this master as a coordinator of transactions.

    Raises:
        Corrupt: a row cannot be read.
        NotLeader, Unavailable, TimedOut: the term has ended, or no majority answers.
    """
    catalog = Catalog()
    found = await rows.rows()
    await env.tasks.run(Lane.COMPUTE, catalog.load, found)
    background = BackgroundOperations(env, servers, options)
    dispatcher = Dispatcher(env, catalog, servers, number, options, background.trigger)

    started: list[TransactionsOfTerm] = []

    def stop() -> None:
        dispatcher.stop()
        background.stop()
        for transactions in started:
            transactions.stop()

    now_us = env.clock.monotonic_us
    memory = LeaderMemory(number, catalog, rows, dispatcher, Locks(), stop, now_us)
    if catalog.cluster is None:
        await create_cluster_record(env, memory)
    transactions = TransactionsOfTerm(env, memory, rows, servers, options, coordination)
    started.append(transactions)
    quotas, now = TableQuotas(catalog), env.clock.monotonic_us()
    return Term(memory, rows, dispatcher, background, transactions, quotas, now)


async def create_cluster_record(env: Env, memory: LeaderMemory) -> None:
    """Create the cluster id and the catalog incarnation: the first operation of the first leader."""
    record = cat.ClusterRecord(
        cluster_id=random_id(env.random),
        catalog_incarnation=random_id(env.random),
        format_version=CATALOG_FORMAT,
        created_us=env.clock.wall_us(),
    )
    wanted = CatalogOperation(
        "create cluster record", lambda _: Scope(), lambda _: CatalogPlan(cluster=record)
    )
    await operation.run(wanted, memory)
