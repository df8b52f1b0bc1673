"""One run of one seed on a whole cluster with journals and a table: definitions, moves, losses, faults."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from nyala.client.core import ClientCore
from nyala.client.journal.core import LIMIT_OPTION, JournalCore
from nyala.client.journal.locations import JOURNAL, OpenJournal
from nyala.common.errors import NyalaError
from nyala.common.ids import TableId, TabletId
from nyala.journal.journal import JournalMachine
from nyala.operate.member_steps import MemberKind
from nyala.operate.membership import Membership
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.faults.cluster_losses import ClusterLosses
from tests.sim.faults.far_clocks import FarClocks
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.journals.client import OPTIONS, JournalClient, JournalHistory, check_replaced
from tests.sim.journals.history import ListLogs
from tests.sim.journals.host import SMALL_BYTES
from tests.sim.journals.host_run import FOLLOW_S
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
from tests.sim.runs.core_run import most_events
from tests.sim.systems.cluster import REPAIRING, SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.process import SimProcess
from tests.sim.world.trace import Recorder

SETTINGS = msgspec.structs.replace(REPAIRING, flush_bytes=4 << 10, flush_log_bytes=8 << 10)
"""Options under which journals are flushed often."""
JOURNALS = 2
LIMITS = (1 << 30, 1 << 30, SMALL_BYTES)
"""Limits of journals in bytes, with which they are created and altered; the last is often reached."""
DEFINE_US = 600_000.0
REPLACED_EVERY, REPLACED_SHARE = 4, 0.12
"""One seed in so many has tablets that are replaced; share of the definer's works that do it."""
MOVE_MS = 8_000
"""Longest wait of a move for progress, in milliseconds."""
SETTLE_S = 180
Make = Callable[[JournalClient, int], Actor]


def _actors() -> Sequence[Make]:
    """Return the makers of the clients' actors."""

    def work(client: JournalClient, number: int) -> Actor:
        return Worker(client, seeded(number, client.name), 120_000)

    def race(client: JournalClient, number: int) -> Actor:
        return Racer(client, seeded(number, client.name), 300_000)

    def tail(client: JournalClient, number: int) -> Actor:
        rng = seeded(number, client.name)
        return TailReader(client, rng, 300_000, rng.choice(("a", "b", RACE)))

    def watch(client: JournalClient, number: int) -> Actor:
        rng = seeded(number, client.name)
        return WatchReader(client, rng, 300_000, rng.choice(("k", "")))

    return (*[work] * 4, *[race] * 3, *[tail] * 3, watch)


