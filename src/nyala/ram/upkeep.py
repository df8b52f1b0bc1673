"""Upkeep: what a leading coordinator does by itself, derived each time from its state and the pings.

Pings find servers that do not answer, which crash, and servers whose tablets differ from the map, which are
sent all of theirs. Crashed servers are recovered by their wills. Each server is told the changes of the list.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from nyala.common.errors import NotLeading, NyalaError
from nyala.env.env import Env
from nyala.ram.calls import range_of
from nyala.ram.ids import HashRange, ServerId
from nyala.ram.member import owned_digest
from nyala.ram.operations.tables import TabletRecovery
from nyala.ram.server_list import MASTER, EnsembleServer, ServerStatus
from nyala.ram.term import CoordinatorTerm
from nyala.ram.will import PART_LIMIT, TabletLoad, WillPart, Wills, drifted
from nyala.recipes.broadcast import BroadcastList, ListMessage, Update
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb

log = logging.getLogger(__name__)

PINGS = 3
"""Number of pings in a row that a server may miss."""
DOUBT_MS = 3_000
"""Time for which most servers have to be silent, also in the journal, before they crash, in milliseconds."""
MOST_LOADS = 10_000
"""Most loads of a server that are kept, the largest; an entry of the log has 1 MiB."""


class SilentServers:
    """Servers that do not answer pings, and whether they, or this process, are cut off.

    If most servers are silent, a leader that reaches the journal may be the one that nobody reaches. Servers
    that nobody pings note in the journal that they are alive. A leader that finds such a note crashes none of
    them and resigns; without one it waits for `DOUBT_MS` before they crash.

    Args:
        env: the environment.
        term: the term that leads.
    """

    def __init__(self, env: Env, term: CoordinatorTerm) -> None:
        self._env = env
        self._term = term
        self._missed: dict[ServerId, int] = {}
        self._doubt: tuple[int, dict[str, int]] | None = None

    def answered(self, server: ServerId) -> None:
        """Take an answer."""
        self._missed.pop(server, None)

    def missed(self, server: ServerId) -> None:
        """Take a ping without an answer."""
        self._missed[server] = self._missed.get(server, 0) + 1

    def __contains__(self, server: ServerId) -> bool:
        return server in self._missed

    async def crashed(self) -> list[ServerId]:
        """Return the servers that are to crash.

        Raises:
            NotLeading: this process has resigned, since the servers are alive and it does not reach them.
        """
        up = {s.id: s.up.address for s in self._term.state.servers.with_status(ServerStatus.UP)}
        self._missed = {s: n for s, n in self._missed.items() if s in up}
        silent = sorted(s for s, n in self._missed.items() if n >= PINGS)
        if 2 * len(silent) <= len(up):
            self._doubt = None
            return silent
        now_us, alive = self._env.clock.monotonic_us(), await self._term.alive()
        since_us, before = self._doubt = self._doubt or (now_us, alive)
        if any(alive.get(up[s]) != before.get(up[s]) for s in silent):
            await self._term.resign()
            raise NotLeading(
                f"{len(silent)} of {len(up)} servers do not answer this coordinator, and are alive by the "
                "journal; it resigns, so that one leads that reaches them"
            )
        return silent if now_us - since_us >= DOUBT_MS * 1000 else []


class ReportedLoads:
    """Loads that servers report, and those that are in the log for the leader after this one.

    Args:
        term: the term that leads.
    """

    def __init__(self, term: CoordinatorTerm) -> None:
        self._term = term
        self._reported: dict[ServerId, pb.ServerLoads] = {}

    def of(self, server: ServerId) -> dict[HashRange, TabletLoad]:
        """Return the loads that are in the log."""
        found = self._term.state.servers.servers.get(server)
        return loads_of(found.loads.loads) if found is not None and found.loads is not None else {}

    def reported(self, server: ServerId, loads: Iterable[pb.TabletLoad]) -> None:
        """Take the loads that a server reports."""
        largest = sorted(loads, key=lambda one: (-one.bytes, -one.rows))[:MOST_LOADS]
        if drifted(self.of(server), loads_of(largest)):
            self._reported[server] = pb.ServerLoads(id=server.message(), loads=largest)

    async def note(self) -> None:
        """Append the loads that differ from what is in the log."""
        reported, self._reported = self._reported, {}
        for server, loads in sorted(reported.items()):
            if self._term.state.servers.is_up(server):
                await self._term.execute("note_loads", loads)


class Upkeep:
    """See above. Used on one loop, while the term leads.

    Args:
        env: the environment.
        term: the term that leads.
        ping_ms: interval of the pings.
        limit: of a part of a will.

    Attributes:
        wills: of the servers that are up.
    """

    def __init__(
        self, env: Env, term: CoordinatorTerm, ping_ms: int, limit: TabletLoad = PART_LIMIT
    ) -> None:
        self._env = env
        self._term = term
        self._ping_ms = ping_ms
        self.wills = Wills(limit)
        self._pinged_us: int | None = None
        self._silent = SilentServers(env, term)
        self._has: dict[ServerId, int] = {}
        self._loads = ReportedLoads(term)
        self._list = self._first_list()

    # ---- the rounds --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make rounds until the term ends. At first all servers are sent their tablets."""
        with contextlib.suppress(NotLeading):
            await self._settle_all()
            while True:
                await self.round()
                self._term.changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._ping_ms / 1000):
                        await self._term.changed.wait()

    async def round(self) -> None:
        """Make one round.

        Raises:
            NotLeading: the term has ended.
        """
        self._term.check()
        try:
            if self._ping_is_due():
                await self._ping_all()
                await self._loads.note()
                await self._crash_silent()
            await self._recover()
            if self._term.state.servers.of_broken_groups():
                await self._term.execute("dissolve_groups", None)
            if self._term.state.servers.without_group():
                await self._term.execute("assign_group", None)
            await self._broadcast()
        except NotLeading:
            raise
        except NyalaError as err:  # the next round is planned anew
            log.info("a round of the coordinator ended early: %s", err)
            self._term.check()

    def _up(self) -> list[EnsembleServer]:
        return self._term.state.servers.with_status(ServerStatus.UP)

    # ---- pings and ownership -----------------------------------------------------------------------

    async def _settle_all(self) -> None:
        """Send each server all its tablets: what earlier leaders have ordered is not known."""
        owners = self._term.state.tablets.owners()
        calls = self._term.calls
        await asyncio.gather(*(calls.set_all(s.id, owners.get(s.id, ())) for s in self._up()))

    def _ping_is_due(self) -> bool:
        """Return True once an interval: each operation begins a round, and many tablets take time."""
        now_us = self._env.clock.monotonic_us()
        due = self._pinged_us is None or now_us - self._pinged_us >= self._ping_ms * 1000
        self._pinged_us = now_us if due else self._pinged_us
        return due

    async def _ping_all(self) -> None:
        owners = self._term.state.tablets.owners()
        up = [s.id for s in self._up()]
        await asyncio.gather(*(self._ping(s, owners.get(s, [])) for s in up))
        crashed = self._term.state.servers.with_status(ServerStatus.CRASHED)
        self.wills.forget([*up, *(s.id for s in crashed)])

    def present_wills(self) -> dict[ServerId, list[WillPart]]:
        """Return the wills of the servers that are up; one is made when it is needed."""
        owners = self._term.state.tablets.owners()
        return {s.id: self._parts(s.id, owners.get(s.id, [])) for s in self._up()}

    def _parts(self, server: ServerId, owned: list[HashRange]) -> list[WillPart]:
        self.wills.reported(server, self._loads.of(server))
        return self.wills.parts(server, owned)

    async def _ping(self, server: ServerId, owned: list[HashRange]) -> None:
        changes = self._term.state.tablets.changes
        answer = await self._term.calls.ping(server)
        if answer is None:
            self._silent.missed(server)
            return
        self._silent.answered(server)
        if server in self._has:  # a new one joins the list first, with version 0
            self._has[server] = answer.version
        self._loads.reported(server, answer.loads)
        if changes != self._term.state.tablets.changes:
            return  # the answer may be older than the map; the next round compares
        if answer.owned_digest != owned_digest(owned):
            await self._term.calls.set_all(server, owned)

    async def answers(self, server: ServerId) -> bool:
        """Return whether a server answers a ping."""
        return await self._term.calls.ping(server) is not None

    async def _crash_silent(self) -> None:
        for server in await self._silent.crashed():
            await self._term.execute("crash", server)

    # ---- recovery ----------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Begin or continue the recoveries that records ask for; remove crashed servers that own nothing."""
        state = self._term.state
        for server in state.servers.to_recover():
            for recovery in self._recoveries(server):
                await self._term.execute("recover_tablets", recovery)
        for crashed in state.servers.with_status(ServerStatus.CRASHED):
            if not state.tablets.owned_by(crashed.id):
                await self._term.execute("remove", crashed.id)

    def _recoveries(self, lost: ServerId) -> list[TabletRecovery]:
        """Return the recoveries of a server, one for each table; none: no server could take its tablets."""
        owners = self._term.state.tablets.owners()
        masters = [
            s.id
            for s in self._term.state.servers.with_status(ServerStatus.UP, MASTER)
            if s.id not in self._silent
        ]
        masters.sort(key=lambda m: (len(owners.get(m, ())), m))
        if not masters:
            return []
        found: dict[int, list[tuple[HashRange, ServerId]]] = {}
        for number, part in enumerate(self._parts(lost, owners.get(lost, []))):
            for piece in part.pieces:
                taker = masters[number % len(masters)]
                found.setdefault(piece.table_id, []).append((piece, taker))
        return [TabletRecovery(table, lost, pieces) for table, pieces in sorted(found.items())]

    # ---- the list of servers -----------------------------------------------------------------------

    def _first_list(self) -> BroadcastList:
        """Return the list as all servers have it, to which the changes since then are added (S3.41)."""
        servers = self._term.state.servers
        found = BroadcastList("servers")
        found.version = servers.confirmed
        found.items = {
            str(s.id): s.message().SerializeToString()
            for s in servers.servers.values()
            if s.status is not ServerStatus.REMOVE
        }
        for server in servers.with_status(ServerStatus.UP):
            self._has[server.id] = 0  # until it answers a ping
            found.joined(str(server.id))
        return found

    @property
    def kept_updates(self) -> int:
        """Number of changes that some server may lack (S3.10)."""
        return self._list.kept

    def _sync(self) -> None:
        """Add the changes of the list since the last round."""
        servers, known = self._term.state.servers, self._list
        for version, server in servers.updates():
            if version == known.version + 1:
                removed = server.status is ServerStatus.REMOVE
                value = None if removed else server.message().SerializeToString()
                known.changed(Update(version, str(server.id), value))
        up = [s.id for s in self._up()]
        for one in up:
            if one not in self._has:
                self._has[one] = 0
                known.joined(str(one))
        for one in self._has.keys() - set(up):
            del self._has[one]
            known.left(str(one))

    async def _broadcast(self) -> None:
        """Tell all servers what they lack; when all that are up have a version, note that."""
        self._sync()
        version = self._list.version
        await asyncio.gather(*(self._tell(s) for s in list(self._has)))
        least = min([*self._has.values(), version])
        if self._term.state.servers.confirmed < least:
            await self._term.execute("confirm", least)

    async def _tell(self, server: ServerId) -> None:
        while (
            message := self._list.message(min(self._has[server], self._list.version))
        ) is not None:
            answer = await self._term.calls.call(
                server, methods.RAM_UPDATE_SERVER_LIST, pb.UpdateServerListRequest,
                version=message.version, updates=_updates(message), full=message.items is not None,
            )  # fmt: skip
            if answer is None or server not in self._has or answer.version <= self._has[server]:
                return
            self._has[server] = answer.version
            if answer.version <= self._list.version:
                self._list.confirmed(str(server), answer.version)


def loads_of(messages: Iterable[pb.TabletLoad]) -> dict[HashRange, TabletLoad]:
    """Return the loads of messages."""
    return {range_of(one.tablet): TabletLoad(one.bytes, one.rows) for one in messages}


def _updates(message: ListMessage) -> list[pb.ListUpdate]:
    """Return the updates, or the whole list, as messages."""
    items = (message.items or {}).items()
    found = [(u.version, u.name, u.value) for u in message.updates]
    return [
        pb.ListUpdate(version=v, name=n, server=None if d is None else pb.ServerState.FromString(d))
        for v, n, d in [*found, *((message.version, n, d) for n, d in items)]
    ]
