"""An ensemble over a simulated journal: its processes, and what is checked after each step."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import NotLeading, Unavailable
from nyala.env.env import Env
from nyala.ram.coordinator import Coordinator, CoordinatorConfig, note_alive
from nyala.ram.storage_server import StorageConfig
from nyala.ram.will import TabletLoad
from tests.sim.ensembles.clients import EnsembleActor, client_of
from tests.sim.ensembles.commits import (
    INTENT,
    LOG,
    Commit,
    CommitLog,
    described,
    is_lint_free,
    replay,
)
from tests.sim.ensembles.history import EnsembleHistory
from tests.sim.ensembles.members import MemberProcess, MemberRules
from tests.sim.ensembles.model import EnsembleModel
from tests.sim.ensembles.points import CoordinatorRpc, CrashPoints, LeaderCalls
from tests.sim.journals.client import core_without_masters, opened_without_masters
from tests.sim.systems.core_cluster import CoreCluster
from tests.sim.systems.stores import GROUP
from tests.sim.world.loop import seeded
from tests.sim.world.process import SimProcess

COORDINATORS = 3
CLIENTS = 5
LIMIT = TabletLoad(1_000, 1_000)
"""Limit of the parts of wills, which most loads exceed, so that recoveries cut tablets."""
LOOK_S = 0.005
"""Time between two looks at all processes, in seconds."""


class SimulatedEnsemble:
    """Coordinators `coordinator-0` …, servers `member-0` … and their clients.

    Args:
        cluster: servers of the journal.
        servers: number of servers of the ensemble.

    Attributes:
        log: the coordinators' log.
        model: derived from it.
        history: of the clients.
        points: crash points of the coordinators.
        coordinators: their processes.
        servers: those of the servers.
        actors: clients at work.
        checks: number of checks by kind.
    """

    def __init__(self, cluster: CoreCluster, servers: int) -> None:
        self.cluster, self.loop, seed = cluster, cluster.loop, cluster.seed
        self.calls = LeaderCalls()
        self.history = EnsembleHistory(self.calls.sent)
        self.model = EnsembleModel(self.history)
        self.log = CommitLog(self._commit)
        self.points = CrashPoints(self.loop, seeded(seed, "points"))
        self.checks: Counter[str] = Counter()
        self._served: dict[int, Coordinator] = {}
        self._least: dict[int, int] = {}
        self._next_look = 0.0
        self._rules: dict[str, MemberRules] = {}
        self.coordinators = [self._process(f"coordinator-{n}") for n in range(COORDINATORS)]
        for process in self.coordinators:
            process.program = lambda env, _, p=process: self._coordinator(p, env)
        self.servers = [self._process(f"member-{n}") for n in range(servers)]
        for process in self.servers:
            self._rules[process.name] = MemberRules(self.model, process.name, self.checks)
            process.program = lambda env, _, p=process: self._member(p, env)
        self.actors: list[EnsembleActor] = []
        self.working: list[asyncio.Task[None]] = []

    def _process(self, name: str) -> SimProcess:
        cluster = self.cluster
        return SimProcess(self.loop, cluster.network, cluster.seed, name, f"{name}:1")

    def journal(self, env: Env) -> JournalCoroutines:
        """Return the journal, opened by a process."""
        opened = opened_without_masters(GROUP, [s.address for s in self.cluster.servers])
        return JournalCoroutines(core_without_masters(env), opened)

    def _coordinator(self, process: SimProcess, env: Env) -> Coordinator:
        env = replace(env, rpc=CoordinatorRpc(env.rpc, process, self.calls))
        config = CoordinatorConfig(process.address, LOG, limit=LIMIT)

        def point(name: str) -> None:
            self._before(made, name)
            self.points.reached(process, name)

        made = Coordinator(env, config, self.journal(env), point)
        return made

    def _member(self, process: SimProcess, env: Env) -> MemberProcess:
        rng = seeded(self.cluster.seed, process.name, process.starts, "member")
        journal, config = self.journal(env), StorageConfig(process.address)
        alive = partial(note_alive, journal, LOG, process.address)
        rules = self._rules[process.name]
        return MemberProcess(env, config, client_of(journal), alive, rules, rng)

    def keep_loads(self) -> None:
        """Have servers report the same loads from now on."""
        for rules in self._rules.values():
            rules.loads_change = False

    # ---- processes ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes, and the clients at work."""
        for process in (*self.coordinators, *self.servers):
            process.start()
        for _ in range(CLIENTS):
            process = self.cluster.new_process()
            actor = self.actor(process)
            self.actors.append(actor)
            self.working.append(process.run(actor.run))

    def actor(self, process: SimProcess) -> EnsembleActor:
        """Return a client in a process."""
        client = client_of(self.journal(process.open()))
        rng = seeded(self.cluster.seed, process.name)
        return EnsembleActor(self.loop, client, self.history, self.model, rng, process.name)

    def running(self) -> list[tuple[SimProcess, Coordinator]]:
        """Return the running coordinators, paused ones too."""
        return [(p, p.server) for p in self.coordinators if p.alive and p.server is not None]

    def leader(self) -> SimProcess | None:
        """Return the coordinator that serves."""
        return next((p for p, c in self.running() if serves(c)), None)

    def members(self) -> dict[str, Any]:
        """Return what the running servers that have an id know, by process."""
        return {
            p.name: p.server.server.member
            for p in self.servers
            if p.alive and p.server is not None and p.server.server.enlisted
        }

    # ---- checks ------------------------------------------------------------------------------------

    def _commit(self, commit: Commit) -> None:
        self.model.commit(commit)
        if commit.position == self.log.first_of(commit.epoch):
            self.compare_leaders()  # with the log before this leader

    def _before(self, coordinator: Coordinator, point: str) -> None:
        """Before a leader appends intents or results, it knows every commit."""
        appends = point.startswith("before") and point.endswith((" intent", " done"))
        if not appends or not serves(coordinator):
            return
        self.compare(coordinator, exactly=True)
        valid = self.log.valid[self.log.last_of(coordinator.term.epoch)].values()
        if not any(data.startswith(INTENT) for data in valid):  # no operation is under way
            assert is_lint_free(valid, coordinator.term.state), (
                f"{point}: the log is not lint-free: {list(valid)}"
            )
            self.checks["lint-free logs"] += 1

    def look(self) -> None:
        """Check what has changed; called when time advances, and does so every few milliseconds."""
        if self.loop.time() < self._next_look:
            return
        self._next_look = self.loop.time() + LOOK_S
        for process in (*self.coordinators, *self.servers, *self.cluster.clients):
            if process.failures:
                raise process.failures[0]
        leading = [c for _, c in self.running() if serves(c)]
        assert len(leading) < 2, f"leaders of {[c.term.epoch for c in leading]} serve"
        for one in leading:
            if one.term.epoch not in self._served:
                self._served[one.term.epoch] = one
                self.compare(one)
                self.checks["take-overs"] += 1
        for name, member in self.members().items():
            self._rules[name].look(member)

    def compare_leaders(self) -> None:
        """Compare what former leaders know with the log up to the next leader."""
        for _, one in self.running():
            if one.term.epoch in self._served:
                self.compare(one)

    def compare(self, coordinator: Coordinator, *, exactly: bool = False) -> None:
        """Compare a leader's dump with a replay up to its last commit; if it waits, up to an earlier one.

        Args:
            coordinator: leads, or has led and does not know better.
            exactly: it waits for no append.
        """
        state, epoch = coordinator.term.state, coordinator.term.epoch
        found = described(state)
        last = self.log.last_of(epoch)
        least = last if exactly else max(self._least.get(epoch, 0), self.log.first_of(epoch))
        for position in range(last, least - 1, -1):
            if self.log.replayed(position) == found:
                self._least[epoch] = position
                self.checks["dumps"] += 1
                return
        wanted = replay(self.log.valid[last]).dump()
        raise AssertionError(
            f"the leader of epoch {epoch} has {state.dump()}, and a replay {wanted}"
        )


def serves(coordinator: Coordinator) -> bool:
    """Return whether a coordinator answers requests."""
    if not coordinator.term.epoch:
        return False
    try:
        coordinator.term.check()
    except (NotLeading, Unavailable):
        return False
    return coordinator.upkeep is not None