class ClusterJournals:
    """The journals of a cluster, and their clients.

    Attributes:
        histories: of each journal's tablets, by the id of the journal; the present one is the last.
        live: ids of the journals that are not dropped.
        stopped: clients end as soon as they are idle.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.histories: dict[str, list[JournalHistory]] = {}
        self.live: list[str] = []
        self.actors: dict[str, Actor] = {}
        self.stopped = False
        self.working: list[asyncio.Task[None]] = []
        self._counted = 0

    def client(self) -> tuple[SimProcess, ClientCore, JournalCore]:
        """Start a client process."""
        core = self.cluster.client(OPTIONS)
        return self.cluster.clients[-1], core, JournalCore(core)

    def start(self) -> None:
        """Start all clients at work."""
        for make in _actors():
            process, _, core = self.client()
            self.working.append(process.run(self._work, process, core, make))

    async def _work(self, process: SimProcess, core: JournalCore, make: Make) -> None:
        """Work on one journal after the other, each until it is dropped."""
        rng, loop, number = seeded(self.cluster.seed, process.name), self.cluster.loop, 0
        while not self.stopped:
            opened = await self._open(core, rng.choice(self.live)) if self.live else None
            if opened is None:
                await loop.delay(rng.expovariate(1 / 300_000))
                continue
            number += 1
            history, name = self.history_of(opened), f"{process.name}.{number}"
            client = JournalClient(loop, core, opened, history, name, self.history_of)
            actor = self.actors[process.name] = make(client, self.cluster.seed)
            if not self.stopped:
                await actor.run()

    async def _open(self, core: JournalCore, journal_id: str) -> OpenJournal | None:
        try:
            return await core.locations.open("", OPTIONS.timeout_ms, journal_id=journal_id)
        except NyalaError:
            return None

    def made(self, opened: OpenJournal) -> None:
        """Take a journal that was created or recalled, or whose tablet was replaced."""
        self.history_of(opened)
        self.live.append(opened.id)

    def history_of(self, opened: OpenJournal) -> JournalHistory:
        """Return the history of a journal's tablet; steps may still be sent to an earlier one."""
        known = self.histories.setdefault(opened.id, [])
        for history in known:
            if history.tablet == opened.tablet.id:
                return history
        sent = known[-1].sent if known else {}
        known.append(JournalHistory(opened.tablet.id, sent=sent))
        return known[-1]

    def all(self) -> list[JournalHistory]:
        """Return the histories of all tablets."""
        return [history for known in self.histories.values() for history in known]

    def count(self) -> None:
        """Count acknowledged steps as writes of the cluster."""
        steps = sum(h.acknowledged for h in self.all())
        self.cluster.history.writes += steps - self._counted
        self._counted = steps

    def leader_of(self, journal_id: str) -> SimProcess | None:
        """Return the server that leads a journal's group."""
        return self.cluster.leader_of(self.histories[journal_id][-1].tablet)

    def machines(self, tablet: TabletId) -> list[JournalMachine]:
        """Return the machines of the members of a group, if they are three with data, else none."""
        leader = self.cluster.leader_of(tablet)
        if leader is None:
            return []
        config = hosts_of(leader)[0].get(tablet).status().committed_config
        found: list[JournalMachine] = []
        for process in self.cluster.tservers:
            for host in hosts_of(process):
                replica = host.find(tablet)
                if replica is None or replica.member is None:
                    continue
                member = config.get(replica.member.node.core.uuid)
                if (
                    member is not None
                    and member.voter
                    and isinstance(replica.machine, JournalMachine)
                ):
                    found.append(replica.machine)
        whole = len(found) == len(config.members) == 3
        return found if whole else []

    async def finish(self, watch: OrderWatch) -> None:
        """All is healed: every client is answered soon, replicas agree, readers catch up; check all."""
        cluster = self.cluster
        if self.live:
            before = {n: (a, a.answered) for n, a in self.actors.items() if not _follows(a)}

            def all_answered() -> bool:
                check_working(self.working)
                return all(
                    self.actors[n] is not a or a.answered > k for n, (a, k) in before.items()
                )

            await cluster.until(all_answered, "every client is answered after healing", 90)
        self.stopped = True
        for actor in self.actors.values():
            actor.stopped = True
        for work in self.working:
            await work
        for journal_id in self.live:
            await self._settle(journal_id, watch)
        watch.look()
        for history in self.all():
            if history.tablet in watch.journals:
                history.check(watch.journals[history.tablet])
        for known in self.histories.values():
            check_replaced(known, watch.journals)

    async def _settle(self, journal_id: str, watch: OrderWatch) -> None:
        """Wait until one journal's replicas are equal and its readers have caught up."""
        history, cluster = self.histories[journal_id][-1], self.cluster
        process, _, core = self.client()
        opened = await process.run(self._open, core, journal_id)
        assert opened is not None, f"{journal_id} cannot be opened although all is well"
        last = JournalClient(cluster.loop, core, opened, history, f"{process.name}.last")
        assert await process.run(last.read, ListLogs()) is not None, "no answer though all is well"
        order = watch.journals.get(history.tablet)
        if order is None:
            return  # it was never written to

        def even() -> bool:
            machines = self.machines(history.tablet)
            return bool(machines) and all(m.state.last == order.model.last for m in machines)

        await cluster.until(even, f"the replicas of {journal_id} are equal", SETTLE_S)
        watch.check_content(self.machines(history.tablet))
        for name, actor in self.actors.items():
            end = cluster.loop.time() + SETTLE_S
            if (
                not isinstance(actor, TailReader | WatchReader)
                or actor.client.history is not history
            ):
                continue
            while not actor.caught_up(order.model):
                held = actor.following.held or actor.following.keys
                assert cluster.loop.time() < end, f"{name} does not catch up: it holds {held}"
                own = next(p for p in cluster.clients if p.name == name)
                await own.run(actor.follow, FOLLOW_S)


