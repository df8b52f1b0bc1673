"""Tablet servers are lost permanently, one after the other, under load and a swarm's faults; masters repair.

Or no server is lost, and the number of replicas is altered, up and down.

Each loss waits until all tablets are complete again, so that no group loses a majority. The check is
that no acknowledged write is lost, and every tablet ends with its number of voters, all on running servers.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from nyala.client.alter import AlterSteps
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError
from nyala.common.ids import SYS_CATALOG, ServerUuid, TabletId
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.faults.disk_losses import KINDS
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.runs.core_run import PAUSE_US, WRITES_PER_S, most_events
from tests.sim.systems.cluster import REPAIRING, SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.process import SimProcess

REPLICAS = 3
NONE: Mapping[str, str] = {}
SIZES = (5, 1, 3)
"""Numbers of replicas to which the table is altered, in order."""
TABLETS = 3
LIMIT_S = 120


class Graves:
    """State of the tablets, and the permanently lost servers."""

    def __init__(self, cluster: SimCluster, tablets: list[TabletId]) -> None:
        self._cluster = cluster
        self._tablets = tablets
        self.replicas = REPLICAS
        self.stood_in = 0
        """Number of times that a witness was a voter during the wait for a tablet."""
        self._dead: list[SimProcess] = []
        self._first: dict[TabletId, set[str]] = {}

    def _voters(self, tablet: TabletId) -> list[str]:
        leader = self._cluster.leader_of(tablet)
        if leader is None:
            return []
        config = hosts_of(leader)[0].get(tablet).status().committed_config
        self.stood_in += any(m.voter and not m.electable for m in config.members)
        whole = all(m.voter and m.electable for m in config.members)
        return [*config.voters] if whole else []

    def voters(self) -> dict[TabletId, list[str]]:
        """Return the voters of each tablet."""
        return {t: self._voters(t) for t in self._tablets}

    def whole(self) -> bool:
        """Return whether every tablet has a leader and all its voters, with data and on running servers."""
        living = {p.server.uuid for p in self._cluster.tservers if p.alive and p.server is not None}
        return all(
            len(voters := self._voters(t)) == self.replicas and living.issuperset(voters)
            for t in self._tablets
        )

    async def bury(self, victim: SimProcess) -> None:
        """Stop a server permanently, once all tablets are complete."""
        await self._cluster.until(self.whole, "all tablets are complete before a loss", LIMIT_S)
        if not self._first:
            self._first = {t: set(self._voters(t)) for t in self._tablets}
        self._dead.append(victim)
        victim.kill(power_cut=True)

    def sound(self) -> bool:
        """Return whether every voter is active too, with its leader's committed entries durable."""
        if not self.whole():
            return False
        for tablet in self._tablets:
            leader = self._cluster.leader_of(tablet)
            nodes = {n.core.uuid: n for _, g, n in self._cluster.replicas() if g == tablet}
            if leader is None or any(v not in nodes for v in self._voters(tablet)):
                return False
            commit = max(n.core.log.committed for n in nodes.values() if n.is_leader)
            if any(nodes[ServerUuid(v)].core.log.stable < commit for v in self._voters(tablet)):
                return False
        return True

    def remember(self) -> None:
        """Count replicas on other servers as rebuilt from now on."""
        self._first = self._first or {t: set(self._voters(t)) for t in self._tablets}

    @property
    def rebuilt(self) -> int:
        """Number of replicas on servers that had none at the first loss."""
        return sum(len(set(self._voters(t)) - self._first[t]) for t in self._tablets)


async def _scenario(
    loop: SimLoop, seed: int, swarm: Swarm, deaths: int, seconds: float, options: Mapping[str, str]
) -> tuple[int, int]:
    cluster = SimCluster(loop, seed, tservers=REPLICAS + 1 + deaths, options=REPAIRING)
    _, losses = await _begin(cluster, options)
    rng = seeded(seed, "deaths")
    victims = rng.sample(cluster.tservers, deaths)
    others = [s for s in cluster.servers if s not in victims]
    names = [p.name for p in (*cluster.servers, *cluster.clients)]
    nemesis = Nemesis(cluster.network, others, names, swarm, seeded(seed, "nemesis"))
    nemesis.start()
    for victim in victims:
        await loop.delay(rng.uniform(0, 1) * seconds * 1e6 / deaths)
        await losses.bury(victim)
    await loop.delay(seconds * 1e6 / 2)
    await nemesis.heal()
    await cluster.until(losses.whole, "all tablets are complete again", LIMIT_S)
    await cluster.until(lambda: _lists_agree(cluster), "all servers have the server list", LIMIT_S)
    await cluster.finish()
    return losses.rebuilt, losses.stood_in


async def _losing(loop: SimLoop, seed: int, kinds: Sequence[str], tservers: int) -> int:
    """Let one server after the other lose data while it is down; masters replace failed replicas."""
    cluster = SimCluster(loop, seed, tservers=tservers, options=REPAIRING)
    _, losses = await _begin(cluster, {})
    rng = seeded(seed, "losses")
    for kind in kinds:
        await cluster.until(losses.sound, f"all replicas are complete before `{kind}`", LIMIT_S)
        losses.remember()
        held = [p for p in cluster.tservers if any(q is p for q, g, _ in cluster.replicas())]
        victim = rng.choice(held)
        loop.trace.note("disk_loss", f"{victim.name} {kind}")
        victim.kill(power_cut=rng.random() < 0.5)
        KINDS[kind](victim, rng)
        victim.start()
        await cluster.until(losses.sound, f"all replicas are complete after `{kind}`", LIMIT_S)
    await cluster.finish()
    return losses.rebuilt


