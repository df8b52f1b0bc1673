"""`nyala cluster rebalance`: looks at the cluster, plans moves, and makes some at a time, until it is even.

Nothing is kept between runs: a command that was interrupted is run again. A move that was begun has added a
member at most; the leader master removes the surplus one. Tablets that have a problem are left alone.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from nyala.client.core import ClientCore
from nyala.common.errors import InvalidArgument, NotFound, NyalaError, Unavailable
from nyala.operate.ksck.health import ClusterHealth
from nyala.operate.ksck.servers import check_tservers
from nyala.operate.ksck.tablets import tablet_problems
from nyala.operate.membership import Membership
from nyala.operate.rebalance.plan import Move, PlacedTablet, Placement, plan, plan_leaders
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 15_000
KNOWN_MS, POLL_MS = 30_000, 100
"""Time for the leader master to learn of a move, and between two questions."""
ATTEMPTS = 3
"""Failed moves of a tablet, or to a server, after which it is left alone."""
LOOKS, LOOK_PAUSE_MS = 10, 3_000
"""Number of times that a run looks for a server that does not answer, and the pause between them."""
LEADER_ROUNDS = 3
"""Maximum number of times that leaders are spread: others may transfer leadership too."""
Notify = Callable[[str], None]
Reports = dict[str, dict[str, pb.TabletStatus]]


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Replicas and leaders of one server."""

    uuid: str
    address: str
    location: str
    replicas: int
    leaders: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster at one moment.

    Attributes:
        placement: replicas on the servers that take any.
        servers: all tablet servers.
        names: names of tables and journals, by id.
        waiting: tablets that cannot be moved, with the reason.
    """

    placement: Placement
    servers: tuple[pb.ServerEntry, ...]
    names: dict[str, str]
    waiting: dict[str, str]

    def loads(self) -> list[ServerLoad]:
        """Return the load of each server, by address."""
        led = Counter(t.leader for t in self.placement.tablets.values())
        totals = self.placement.totals
        rows = [
            ServerLoad(s.uuid, s.address, s.location, totals[s.uuid], led[s.uuid])
            for s in self.servers
        ]
        return sorted(rows, key=lambda r: r.address)

    def address(self, uuid: str) -> str:
        """Return the address of a server, or its uuid."""
        return next((s.address for s in self.servers if s.uuid == uuid), uuid)

    def words(self, move: Move) -> str:
        """Return a move as text."""
        name = self.names.get(self.placement.tablets[move.tablet].table, "")
        route = f"from {self.address(move.source)} to {self.address(move.target)}"
        return f"{move.tablet} of {name} {route}: {move.reason}"


@dataclass(frozen=True, slots=True)
class RebalanceResult:
    """Result of a run.

    Attributes:
        moves: those that were made, or would be, as texts.
        failed: texts of the moves that failed.
        waiting: texts of the tablets that cannot be moved.
        servers: load of each server, without the moves that would be made.
    """

    moves: list[str]
    failed: list[str]
    waiting: list[str]
    servers: list[ServerLoad]


async def look(core: ClientCore, tables: Collection[str] = ()) -> Seen:
    """Return where the replicas are.

    Args:
        core: a client of the cluster.
        tables: names of the only tables whose replicas may be moved; empty: all tables and journals.

    Raises:
        NotFound: no such table.
        Unavailable: a server that is to have replicas does not run or does not answer.
    """
    listed = await core.servers()
    tservers = [s for s in listed.servers if s.role == "tserver"]
    taking = [s for s in tservers if not s.maintenance and not s.decommission]
    dead = [s.address for s in taking if not s.alive]
    if dead:
        raise Unavailable(
            f"tablet server {', '.join(dead)} does not run, so its replicas are being replaced. Wait until "
            "nyala cluster ksck says OK, or put it into maintenance: nyala tserver state enter_maintenance"
        )
    health = ClusterHealth()
    reports = await check_tservers(core, [s for s in tservers if s.alive], health)
    silent = [s.address for s in taking if s.uuid not in reports]
    if silent:
        raise Unavailable(f"tablet server {', '.join(silent)} does not answer; try again")
    found = await core.tables(all_kinds=True)
    missing = set(tables) - {t.name for t in found}
    if missing:
        raise NotFound(f"no table or journal {min(missing)!r}")
    placed: dict[str, PlacedTablet] = {}
    waiting: dict[str, str] = {}
    for table in found:
        for tablet in await _locations(core, pb.TabletLocationsRequest(table_id=table.id)):
            reason = _reason_to_wait(tablet, table, reports)
            if reason:
                waiting[tablet.id] = (
                    f"tablet {tablet.id} of {table.name} is left where it is: {reason}"
                )
            wanted = not tables or table.name in tables
            placed[tablet.id] = _placed(tablet, table.id, movable=wanted and not reason)
    locations = {s.uuid: s.location for s in taking}
    resting = {s.uuid: s.location for s in tservers if s.maintenance and not s.decommission}
    names = {t.id: t.name for t in found}
    return Seen(Placement(locations, placed, resting), tuple(tservers), names, waiting)


async def _locations(
    core: ClientCore, request: pb.TabletLocationsRequest
) -> Iterable[pb.TabletLocation]:
    try:
        answer: pb.TabletLocationsResponse = await core.masters.call(
            methods.TABLET_LOCATIONS, request, timeout_ms=ASK_MS
        )
    except NotFound:
        return ()  # dropped meanwhile
    return answer.tablets


def _reason_to_wait(tablet: pb.TabletLocation, table: pb.TableSummary, reports: Reports) -> str:
    """Return why a tablet is not moved; empty: it may be."""
    problems = tablet_problems(tablet, reports, table)
    if problems:
        return problems[0]
    if not all(r.voter for r in tablet.replicas):
        return "a change of its members is under way"
    statuses = [reports[r.uuid][tablet.id] for r in tablet.replicas]
    if not all(s.report.table_id for s in statuses):
        return "it has a witness"
    return ""


def _placed(tablet: pb.TabletLocation, table: str, *, movable: bool) -> PlacedTablet:
    leader = next((r.uuid for r in tablet.replicas if r.leader), "")
    servers = tuple(r.uuid for r in tablet.replicas)
    return PlacedTablet(tablet.id, table, servers, leader, movable)


async def planned(
    core: ClientCore, tables: Collection[str] = (), *, leaders: bool
) -> RebalanceResult:
    """Return what a run would do; leaders are planned if no replica is to be moved. Raises as `look`.

    Args:
        core: a client of the cluster.
        tables: as for `look`.
        leaders: plan the transfers of leadership too.
    """
    seen = await look(core, tables)
    loads = seen.loads()
    moves = [seen.words(m) for m in plan(seen.placement)]
    if leaders and not moves:
        moves = [f"leadership of {seen.words(m)}" for m in plan_leaders(seen.placement)]
    return RebalanceResult(moves, [], list(seen.waiting.values()), loads)


@dataclass(slots=True)
class Rebalance:
    """One run. On the client's loop.

    Args:
        core: a client of the cluster.
        tables: as for `look`.
        leaders: spread the leaders too, at the end.
        moves_per_server: maximum number of moves at a time from or to a server.
        timeout_ms: a move without progress for so long fails.
        notify: called with each move before it begins, and with each failure.

    Attributes:
        done: texts of the moves made.
        failed: texts of the moves that failed, by tablet or target, of those that are left alone in this run.
    """

    core: ClientCore
    tables: Collection[str] = ()
    leaders: bool = True
    moves_per_server: int = 2
    timeout_ms: int = 600_000
    notify: Notify = lambda _: None
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)
    _begun: bool = False

    def __post_init__(self) -> None:
        if self.moves_per_server < 1:
            raise InvalidArgument("moves per server: at least 1")

    async def run(self) -> RebalanceResult:
        """Make moves until there is none to make. Raises as `look`."""
        while batch := self._batch(seen := await self._look()):
            await asyncio.gather(*(self._make(seen, move) for move in batch))
        for _ in range(LEADER_ROUNDS if self.leaders else 0):
            seen = await self._look()
            transfers = [m for m in plan_leaders(seen.placement) if m.tablet not in self.failed]
            if not transfers:
                break
            for move in transfers:
                await self._make(seen, move, transfer=True)
        seen = await self._look()
        failed = list(dict.fromkeys(self.failed.values()))
        waiting = list(seen.waiting.values())
        return RebalanceResult(self.done, failed, waiting, seen.loads())

    async def _look(self) -> Seen:
        """Look at the cluster. During a run a server that is busy with copies may not answer for a moment."""
        for _ in range(LOOKS - 1 if self._begun else 0):
            try:
                return await look(self.core, self.tables)
            except Unavailable as err:
                self.notify(f"waiting: {err.message}")
                await self.core.env.tasks.sleep_ms(LOOK_PAUSE_MS)
        self._begun = True
        return await look(self.core, self.tables)

    def _batch(self, seen: Seen) -> list[Move]:
        """Return the moves to make at the same time: the first ones of a plan that do not crowd a server."""
        busy: Counter[str] = Counter()
        taken: dict[str, Move] = {}
        placement, limit = seen.placement, self.moves_per_server
        for tablet in self.failed.keys() & placement.tablets.keys():
            placement.tablets[tablet] = replace(placement.tablets[tablet], movable=False)
        for server in self.failed.keys() & placement.locations.keys():  # its disk is full, perhaps
            placement.rest(server)
        for move in plan(placement):
            ends = (move.source, move.target)
            if move.tablet not in taken and all(busy[s] < limit for s in ends):
                busy.update(ends)
                taken[move.tablet] = move
            if busy.total() >= limit * len(placement.locations):
                break
        return list(taken.values())

    async def _make(self, seen: Seen, move: Move, *, transfer: bool = False) -> None:
        what = f"{'transfer the leadership of' if transfer else 'move a replica of'} {seen.words(move)}"
        self.notify(what)
        membership = Membership(self.core, move.tablet, timeout_ms=self.timeout_ms)
        try:
            if transfer:
                await membership.step_down(move.target)
            else:
                await membership.move(move.source, move.target)
        except NyalaError as err:
            self.notify(f"failed: {what}: {err.message}")
            # InvalidArgument: another run has moved the tablet meanwhile. NotFound: its table was dropped.
            # The target has no part in either.
            only_tablet = transfer or isinstance(err, InvalidArgument | NotFound)
            for concerned in (move.tablet,) if only_tablet else (move.tablet, move.target):
                self._failures[concerned] += 1
                if self._failures[concerned] >= ATTEMPTS:
                    self.failed[concerned] = f"{what}: {err.message}"
        else:
            self.done.append(what)
            await self._until_known(move, seen.placement.tablets[move.tablet].table, transfer)

    async def _until_known(self, move: Move, table: str, transfer: bool) -> None:
        """Wait until the leader master knows of a move, so that the next plan begins after it."""
        clock = self.core.env.clock
        end = clock.monotonic_us() + KNOWN_MS * 1000
        request = pb.TabletLocationsRequest(table_id=table, tablet_ids=[move.tablet])
        while clock.monotonic_us() < end:
            found = await _locations(self.core, request)
            replicas = [r for t in found for r in t.replicas if r.leader or not transfer]
            if move.source not in {r.uuid for r in replicas}:
                return
            await self.core.env.tasks.sleep_ms(POLL_MS)
