"""The journals of a simulated cluster, the clients at work on them, and the checks at the end."""

import asyncio
from collections.abc import Callable, Sequence

from nyala.client.core import ClientCore
from nyala.client.journal.core import JournalCore
from nyala.client.journal.locations import OpenJournal
from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.journal.journal import JournalMachine
from tests.sim.journals.client import OPTIONS, JournalClient, JournalHistory, check_replaced
from tests.sim.journals.history import ListLogs
from tests.sim.journals.host_run import FOLLOW_S
from tests.sim.journals.order import OrderWatch
from tests.sim.journals.work import (
    RACE,
    Actor,
    Racer,
    TailReader,
    WatchReader,
    Worker,
    check_working,
)
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.loop import seeded
from tests.sim.world.process import SimProcess

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
