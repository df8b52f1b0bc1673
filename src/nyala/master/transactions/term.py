"""The coordinator of one term with its parts: made once the catalog is read, stopped with the term."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nyala.common.options import Options
from nyala.env.env import Env
from nyala.master.ddl.operation import LeaderMemory
from nyala.master.transactions import gate
from nyala.master.transactions.attempts import TransactionAttempts
from nyala.master.transactions.commits import CommitClock, Commits
from nyala.master.transactions.coordinator import TransactionCoordinator
from nyala.master.transactions.denials import CatalogReader, Denials
from nyala.master.transactions.ends import TransactionEnds
from nyala.master.transactions.key_owners import KeyOwners
from nyala.master.transactions.locations import LeaderLocations
from nyala.master.transactions.participants import Participants
from nyala.master.transactions.resolver import Resolver
from nyala.master.transactions.tablet_calls import TabletCalls
from nyala.master.transactions.upkeep import DecisionUpkeep
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class CoordinatorContext:
    """Clock and peers of a master, for the coordinators of all its terms.

    Attributes:
        clock: its hybrid clock.
        masters: returns the registrations of the other masters that have answered.
    """

    clock: CommitClock
    masters: Callable[[], Iterable[pb.ServerInfoResponse]]


class TransactionsOfTerm:
    """Transactions of one leader in one term. On the loop only.

    Args:
        env: the environment: clock, tasks, calls.
        memory: memory of the term; its catalog has the cluster's record.
        rows: the sys catalog.
        servers: the tablet servers.
        options: options of this master.
        coordination: clock and peers of this master.

    Attributes:
        attempts: attempts under way.
        denials: reads keys, and answers that a transaction is not committed.
        resolver: resolves decisions.
        coordinator: commits, aborts and statuses.
        key_owners: changes of the owners of keys.
        upkeep: removes what is old.
    """

    def __init__(
        self,
        env: Env,
        memory: LeaderMemory,
        rows: CatalogReader,
        servers: TServers,
        options: Options,
        coordination: CoordinatorContext,
    ) -> None:
        catalog, cluster = memory.catalog, memory.catalog.cluster
        assert cluster is not None, "transactions before the cluster has its incarnation"
        self._env = env
        self._memory = memory
        self._servers = servers
        self._masters = coordination.masters
        clock = coordination.clock
        self._upkeep: asyncio.Task[object] | None = None
        fence = pb.Fence(catalog_incarnation=cluster.catalog_incarnation, term=memory.term)
        calls = self._calls = TabletCalls(env, LeaderLocations(catalog, servers))
        participants = Participants(calls, options, fence)
        self.attempts = TransactionAttempts(cluster.created_us, memory.term)
        self.denials = Denials(memory, rows, self.attempts)
        self.resolver = Resolver(env, catalog, calls, options, fence)
        ends = TransactionEnds(env, memory, self.attempts, participants, clock.now)
        commits = Commits(
            env, memory, self.attempts, participants, self.resolver, self.denials, ends, clock, options,
            self.check_ready,
        )  # fmt: skip
        self.coordinator = TransactionCoordinator(
            env, memory, self.attempts, commits, self.denials, ends
        )
        self.key_owners = KeyOwners(env, memory, self.denials, commits.key_locks)
        self.upkeep = DecisionUpkeep(
            env, memory, rows, self.attempts, self.resolver, clock, options
        )

    def start(self) -> None:
        """Resolve what earlier leaders have decided, and start the upkeep."""
        self.resolver.start()
        self._upkeep = self._env.tasks.spawn(self.upkeep.run(), "upkeep of decisions")

    def stop(self) -> None:
        """Start nothing more, and answer who waits; decisions that are proposed run to their end."""
        self._calls.stop()
        self.resolver.stop()
        self.coordinator.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()

    def check_ready(self) -> None:
        """Check that every live server has transactions; raises as `gate.check`."""
        now_us = self._env.clock.monotonic_us()
        gate.check(self._memory.catalog, self._servers, self._masters(), now_us)