def _follows(actor: Actor) -> bool:
    return isinstance(actor, TailReader | WatchReader)


class JournalDefiner:
    """Creates, alters, drops and recalls journals, and moves their replicas; the only client that does."""

    def __init__(self, journals: ClusterJournals) -> None:
        self._journals = journals
        self._cluster = journals.cluster
        self.process, self._client, self._core = journals.client()
        self._rng = seeded(self._cluster.seed, "definer")
        self._replaces = seeded(self._cluster.seed, "replacements")
        self._dropped: list[str] = []
        self._number = 0
        self.done: Counter[str] = Counter()
        self.stopped = False

    async def run(self) -> None:
        """Work until `stopped`."""
        while not self.stopped:
            await self._cluster.loop.delay(self._rng.expovariate(1 / DEFINE_US))
            await self._once()

    async def _once(self) -> None:
        live, rng = self._journals.live, self._rng
        if len(live) < JOURNALS:
            if self._dropped and rng.random() < 0.6:
                await self._recall(self._dropped.pop())
            else:
                await self.create()
            return
        if self._cluster.seed % REPLACED_EVERY == 1 and self._replaces.random() < REPLACED_SHARE:
            await self._replace(self._replaces.choice(live))
            return
        work = rng.choice([self._move] * 4 + [self._witness, self._alter] * 2 + [self._drop] * 3)
        await work(rng.choice(live))

    async def create(self) -> bool:
        """Create a journal; one whose creation failed is not used."""
        self._number += 1
        try:
            limit_bytes = self._rng.choice(LIMITS)
            opened = await self._core.create(f"journal-{self._number}", 3, limit_bytes)
        except NyalaError:
            self.done["creation failed"] += 1
            return False
        self._journals.made(opened)
        self.done["create"] += 1
        return True

    async def _alter(self, journal_id: str) -> None:
        """Give a journal another limit, perhaps below its size."""
        option = pb.AlterStep.Text(name=LIMIT_OPTION, text=str(self._rng.choice(LIMITS)))
        request = pb.AlterTableRequest(
            id=TableId(journal_id), kind=JOURNAL, steps=[pb.AlterStep(option=option)]
        )
        define = self._client.masters.define
        await self._do("alter", define(methods.ALTER_TABLE, request, timeout_ms=MOVE_MS))

    async def _drop(self, journal_id: str) -> None:
        reserve = self._rng.choice((0, 3600, 3600))
        self._journals.live.remove(journal_id)
        try:
            await self._client.ddl.drop_table("", reserve, table_id=journal_id, kind=1)
        except NyalaError:
            self.done["drop failed"] += 1
            return  # it may still be dropped: it is not used
        self.done["drop"] += 1
        if reserve:
            self._dropped.append(journal_id)

    async def _recall(self, journal_id: str) -> None:
        self._number += 1
        try:
            opened = await self._core.recall(journal_id, f"journal-{self._number}")
        except NyalaError:
            self.done["recall failed"] += 1
            return
        self._journals.made(opened)
        self.done["recall"] += 1

    async def _replace(self, journal_id: str) -> None:
        """Replace a journal's tablet by an empty one while clients are at work; once for each journal."""
        known = self._journals.histories[journal_id]
        if len(known) > 1:
            return
        self._journals.live.remove(journal_id)
        request = pb.ReplaceTabletRequest(tablet_id=known[0].tablet, force=True)
        try:
            change = self._client.masters.change
            answer = await change(methods.REPLACE_TABLET, request, timeout_ms=MOVE_MS)
            opened = await self._core.locations.open("", OPTIONS.timeout_ms, journal_id=journal_id)
        except NyalaError:
            self.done["replacement failed"] += 1
            return  # it may have been replaced, or be soon: it is not used
        assert opened.tablet.id == answer.tablet_id != known[0].tablet
        self._journals.made(opened)
        self.done["replace"] += 1

    def _places(self, journal_id: str) -> tuple[list[str], list[str]]:
        """Return the servers with a member of a journal, and those without one."""
        leader = self._journals.leader_of(journal_id)
        if leader is None:
            return [], []
        tablet = self._journals.histories[journal_id][-1].tablet
        config = hosts_of(leader)[0].get(tablet).status().committed_config
        servers = [
            p.server.uuid for p in self._cluster.tservers if p.alive and p.server is not None
        ]
        members = [m.uuid for m in config.members]
        return [str(u) for u in members], [u for u in servers if u not in members]

    async def _move(self, journal_id: str) -> None:
        members, free = self._places(journal_id)
        if members and free:
            membership = self._membership(journal_id)
            old, new = self._rng.choice(members), self._rng.choice(free)
            await self._do("move", membership.move(old, new))

    async def _witness(self, journal_id: str) -> None:
        """Make one member a witness, and later a voter with data again."""
        members, _ = self._places(journal_id)
        if members:
            name = self._rng.choice(members)
            membership = self._membership(journal_id)
            await self._do("witness", membership.change_type(name, MemberKind.WITNESS))
            await self._cluster.loop.delay(self._rng.expovariate(1) * 1e6)
            await self._do("witness filled", membership.change_type(name, MemberKind.VOTER))

    async def heal(self) -> None:
        """Give all members of live journals data again."""
        for journal_id in self._journals.live:
            members, _ = self._places(journal_id)
            for name in members:
                membership = self._membership(journal_id)
                await self._do("healed", membership.change_type(name, MemberKind.VOTER))

    def _membership(self, journal_id: str) -> Membership:
        tablet = self._journals.histories[journal_id][-1].tablet
        return Membership(self._client, tablet, timeout_ms=MOVE_MS)

    async def _do(self, what: str, work: Awaitable[object]) -> None:
        try:
            await work
        except NyalaError:
            self.done[f"{what} left"] += 1
        else:
            self.done[what] += 1


