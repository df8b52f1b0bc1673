"""One run of one seed on the replica engine with one journal: work under faults, heal, check."""

from dataclasses import replace

from nyala.journal.journal import JournalMachine
from tests.sim.faults.membership_changes import Members
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.faults.replica_moves import Mover
from tests.sim.journals.client import (
    JournalClient,
    JournalHistory,
    core_without_masters,
    opened_without_masters,
)
from tests.sim.journals.history import ListLogs
from tests.sim.journals.host import HOSTS
from tests.sim.journals.order import OrderWatch
from tests.sim.journals.outcome import JournalOutcome
from tests.sim.journals.work import (
    RACE,
    Actor,
    Racer,
    TailReader,
    WatchReader,
    Worker,
    check_working,
)
from tests.sim.runs.core_run import HANDS, MOVE_S, MOVING_SPARES, most_events
from tests.sim.systems.core_cluster import CoreCluster
from tests.sim.systems.stores import GROUP
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.trace import Recorder
from tests.unit.journal.journal_model import LOGS

WORKERS, RACERS, TAILS = 4, 3, 4
PAUSE_US, RACE_US, TAIL_US = 120_000.0, 250_000.0, 300_000.0
SMALL_EVERY = 4
"""Of so many seeds one has a journal that is often full."""
FOLLOW_S = 6.0
"""Time for which a reader follows at the end, in seconds; longer than one replica waits for changes."""
LEAST_REPLICAS = 2
"""Replicas with data of a group that can make progress."""
PROGRESS_S = 60
"""Longest time until every client is answered after healing, in seconds."""


class HostJournal:
    """The servers, and the clients of their journal."""

    def __init__(self, loop: SimLoop, seed: int, cluster: CoreCluster) -> None:
        self.cluster = cluster
        self.history = JournalHistory(GROUP)
        self.actors: list[Actor] = []
        self._loop = loop
        self._seed = seed

    def client(self) -> JournalClient:
        """Start a client process."""
        process = self.cluster.new_process()
        core = core_without_masters(process.open())
        journal = opened_without_masters(GROUP, [s.address for s in self.cluster.servers])
        return JournalClient(self._loop, core, journal, self.history, process.name)

    def start(self) -> None:
        """Start all clients at work."""
        for _ in range(WORKERS):
            self._add(
                Worker(self.client(), seeded(self._seed, "worker", len(self.actors)), PAUSE_US)
            )
        for _ in range(RACERS):
            self._add(Racer(self.client(), seeded(self._seed, "racer", len(self.actors)), RACE_US))
        for log in (*LOGS[: TAILS - 1], RACE):
            random = seeded(self._seed, "tail", len(self.actors))
            self._add(TailReader(self.client(), random, TAIL_US, log))
        for prefix in ("k", ""):
            random = seeded(self._seed, "watch", len(self.actors))
            self._add(WatchReader(self.client(), random, TAIL_US, prefix))

    def _add(self, actor: Actor) -> None:
        self.actors.append(actor)
        self.cluster.working.append(self.cluster.clients[-1].run(actor.run))

    async def finish(self, watch: OrderWatch) -> None:
        """All is healed: every client is answered soon, and every reader catches up."""
        cluster = self.cluster
        wanted = {actor: actor.answered + 2 for actor in self.actors if not _reads_only(actor)}

        def all_answered() -> bool:
            check_working(cluster.working)
            return all(actor.answered >= least for actor, least in wanted.items())

        what = "every client is answered after healing"
        await cluster.until(all_answered, what, PROGRESS_S)
        for actor in self.actors:
            actor.stopped = True
        for work in cluster.working:
            await work
        last = self.client()
        barrier = await cluster.clients[-1].run(last.read, ListLogs())
        assert barrier is not None, "no answer although all is well"
        await cluster.until(
            lambda: self._even(watch), "all replicas have applied all entries", PROGRESS_S
        )
        await self._catch_up(watch)
        watch.look()
        watch.check_content(self.machines())
        self.history.check(watch.journals[GROUP])

    def machines(self) -> list[JournalMachine]:
        """Return the journals of the leader's group whose replicas can have everything."""
        cluster = self.cluster
        leader = cluster.leader()
        node = None if leader is None else cluster.node(leader)
        if node is None:
            return []
        behind = {p.uuid for p in node.status().peers if p.needs_copy}
        found: list[JournalMachine] = []
        for member in node.core.configs.active.members:
            process = cluster.by_uuid(member.uuid)
            replica = process.server.host.find(GROUP) if process.alive else None
            if replica is None or replica.member is None or member.uuid in behind:
                continue
            if isinstance(replica.machine, JournalMachine):
                found.append(replica.machine)
        return found

    def _even(self, watch: OrderWatch) -> bool:
        last, machines = watch.journals[GROUP].model.last, self.machines()
        return len(machines) >= LEAST_REPLICAS and all(m.state.last == last for m in machines)

    async def _catch_up(self, watch: OrderWatch) -> None:
        """Let every reader follow what it reads until it holds what is valid."""
        model = watch.journals[GROUP].model
        for actor in self.actors:
            end = self._loop.time() + PROGRESS_S
            while isinstance(actor, TailReader | WatchReader) and not actor.caught_up(model):
                following = actor.following
                assert self._loop.time() < end, (
                    f"{following.name} does not catch up: it holds {following.held or following.keys}"
                )
                process = next(p for p in self.cluster.clients if p.name == actor.client.name)
                await process.run(actor.follow, FOLLOW_S)


