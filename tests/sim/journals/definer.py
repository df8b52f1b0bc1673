"""Client that creates, alters, drops and recalls journals of a simulated cluster, and moves replicas."""

from collections import Counter
from collections.abc import Awaitable

from nyala.client.journal.core import LIMIT_OPTION
from nyala.client.journal.locations import JOURNAL
from nyala.common.errors import NyalaError
from nyala.common.ids import TableId
from nyala.operate.member_steps import MemberKind
from nyala.operate.membership import Membership
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.journals.client import OPTIONS
from tests.sim.journals.cluster_journals import ClusterJournals
from tests.sim.journals.host import SMALL_BYTES
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.loop import seeded

JOURNALS = 2
LIMITS = (1 << 30, 1 << 30, SMALL_BYTES)
"""Limits of journals in bytes, with which they are created and altered; the last is often reached."""
DEFINE_US = 600_000.0
REPLACED_EVERY, REPLACED_SHARE = 4, 0.12
"""One seed in so many has tablets that are replaced; share of the definer's works that do it."""
MOVE_MS = 8_000
"""Longest wait of a move for progress, in milliseconds."""


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