async def _scenario(
    loop: SimLoop, seed: int, swarm: Swarm, seconds: float, watch: OrderWatch
) -> JournalOutcome:
    cluster = SimCluster(loop, seed, tservers=4, options=SETTINGS)
    core = await cluster.start()
    journals = ClusterJournals(cluster)
    definer = JournalDefiner(journals)
    look = cluster.look

    def all_looks() -> None:
        look()
        watch.look()
        journals.count()

    loop.after_step = all_looks
    assert await definer.process.run(definer.create), "no journal"
    await cluster.create_table(core, "t")
    await cluster.add_workers(2, pause_us=300_000)
    journals.start()
    names = [p.name for p in (*cluster.servers, *cluster.clients)]
    hands = seeded(seed, "transfers")

    async def transfer() -> None:
        cluster.transfer(hands)

    clocks = FarClocks(cluster, seeded(seed, "far clocks"), swarm.far_length_s)
    losses = ClusterLosses(cluster, seeded(seed, "losses"))

    async def loss() -> None:
        await nemesis.only(losses.fault)

    extra = [(swarm.transfer_s, transfer), (swarm.far_s, clocks.fault), (swarm.loss_s, loss)]
    nemesis = Nemesis(
        cluster.network, cluster.servers, names, swarm, seeded(seed, "nemesis"), cluster.leader,
        (), extra,
    )  # fmt: skip
    nemesis.start()
    defining = None if swarm.loss_s else definer.process.run(definer.run)
    await loop.delay(seconds * 1e6)
    await nemesis.heal()
    definer.stopped = True
    if defining is not None:
        await defining
        await definer.process.run(definer.heal)
    await journals.finish(watch)
    await cluster.finish()
    cluster.look()
    return JournalOutcome(
        loop.trace, journals.all(), cluster.checks() + watch.checks, seconds, definer.done
    )


def run_journal_cluster(
    seed: int, swarm: Swarm, seconds: float, recorder: Recorder | None = None
) -> JournalOutcome:
    """Run one seed on three masters and four tablet servers; raise a violation.

    Args:
        seed: of everything drawn.
        swarm: the faults; with losses of disks there are no definitions and moves.
        seconds: virtual time under faults.
        recorder: receives every event.
    """
    watch = OrderWatch()
    with watch.installed():
        return run(
            lambda loop: _scenario(loop, seed, swarm, seconds, watch),
            max_events=most_events(2 * seconds + 400),
            recorder=recorder,
        )