def _reads_only(actor: Actor) -> bool:
    return isinstance(actor, TailReader | WatchReader)


async def _scenario(
    loop: SimLoop, seed: int, swarm: Swarm, seconds: float, *, moving: bool, watch: OrderWatch
) -> JournalOutcome:
    make = HOSTS[moving, seed % SMALL_EVERY == 0]
    servers = 3 if moving or seed % 3 else 5
    spares = MOVING_SPARES if moving else 1 if swarm.change_s else 0
    cluster = CoreCluster(loop, seed, servers, make, spares)
    cluster.network.doubles_calls = True
    look = cluster.look

    def all_looks() -> None:
        look()
        watch.look()

    loop.after_step = all_looks
    prone = []
    if moving:
        bare = swarm.without_damage()
        swarm = replace(bare, full_s=swarm.full_s, no_room_s=swarm.no_room_s)
    elif swarm.prone:
        prone = seeded(seed, "prone").sample(cluster.servers, (servers - 1) // 2)
    for server in cluster.servers:
        server.start()
    journal = HostJournal(loop, seed, cluster)
    journal.start()
    members = Members(
        cluster, cluster.members, {str(cluster.members[s.name].uuid) for s in prone},
        seeded(seed, "members"),
    )  # fmt: skip
    mover = Mover(cluster, seeded(seed, "moves")) if moving else None
    changes = [(MOVE_S, mover.step)] * HANDS if mover else [(swarm.change_s, members.change)]
    names = [s.name for s in (*cluster.servers, *cluster.clients)]
    nemesis = Nemesis(
        cluster.network, cluster.servers, names, swarm, seeded(seed, "nemesis"), cluster.leader,
        prone, [*changes, (swarm.transfer_s, members.transfer)],
    )  # fmt: skip
    nemesis.start()
    await loop.delay(seconds * 1e6)
    await nemesis.heal()
    if mover is not None:
        await mover.finish()
    await journal.finish(watch)
    cluster.look()
    checks = cluster.watch.checks + cluster.sent_messages.checks + watch.checks
    return JournalOutcome(loop.trace, [journal.history], checks, seconds)


def run_host(
    seed: int,
    swarm: Swarm,
    seconds: float,
    *,
    moving: bool = False,
    recorder: Recorder | None = None,
) -> JournalOutcome:
    """Run one seed; raise a violation.

    Args:
        seed: of everything drawn.
        swarm: the faults.
        seconds: virtual time under faults.
        moving: replicas are moved by copies meanwhile.
        recorder: receives every event.
    """
    watch = OrderWatch()
    with watch.installed():
        return run(
            lambda loop: _scenario(loop, seed, swarm, seconds, moving=moving, watch=watch),
            max_events=most_events(2 * seconds + 60),
            recorder=recorder,
        )