async def _begin(cluster: SimCluster, options: Mapping[str, str]) -> tuple[ClientCore, Graves]:
    """Start the cluster with a table and clients."""
    core = await cluster.start()
    await cluster.create_table(core, "t", TABLETS, REPLICAS, options)
    await cluster.add_workers(3, pause_us=PAUSE_US, writes_per_s=WRITES_PER_S)
    tablets = sorted({g for _, g, _ in cluster.replicas() if g != SYS_CATALOG})
    assert len(tablets) == TABLETS
    return core, Graves(cluster, tablets)


async def _resizing(loop: SimLoop, seed: int, swarm: Swarm) -> list[int]:
    cluster = SimCluster(loop, seed, tservers=max(SIZES), options=REPAIRING)
    core, losses = await _begin(cluster, {})
    names = [p.name for p in (*cluster.servers, *cluster.clients)]
    nemesis = Nemesis(cluster.network, cluster.servers, names, swarm, seeded(seed, "nemesis"))
    nemesis.start()
    table = await cluster.run(cluster.clients[0], lambda: core.open_table("t"))
    assert isinstance(table, OpenTable), table
    for size in SIZES:
        steps = AlterSteps(table)
        steps.set_replicas(size)
        await _altered(cluster, core, table, steps)
        losses.replicas = size
        await cluster.until(losses.whole, f"every tablet has {size} voters", LIMIT_S)
    await _empty(cluster, core)
    await nemesis.heal()
    await cluster.until(losses.whole, "all tablets are complete", LIMIT_S)
    await cluster.finish()
    return [len(voters) for voters in losses.voters().values()]


async def _empty(cluster: SimCluster, core: ClientCore) -> None:
    """Decommission a server; each leader master continues until it has no replica."""
    leader = next(p for p in cluster.tservers if any(r[0] is p for r in cluster.replicas()))
    request = pb.SetDecommissionRequest(uuid=leader.server.uuid, on=True)

    def empty() -> bool:
        groups = sorted({g for _, g, _ in cluster.replicas() if g != SYS_CATALOG})
        named = [hosts_of(p)[0].get(g) for g in groups if (p := cluster.leader_of(g)) is not None]
        members = [r.status().committed_config.get(ServerUuid(request.uuid)) for r in named]
        return len(named) == len(groups) and members == [None] * len(groups)

    async def asked() -> None:
        await core.masters.call(methods.SET_DECOMMISSION, request, timeout_ms=20_000)

    await _insisting(cluster, asked)
    await cluster.until(empty, "a server is emptied", LIMIT_S)


async def _altered(
    cluster: SimCluster, core: ClientCore, table: OpenTable, steps: AlterSteps
) -> None:
    """Alter the table."""
    await _insisting(cluster, lambda: core.ddl.alter_table(table, steps.steps))


async def _insisting(cluster: SimCluster, ask: Callable[[], Awaitable[object]]) -> None:
    """Retry while required servers are down, or no master leads."""
    for _ in range(20):
        try:
            await cluster.run(cluster.clients[0], ask)
        except NyalaError:
            await cluster.loop.delay(2e6)
        else:
            return
    raise AssertionError("the call was never answered")


def _lists_agree(cluster: SimCluster) -> bool:
    """Return whether all running servers have the leader master's list, and it shows the running ones."""
    master = cluster.leader_master()
    leading = None if master is None else getattr(master.server, "leading", None)
    term = None if leading is None else leading.current()
    if term is None:
        return False
    listed = term.catalog.servers.all()
    living = {p.server.uuid: p.server for p in cluster.tservers if p.alive and p.server is not None}
    alive = [s.uuid for s in listed if s.alive]
    lists = [s.master_responses.servers.all() for s in living.values()]
    return alive == sorted(living) and all(one == listed for one in lists)


def run_losing(seed: int, kinds: Sequence[str], tservers: int = REPLICAS + 1) -> int:
    """Run one seed; return the number of replicas on other servers at the end.

    Args:
        seed: seed of everything drawn.
        kinds: kinds of the losses, in order.
        tservers: number of tablet servers; if equal to the replicas, each one is replaced in place.
    """
    return run(
        lambda loop: _losing(loop, seed, kinds, tservers),
        max_events=most_events((len(kinds) + 1) * LIMIT_S),
    )


def run_resizing(seed: int, swarm: Swarm) -> list[int]:
    """Run one seed; return the number of voters of each tablet at the end."""
    return run(
        lambda loop: _resizing(loop, seed, swarm), max_events=most_events(len(SIZES) * LIMIT_S)
    )


def run_repair(
    seed: int,
    swarm: Swarm,
    *,
    deaths: int = 2,
    seconds: float = 10,
    options: Mapping[str, str] = NONE,
) -> tuple[int, int]:
    """Run one seed; return the numbers of rebuilt replicas and of observed votes of witnesses.

    Args:
        seed: seed of all choices.
        swarm: mixture of the faults.
        deaths: number of permanently lost servers.
        seconds: virtual seconds over which the losses are spread.
        options: options of the table.
    """
    return run(
        lambda loop: _scenario(loop, seed, swarm, deaths, seconds, options),
        max_events=most_events(seconds + (deaths + 1) * LIMIT_S),
    )
